"""Runs of experiments: what is done is kept, what fails is said, and a run goes on where it stopped."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from experiments.harness import Experiment
from experiments.running import ExperimentRun, conduct, part_path
from experiments.table import read_csv
from experiments.worker import DIED
from tests.experiments.examples import PROCESS, calls, cannot_plot, experiment, settings


def facts(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "example.json").read_text())


def test_a_run_writes_table_figure_and_circumstances_and_is_not_repeated(tmp_path: Path) -> None:
    one = experiment("first", "second/part")
    rows, outcome = conduct(one, settings(tmp_path))
    assert outcome.is_complete
    assert read_csv(tmp_path / "example.csv") == rows
    assert (tmp_path / "example.png").read_bytes().startswith(b"\x89PNG")
    found = facts(tmp_path)
    assert (found["quick"], found["seed"], found["parts"], found["missing"], found["failures"]) == (True, 0, 2, [], {})
    assert found["environment"]["device"] == "cpu"
    assert part_path(settings(tmp_path), "example", "second/part").name == "second-part.json"
    assert conduct(one, settings(tmp_path))[0] == rows
    assert len(calls(tmp_path)) == 2


def test_failures_leave_the_others(tmp_path: Path) -> None:
    rows, outcome = conduct(experiment("refuses", "dies", "raises", "good"), settings(tmp_path))
    assert [row["part"] for row in rows] == ["good"]
    assert outcome.failures == {
        "refuses": "cannot do <that>; do this",
        "dies": DIED,
        "raises": "ZeroDivisionError: by nothing",
    }
    assert facts(tmp_path)["failures"] == outcome.failures
    assert not outcome.is_complete


def test_what_failed_is_tried_again_and_what_is_there_is_not(tmp_path: Path) -> None:
    conduct(experiment("raises", "good"), settings(tmp_path))
    conduct(experiment("raises", "good"), settings(tmp_path))
    assert calls(tmp_path) == ["raises", "good", "raises"]


@pytest.mark.parametrize("change", ["again", "seed", "damage"])
def test_what_is_there_is_measured_anew_where_it_has_to_be(tmp_path: Path, change: str) -> None:
    conduct(experiment("good"), settings(tmp_path))
    if change == "damage":
        path = part_path(settings(tmp_path), "example", "good")
        path.write_text(path.read_text()[:40])
    outcome = ExperimentRun(["good"]) if change == "again" else None
    conduct(experiment("good"), settings(tmp_path, seed=int(change == "seed")), outcome=outcome)
    assert calls(tmp_path) == ["good", "good"]


def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    one = experiment("first", "second")

    def interrupt(_: Experiment, part: str) -> None:
        if part == "second":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        conduct(one, settings(tmp_path), tell=interrupt)
    assert facts(tmp_path)["missing"] == ["second"]
    assert len(read_csv(tmp_path / "example.csv")) == 1
    assert conduct(one, settings(tmp_path))[1].is_complete
    assert calls(tmp_path) == ["first", "second"]


def test_a_part_is_given_up_when_the_time_is_used_up(tmp_path: Path) -> None:
    _, outcome = conduct(experiment("sleeps", "good"), settings(tmp_path), until=time.monotonic() + 4)
    assert outcome.missing == ["sleeps", "good"]
    assert outcome.failures == {}
    if (tmp_path / PROCESS).exists():
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / PROCESS).read_text()), 0)


def test_a_worker_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    run = f"conduct(experiment('sleeps'), settings(Path({str(tmp_path)!r})))"
    imports = "from pathlib import Path; from tests.experiments.test_running import *"
    started = subprocess.Popen([sys.executable, "-c", f"{imports}; {run}"])
    try:
        assert _comes_true(lambda: (tmp_path / PROCESS).exists() and bool((tmp_path / PROCESS).read_text()))
    finally:
        started.kill()
        started.wait()
    worker = int((tmp_path / PROCESS).read_text())
    assert _comes_true(lambda: not _is_running(worker))


def _comes_true(holds: Callable[[], bool]) -> bool:
    until = time.monotonic() + 60
    while time.monotonic() < until and not holds():
        time.sleep(0.05)
    return holds()


def _is_running(process: int) -> bool:
    """Return whether a process exists and is no zombie, which an init process that waits for no child would leave."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_what_was_run_in_part_goes_on_with_what_is_new(tmp_path: Path) -> None:
    one = experiment("raises", "first", "second")
    _, outcome = conduct(one, settings(tmp_path), most=2)
    assert outcome.missing == ["second"]
    rows, outcome = conduct(one, settings(tmp_path), outcome=outcome)
    assert [row["part"] for row in rows] == ["first", "second"]
    assert list(outcome.failures) == ["raises"]
    assert calls(tmp_path) == ["raises", "first", "second"]


def test_no_part_begins_after_the_time_is_used_up(tmp_path: Path) -> None:
    _, outcome = conduct(experiment("good"), settings(tmp_path), until=time.monotonic() - 1)
    assert outcome.missing == ["good"]
    assert calls(tmp_path) == []


def test_a_figure_that_cannot_be_drawn_leaves_the_table(tmp_path: Path) -> None:
    rows, outcome = conduct(experiment("good", plot=cannot_plot), settings(tmp_path))
    assert outcome.failures == {"figure": "ValueError: no such colour"}
    assert read_csv(tmp_path / "example.csv") == rows
    assert conduct(experiment("good"), settings(tmp_path), outcome=outcome)[1].is_complete


@pytest.mark.parametrize("way", ["no time", "again", "interrupted", "failing"])
def test_earlier_results_stay_until_there_are_rows_in_their_place(tmp_path: Path, way: str) -> None:
    conduct(experiment("raises", "good"), settings(tmp_path))
    names = [f"example.{suffix}" for suffix in ("csv", "png", "json")]
    earlier = [(tmp_path / name).read_bytes() for name in names]
    one, elsewhere = experiment("raises", "first"), settings(tmp_path, seed=1)  # nothing is kept of another seed

    def interrupt(_: Experiment, part: str) -> None:
        if way == "interrupted":
            raise KeyboardInterrupt

    with contextlib.suppress(KeyboardInterrupt):
        outcome = ExperimentRun(["raises", "first"]) if way == "again" else None
        until = time.monotonic() - 1 if way in ("no time", "again") else None
        conduct(one, elsewhere, outcome=outcome, until=until, most=1, tell=interrupt)
    assert [(tmp_path / name).read_bytes() for name in names] == earlier
    conduct(one, elsewhere)
    assert [row["part"] for row in read_csv(tmp_path / "example.csv")] == ["first"]
    assert facts(tmp_path)["seed"] == 1


def test_tables_are_made_again_of_the_parts_that_are_there(tmp_path: Path) -> None:
    rows, _ = conduct(experiment("good"), settings(tmp_path))
    for suffix in ("csv", "png", "json"):
        (tmp_path / f"example.{suffix}").unlink()
    conduct(experiment("good", "second"), settings(tmp_path), until=time.monotonic() - 1)
    assert read_csv(tmp_path / "example.csv") == rows
    assert facts(tmp_path)["missing"] == ["second"]
    assert (tmp_path / "example.png").exists()


def test_a_figure_of_other_rows_does_not_stay(tmp_path: Path) -> None:
    conduct(experiment("good"), settings(tmp_path))
    conduct(experiment("good", "second", plot=cannot_plot), settings(tmp_path))
    assert not (tmp_path / "example.png").exists()
