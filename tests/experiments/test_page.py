"""The page: made of files alone, whole by itself, and honest about what is missing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from experiments.harness import Experiment
from experiments.page import PageError, render, write_page
from experiments.table import cell, columns, read_csv, write_csv
from taso_py.report.optimization_page import optimization_page
from tests.experiments.examples import experiment, plot
from tests.report.pages import problems, text_of
from tests.report.test_optimization_page import EVIDENCE, REPORT

ROWS = [
    {"part": "a & b", "ratio": 1.23456, "ratio_low": 1.2, "ratio_high": 1.3, "count": 12345, "good": True},
    {"part": "<i>c</i>", "ratio": 0.5, "ratio_low": 0.4, "ratio_high": 0.6, "good": False},
]


def results(folder: Path, **changes: Any) -> Path:
    """A folder with the files of one experiment."""
    facts = {
        "quick": True, "seed": 3, "date": "2026-01-02", "commit": "abc", "environment": {"device_name": "A & B"},
        "parts": 2, "missing": [], "failures": {}, "wall_s": 5.0,
    }  # fmt: skip
    (folder / "example.json").write_text(json.dumps(facts | changes))
    write_csv(folder / "example.csv", ROWS)
    figure = Figure()
    plot(figure, ROWS)
    figure.savefig(folder / "example.png")
    return folder


def test_the_page_is_whole_by_itself(tmp_path: Path) -> None:
    page = write_page(results(tmp_path), [experiment("a")]).read_text()
    assert problems(page) == []
    assert 'src="data:image/png;base64,' in page
    assert "<i>c" not in page


def test_the_page_says_what_is_known(tmp_path: Path) -> None:
    text = text_of(render(results(tmp_path), [experiment("a")]))
    for part in (
        "1. How long is a name?", "ratio should be as long", "1.235 1.200 to 1.300", "12,345", "yes", "no", "a & b",
        "example.csv", "2026-01-02", "quick", "commit abc", "seed 3", "5 s", "A & B",
    ):  # fmt: skip
        assert part in text, part
    assert "failed" not in text.split("Contents")[1]


def test_the_page_says_what_failed_and_what_is_missing(tmp_path: Path) -> None:
    changes = {"failures": {"a": "it <broke>"}, "missing": ["b", "c"]}
    text = text_of(render(results(tmp_path, **changes), [experiment("a")]))
    assert "a failed: it <broke>" in text
    assert "Still to be run: b, c." in text
    assert "with failures" in text


def test_an_experiment_whose_files_are_damaged_leaves_the_others(tmp_path: Path) -> None:
    (results(tmp_path) / "other.json").write_text("{")
    other = replace(experiment("a"), name="other", question="And the other?")
    page = render(tmp_path, [experiment("a"), other])
    assert problems(page) == []
    assert "1.235" in text_of(page)
    assert "its files cannot be read" in text_of(page)


def test_results_without_a_figure_or_table_are_shown(tmp_path: Path) -> None:
    results(tmp_path, failures={"a": "nothing works"})
    for suffix in ("csv", "png"):
        (tmp_path / f"example.{suffix}").unlink()
    assert "nothing works" in text_of(render(tmp_path, [experiment("a")]))


def test_what_was_not_run_is_named(tmp_path: Path) -> None:
    other = replace(experiment("a"), name="other")
    assert "Not run here: other." in text_of(render(results(tmp_path), [experiment("a"), other]))


def test_a_folder_without_results_has_no_page(tmp_path: Path) -> None:
    with pytest.raises(PageError, match="run an experiment first"):
        render(tmp_path, [experiment("a")])


def test_what_ran_elsewhere_than_most_says_so(tmp_path: Path) -> None:
    def named(name: str, device: str) -> Experiment:
        results(tmp_path, environment={"device_name": device})
        for suffix in ("csv", "json", "png"):
            (tmp_path / f"example.{suffix}").rename(tmp_path / f"{name}.{suffix}")
        return replace(experiment("a"), name=name)

    page = text_of(render(tmp_path, [named("x", "One"), named("y", "Two"), named("z", "Two")]))
    assert page.count("In another environment than the one below") == 1
    assert "device name One." in page


def test_what_is_only_drawn_is_in_no_table(tmp_path: Path) -> None:
    page = text_of(render(results(tmp_path), [replace(experiment("a"), drawn=("count",))]))
    assert "12,345" not in page
    assert "1.235 1.200 to 1.300" in page


def test_pictures_from_elsewhere_are_noticed() -> None:
    page = optimization_page(REPORT, EVIDENCE).replace("<main>", '<main><img src="https://example.org/a.png">')
    assert len(problems(page)) == 1


def test_tables_are_read_as_they_were_written(tmp_path: Path) -> None:
    write_csv(tmp_path / "a.csv", ROWS)
    assert read_csv(tmp_path / "a.csv") == ROWS


def test_intervals_stand_with_what_they_belong_to() -> None:
    assert columns(ROWS) == ["part", "ratio", "count", "good"]
    assert cell(ROWS[0], "ratio") == ("1.235", "1.200 to 1.300")
    assert cell(ROWS[0], "count") == ("12,345", "")
    assert columns([{"time_low": 1.0}]) == ["time_low"]
