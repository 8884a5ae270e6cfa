"""What a report says of numbers that are doubtful."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from taso_py.cost.model import CostModel
from taso_py.driver.optimize import optimize_source
from taso_py.driver.reporting import is_final, measurement_notes, storage_notes
from taso_py.driver.result import Optimized
from taso_py.judging import plausible, timing
from taso_py.judging.evaluation import Evaluation
from taso_py.judging.finalists import Finalist
from taso_py.judging.timing import Race, RaceStop
from taso_py.latency import contention
from taso_py.latency.contention import Contention
from taso_py.latency.database import LatencyDatabase
from taso_py.models.source import Source
from taso_py.ops.table import parse_graph
from taso_py.options import Options
from taso_py.rules.text import read_rules
from taso_py.search.result import SearchStop

BUSY = Contention(seconds=9.0, cores=2, threads=2, others=1.0)


class Repeated(nn.Module):
    """A function applied so often that once is surely faster."""

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(20):
            x = x.relu()
        return x


def optimized(monkeypatch: pytest.MonkeyPatch, found: Contention) -> Optimized:
    class Told(contention.Watch):
        """Answers what it is told."""

        def contention(self, *, spins: bool = False) -> Contention:
            return found

    monkeypatch.setattr(timing, "Watch", Told)
    source = Source("repeated", Repeated().eval(), (torch.randn(500, 500),), {})
    return optimize_source(source, Options(race_seconds=0.5, cache=False), RULES)


RULES = read_rules("rule a: float[..B] source relu(relu(a)) target relu(a)")


def test_phases_memory_and_cores_are_in_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    report = optimized(monkeypatch, replace(BUSY, others=0.0)).report
    assert list(report.phases)[:3] == ["import", "check", "measure"]
    assert {"search", "build", "race", "compare", "memory"} <= report.phases.keys()
    assert report.peak_bytes is not None
    assert report.peak_bytes[0] >= 500 * 500 * 4
    assert report.contention["reasons"] == []
    assert not any("trusted" in note for note in report.notes)


def test_a_busy_machine_is_said_beside_the_ratio(monkeypatch: pytest.MonkeyPatch) -> None:
    report = optimized(monkeypatch, BUSY).report
    assert report.withheld is None
    assert report.speedup >= 1.0
    assert any("other programs kept 1.0 of 2 cores busy while models were timed" in note for note in report.notes)
    assert "torch.set_num_threads(1)" in report.notes[-1]


def test_a_run_that_was_interrupted_or_beside_others_is_not_final() -> None:
    quiet, heavy = replace(BUSY, others=0.0), replace(BUSY, others=2.0)

    def findings(search: SearchStop, stop: RaceStop, raced: Contention, measuring: Contention) -> Any:
        race = Race({}, stop, contention=raced)
        searches = [SimpleNamespace(result=SimpleNamespace(stop_reason=search))]
        outcome = SimpleNamespace(races=[race], final=race)
        return SimpleNamespace(searches=searches, outcome=outcome, measuring=measuring)

    assert is_final(findings(SearchStop.TIME, RaceStop.TIME, quiet, quiet))
    assert not is_final(findings(SearchStop.INTERRUPTED, RaceStop.TIME, quiet, quiet))
    assert not is_final(findings(SearchStop.TIME, RaceStop.INTERRUPTED, quiet, quiet))
    assert not is_final(findings(SearchStop.TIME, RaceStop.TIME, heavy, quiet))
    assert not is_final(findings(SearchStop.TIME, RaceStop.TIME, quiet, heavy))


def test_a_ratio_that_cannot_be_is_withheld_and_the_result_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plausible, "CONTENDED_SLACK", 1e-9)
    found = optimized(monkeypatch, BUSY)
    assert not found.keeps_original, "the race was fair, only its ratio says little"
    assert found.report.withheld is not None
    assert not found.report.speedup > 0
    assert found.report.as_dict()["speedup"] is None


def test_latencies_that_there_was_no_time_for_are_noted() -> None:
    graph = parse_graph('graph(x: f32[2,4]) { return linear(x, weight{key="w", type=f32[8,4]}) }')
    with LatencyDatabase(":memory:") as database:
        cost = CostModel(torch.device("cpu"), database)
        assert measurement_notes(cost.latencies, BUSY) == []
        cost.latencies.limit_s = 0.0
        cost.warm(graph)
        notes = measurement_notes(cost.latencies, BUSY)
        assert "measuring stopped after 0 s, the limit of this level of effort" in notes[-1]
        assert f"; {cost.latencies.left_out} latencies are missing" in notes[-1]


def test_latencies_that_cannot_be_kept_are_noted(tmp_path: Path) -> None:
    with LatencyDatabase(tmp_path / "fine.sqlite") as database:
        assert storage_notes(database) == []
    (tmp_path / "file").write_text("")
    with LatencyDatabase(tmp_path / "file" / "latencies.sqlite") as database:
        (note,) = storage_notes(database)
    assert note.startswith(f"latencies are kept for this run only: {tmp_path / 'file' / 'latencies.sqlite'} cannot be")
    assert "TASO_PY_CACHE" in note


def test_a_ratio_of_the_rules_that_cannot_be_is_withheld_too(monkeypatch: pytest.MonkeyPatch) -> None:
    confirm, raced = Evaluation._confirm, list[Race]()

    def disturbed(self: Evaluation, baseline: Finalist, winner: Finalist, doubt: float) -> Race:
        race = confirm(self, baseline, winner, doubt)
        if raced:  # the second is against the unchanged graph
            slow = tuple(seconds * (1 + 1000 * (place > 0)) for place, seconds in enumerate(race.times[race.baseline]))
            race = replace(race, times={**race.times, race.baseline: slow})
        raced.append(race)
        return race

    monkeypatch.setattr(Evaluation, "_confirm", disturbed)
    monkeypatch.setattr(plausible, "SLACK", 1.5)
    report = optimized(monkeypatch, replace(BUSY, others=0.0)).report
    assert len(raced) == 2
    assert report.withheld is not None
    assert "is more than" in report.withheld
