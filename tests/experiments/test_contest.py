"""Contestants in processes of their own: who computes more is slower, who cannot be built is left out."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure

from experiments import engines
from experiments.contest import contest
from experiments.harness import Row
from taso_py.ir.errors import TasoError
from taso_py.judging.timing import Race, RaceStop


def _products(folder: Path, size: int) -> Callable[[], object]:
    """Multiplies a matrix by itself; the folder has a file for each process that builds one, a line for each time."""
    if size < 0:
        raise TasoError("there are no such matrices")
    with (folder / f"{size} {os.getpid()}").open("a", encoding="utf-8") as file:
        file.write(f"{torch.get_num_threads()} {torch.is_grad_enabled()}\n")
    matrix = torch.ones(size, size)
    return lambda: torch.mm(matrix, matrix)


def test_contestants_are_built_for_every_heat_in_processes_of_their_own_unless_far_behind(tmp_path: Path) -> None:
    sizes = {"small": 32, "large": 512, "none": -1}
    makes = {name: partial(_products, tmp_path, size) for name, size in sizes.items()}
    found = contest(makes, seconds=0.2, heats=3)
    assert found.missing == {"none": "there are no such matrices"}
    assert list(found.race.times) == ["small", "large"]
    assert found.race.rounds == 3
    assert found.race.ratio("large").high < 1
    assert found.beside > 0
    built = sorted(tmp_path.iterdir())
    assert len(built) == 2
    once = f"{torch.get_num_threads()} False\n"
    assert {path.name.split()[0]: path.read_text() for path in built} == {"32": once * 3, "512": once}
    assert str(os.getpid()) not in {path.name.split()[1] for path in built}


@pytest.mark.parametrize("decided", [True, False])
def test_what_is_not_decided_has_as_many_heats_again(decided: bool, tmp_path: Path) -> None:
    makes, asked = {"small": partial(_products, tmp_path, 32)}, list[int]()

    def is_decided(held: Race) -> bool:
        asked.append(held.rounds)
        return decided

    found = contest(makes, seconds=0.1, heats=2, is_decided=is_decided).race
    assert asked == [2], "a second look would need intervals that are wider still"
    assert found.rounds == (2 if decided else 4)
    noise = tuple(1 + place / 100 for place in range(12))
    ratio = replace(found, times={"one": (1.0,) * 12, "other": noise}).ratio("other")
    places = (2, 9) if decided else (1, 10)
    assert (1 / ratio.high, 1 / ratio.low) == pytest.approx([noise[place] for place in places])
    # Of equals a range of six misses in 2 cases of 64, and the second to the eleventh of twelve in 26 of 4096.
    assert 2 / 2**6 + 26 / 2**12 < 0.05


@pytest.mark.parametrize(("gain", "applied", "is_decided"), [(1.2, 1, True), (1.0, 1, False), (1.0, 0, True)])
def test_a_row_is_decided_once_it_is_known_what_rules_gain(gain: float, applied: int, is_decided: bool) -> None:
    noise = (1.0, 1.1, 0.9, 1.05, 0.95, 1.02)
    times = {"original": noise, "onnxruntime exported": noise[::-1], "auto": tuple(one / gain for one in noise[::-1])}
    report: Any = SimpleNamespace(runtime="onnxruntime", applied=("a",) * applied)
    reports = {"auto": report, "onnxruntime": report}
    held = engines._with_chosen(Race(times, RaceStop.ROUNDS), reports)
    assert held.times["onnxruntime rules"] == times["auto"]
    assert engines._is_decided(held, reports) == is_decided


def _ended(folder: Path) -> Callable[[], object]:
    """Builds once; while it is built again, its process ends as if the system had ended it."""
    if (folder / "ended").exists():
        os.kill(os.getpid(), signal.SIGKILL)
    (folder / "ended").touch()
    return lambda: None


def test_a_contestant_whose_process_is_ended_is_left_out(tmp_path: Path) -> None:
    makes = {"small": partial(_products, tmp_path, 32), "ended": partial(_ended, tmp_path)}
    found = contest(makes, seconds=0.2, heats=2)
    assert list(found.race.times) == ["small"]
    assert "ended from outside" in found.missing["ended"]


def test_a_baseline_that_cannot_be_built_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TasoError, match="no such matrices"):
        contest({"none": partial(_products, tmp_path, -1)}, seconds=0.2, heats=2)


def test_relatives_are_built_only_beside_one_that_is_near_the_fastest(tmp_path: Path) -> None:
    sizes = {"small": 32, "large": 512, "of large": 33, "of small": 34, "none": -1, "of none": 35}
    makes = {name: partial(_products, tmp_path, size) for name, size in sizes.items()}
    relatives = {"of large": "large", "of small": "small", "of none": "none"}
    found = contest(makes, seconds=0.2, heats=2, relatives=relatives)
    assert set(found.race.times) == {"small", "large", "of small", "of none"}
    assert found.missing["none"] == "there are no such matrices"
    assert found.missing["of large"].startswith("not built, since large takes ")
    assert {path.name.split()[0] for path in tmp_path.iterdir()} == {"32", "512", "34", "35"}


def test_rules_are_drawn_by_engine() -> None:
    ways = [f"{engine} {way}" for engine in engines.SESSIONS for way in ("exported", "lowered", "rules")]
    speeds = {f"{way}{end}": 2.0 for way in (*ways, *engines.COMPILERS) for end in ("", "_low", "_high")}
    row: Row = {"model": "m", **speeds, "rules of onnxruntime": "a.b 3; c 1", "rules of openvino": ""}
    assert engines._counts("a.b 3; c 1") == Counter({"a.b": 3, "c": 1})
    figure = Figure(layout="constrained")
    engines.EXPERIMENT.plot(figure, [row])
    drawn = figure.axes[1]
    assert [label.get_text() for label in drawn.get_yticklabels()] == ["a.b", "c"]
    assert [text.get_text() for text in drawn.texts] == ["3", "1"]
    bare = Figure(layout="constrained")
    engines.EXPERIMENT.plot(bare, [{**row, "rules of onnxruntime": ""}])
    assert len(bare.axes) == 1
