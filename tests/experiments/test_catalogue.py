"""The catalogue and the command line: everything is listed once, and a user's mistake is one line."""

from __future__ import annotations

import importlib
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import experiments
from experiments import __main__ as commands
from experiments.__main__ import main
from experiments.catalogue import EXPERIMENTS, MODULES
from experiments.harness import Settings
from tests.experiments.examples import calls
from tests.experiments.examples import experiment as example

FOLDER = Path(experiments.__file__).parent
README = (FOLDER / "README.md").read_text(encoding="utf-8")


def test_every_module_with_an_experiment_is_listed_once_by_its_name() -> None:
    stems = sorted(path.stem for path in FOLDER.glob("*.py") if "\nEXPERIMENT = " in path.read_text(encoding="utf-8"))
    assert sorted(module.EXPERIMENT.name for module in MODULES) == stems
    for name in stems:
        assert importlib.import_module(f"experiments.{name}").EXPERIMENT is EXPERIMENTS[name]


def test_list_agrees_with_the_readme(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    listed = [tuple(line.split(maxsplit=1)) for line in capsys.readouterr().out.splitlines()]
    assert listed == re.findall(r"^\| `(\w+)` \| (.+) \|$", README, re.MULTILINE)


def test_questions_are_questions_and_parts_have_names_of_their_own() -> None:
    for experiment in EXPERIMENTS.values():
        assert experiment.question.endswith("?")
        assert not experiment.reading.endswith(".")
        for quick in (True, False):
            parts = experiment.parts(Settings("cpu", quick, Path(), 0))
            files = {re.sub(r"[^\w.+-]+", "-", part) for part in parts}
            assert 0 < len(parts) == len(files), experiment.name


def test_a_device_is_checked_for_correctness_before_anything_is_timed() -> None:
    on_device = [experiment.name for experiment in EXPERIMENTS.values() if "cuda" in experiment.devices]
    assert on_device[:2] == ["round_trip", "correctness"]
    assert [experiment.name for experiment in EXPERIMENTS.values() if experiment.is_check] == on_device[:2]


@pytest.mark.parametrize(
    ("limit", "order", "again"),
    [
        ([], "raises last long check.1 check.2 other", "raises long"),
        # What has something already waits for what has nothing.
        (["--minutes", "9"], "check.1 check.2 raises other long last", "long raises"),
    ],
)
def test_where_time_is_limited_checks_come_first_and_then_a_part_of_each(
    limit: list[str],
    order: str,
    again: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    four = {
        "two": example("raises", "last"),
        "long": replace(example("long"), is_long=True),
        "check": replace(example("check.1", "check.2"), is_check=True),
        "other": example("other"),
    }
    monkeypatch.setattr(commands, "EXPERIMENTS", {name: replace(each, name=name) for name, each in four.items()})
    command = ["all", "--quick", "--out", str(tmp_path), *limit]
    assert main(command) == 1
    assert calls(tmp_path) == order.split()
    said = capsys.readouterr()
    assert said.out.count("How long is a name?") == len(four)
    assert "two: raises failed: ZeroDivisionError" in said.err
    (tmp_path / "runs" / "long" / "long.json").unlink()
    assert main(command) == 1
    assert calls(tmp_path)[6:] == again.split()


@pytest.mark.parametrize("name", ["all", "fidelity"])
def test_a_missing_gpu_is_one_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main([name, "--quick", "--device", "cuda", "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert re.fullmatch(r"experiments: error: .*CUDA.*\n", said.err)
    assert not (tmp_path / "out").exists()


def test_a_page_of_nothing_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["page", "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("minutes", ["-1", "nan", "inf", "some"])
def test_minutes_are_a_number_that_can_pass(minutes: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["fidelity", "--minutes", minutes])
    assert ended.value.code == 2
    assert f"'{minutes}' is not a number of minutes, zero or more" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="what happens where the first launch fails")
@pytest.mark.parametrize("name", [name for name, experiment in EXPERIMENTS.items() if "cuda" in experiment.devices])
def test_every_experiment_for_a_gpu_reaches_it(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch, "use_deterministic_algorithms", lambda *_, **__: None)
    settings = Settings("cuda", quick=True, out=tmp_path, seed=0)
    experiment = EXPERIMENTS[name]
    with pytest.raises(Exception, match=r"CUDA|NVIDIA"):
        experiment.measure(experiment.parts(settings)[0], settings)


@pytest.mark.parametrize("name", ["operators", "productions"])
def test_families_that_scaling_grows_exist(name: str) -> None:
    settings = Settings("cpu", quick=False, out=Path(), seed=0)
    parts = [part for part in EXPERIMENTS["scaling"].parts(settings) if part.startswith(name)]
    known = set(EXPERIMENTS["generation"].parts(settings))
    assert parts
    assert {part.removeprefix(f"{name}: ") for part in parts} <= known
