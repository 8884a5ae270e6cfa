"""The text of results: made of files alone, current where it is committed, and honest about what is missing."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from experiments.catalogue import EXPERIMENTS
from experiments.headline import ratios_in_words
from experiments.markdown import RESULTS_TEXT, SOAK, render_text, write_text
from experiments.page import PageError, write_page
from tests.experiments.examples import experiment
from tests.experiments.test_page import results

ROOT = Path(__file__).parents[2]
COMMITTED = sorted(path.parent for path in (ROOT / "experiments" / "results").glob(f"*/{RESULTS_TEXT}"))
FACTS = {"environment": {"device_name": "A", "instruction_set": "AVX2", "threads": 2, "torch_version": "9.1"}}


def stale(folder: Path) -> bool:
    """Whether the text of a folder is not that of its files."""
    return (folder / RESULTS_TEXT).read_text(encoding="utf-8") != render_text(folder, EXPERIMENTS.values())


@pytest.mark.parametrize("folder", COMMITTED, ids=lambda folder: folder.name)
def test_committed_text_is_current(folder: Path) -> None:
    assert not stale(folder), f"run python -m experiments page --out {folder.relative_to(ROOT)}"


def test_text_that_is_not_current_is_found(tmp_path: Path) -> None:
    (source,) = (folder for folder in COMMITTED if folder.name == "cpu-zen3")
    folder = shutil.copytree(source, tmp_path / "copy")
    assert not stale(folder)
    table = folder / "engines.csv"
    changed = re.sub(r"^nasrnn,\d+", "nasrnn,99", table.read_text(encoding="utf-8"), count=1, flags=re.MULTILINE)
    table.write_text(changed, encoding="utf-8")
    assert stale(folder)


def test_every_committed_table_has_a_text() -> None:
    folders = {path.parent for path in (ROOT / "experiments" / "results").glob("*/*.csv")}
    assert sorted(folders) == COMMITTED


def test_text_has_question_provenance_table_and_reading(tmp_path: Path) -> None:
    text = write_text(results(tmp_path, **FACTS), [experiment("a")]).read_text(encoding="utf-8")
    for part in (
        "# Results: A\n",
        "## example: How long is a name?\n",
        "* Machine: A, AVX2, 2 threads\n* Date: 2026-01-02\n* Commit: `abc`\n* Versions: PyTorch 9.1\n",
        "* Run: complete, quick, seed 3, 5 s\n",
        "How to read it: `ratio` should be as long as the part's name.\n",
        "| part | ratio | count | good |\n| :--- | ---: | ---: | ---: |\n",
        "| a & b | 1.235 (1.200 to 1.300) | 12,345 | yes |\n| \\<i>c\\</i> |",
        "![How long is a name?](example.png)\n",
    ):
        assert part in text, part
    assert "Headline" not in text
    assert "soak" not in text


def test_headline_stands_first(tmp_path: Path) -> None:
    summed = replace(experiment("a"), headline=lambda rows: [f"{len(rows)} names"])
    text = render_text(results(tmp_path), [summed])
    assert "## Headline\n\n* `example`, 2 names.\n" in text
    assert text.index("## Headline") < text.index("## example")


def test_text_names_what_failed_and_what_is_missing(tmp_path: Path) -> None:
    results(tmp_path, failures={"a": "it broke"}, missing=["b", "c"])
    text = render_text(tmp_path, [experiment("a"), replace(experiment("a"), name="other")])
    assert "a failed: it broke\n" in text
    assert "Still to be run: b, c.\n" in text
    assert "Not run here: `other`.\n" in text
    assert "* Run: with failures" in text


def test_parts_of_different_commits_are_told_apart(tmp_path: Path) -> None:
    runs = results(tmp_path, commit="new, old with changes") / "runs" / "example"
    runs.mkdir(parents=True)
    for part, commit in (("a", "new"), ("b", "old with changes"), ("c", "new")):
        (runs / f"{part}.json").write_text(json.dumps({"commit": commit}))
    (runs / "damaged.json").write_text("{")
    text = render_text(tmp_path, [experiment("a")])
    assert "* Commit: `new` (a, c)\n* Commit: `old` with changes (b)\n" in text


def test_soak_results_are_linked(tmp_path: Path) -> None:
    results(tmp_path)
    for name in SOAK:
        (tmp_path / name).touch()
    text = render_text(tmp_path, [experiment("a")])
    assert "[samples](soak.csv), [circumstances](soak.json), [memory over time](soak.png)." in text


def broken(text: str, folder: Path) -> list[str]:
    """The links of a text that lead nowhere from a folder."""
    links: list[str] = re.findall(r"\]\(([^)#:]+)\)", text)
    return [link for link in links if not (folder / link).exists()]


def test_links_resolve_without_a_table_or_figure(tmp_path: Path) -> None:
    write_page(results(tmp_path, failures={"a": "nothing works"}), [experiment("a")])
    text = render_text(tmp_path, [experiment("a")])
    for suffix in ("csv", "png"):
        (tmp_path / f"example.{suffix}").unlink()
    assert broken(text, tmp_path) == ["example.csv", "example.png"]
    assert broken(render_text(tmp_path, [experiment("a")]), tmp_path) == []


@pytest.mark.parametrize("page", ["README.md", "lessons.md", *(f"results/{f.name}/{RESULTS_TEXT}" for f in COMMITTED)])
def test_links_of_committed_texts_resolve(page: str) -> None:
    path = ROOT / "experiments" / page
    assert broken(path.read_text(encoding="utf-8"), path.parent) == []


def test_a_folder_without_results_has_no_text(tmp_path: Path) -> None:
    with pytest.raises(PageError, match="run an experiment first"):
        render_text(tmp_path, [experiment("a")])


def test_ratios_are_summed_up_losses_like_gains() -> None:
    ratios = {"a": 2.0, "b": 0.5, "c": 1.0, "d": 4.0, "e": 0.25}
    rows = [{"model": name, "x": ratio, "x_low": 0.9 * ratio, "x_high": 1.1 * ratio} for name, ratio in ratios.items()]
    assert ratios_in_words(rows, "x", than="y") == (
        "geometric mean of 5 models: 1.000 times as fast as y; 2 certainly faster, 2 certainly slower; largest: "
        "d 4.000 (3.600 to 4.400), a 2.000 (1.800 to 2.200), c 1.000 (0.9000 to 1.100); smallest: "
        "e 0.2500 (0.2250 to 0.2750)"
    )


def test_headlines_of_committed_results_leave_no_model_out() -> None:
    text = (ROOT / "experiments" / "results" / "cpu-zen5" / RESULTS_TEXT).read_text(encoding="utf-8")
    assert "`end_to_end`, usual batch: geometric mean of 19 models: 1.653 times" in text
    assert "`end_to_end`, batch 8: geometric mean of 4 models: 1.363 times" in text
