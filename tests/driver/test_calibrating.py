"""Prices are scaled by what a small network takes longer in a run than call by call, found once."""

from __future__ import annotations

import inspect
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from taso_py.cost.model import CostModel
from taso_py.driver import calibrating
from taso_py.driver.calibrating import CALL_BY_CALL, IN_RUN, Network, scale_to_run, scale_to_runs
from taso_py.effort import EFFORTS
from taso_py.latency import latencies
from taso_py.latency.clock import Latency, TimingError
from taso_py.latency.database import LatencyDatabase
from taso_py.latency.environment import Environment
from taso_py.latency.schema import LatencyKind
from taso_py.ops.table import parse_graph

CPU = torch.device("cpu")
GRAPH = parse_graph("graph(x: f32[64]) { return relu(x) }")


@pytest.fixture(autouse=True)
def timed_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests share what the network takes."""
    monkeypatch.setattr(calibrating, "network_seconds", inspect.unwrap(calibrating.network_seconds))


def _known(database: LatencyDatabase, environment: Environment, **seconds: float) -> None:
    for key, name in ((IN_RUN, "together"), (CALL_BY_CALL, "apart")):
        latency = Latency(seconds[name], seconds[name], seconds[name], 1, 0)
        database.put(environment, *key, latency, LatencyKind.NETWORK)


def test_a_run_of_the_network_is_what_prices_are_scaled_by_and_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = torch.get_rng_state()
    with LatencyDatabase(tmp_path / "latencies.sqlite") as database:
        cost = CostModel(CPU, database)
        scale_to_runs(cost)
        assert 0.1 < cost.scale < 10.0
        assert torch.equal(before, torch.get_rng_state())
        monkeypatch.setattr(calibrating, "network_seconds", lambda _: pytest.fail("it is known"))
        again = CostModel(CPU, database)
        alone = again.graph_cost(GRAPH)
        scale_to_runs(again)
        assert again.scale == cost.scale
        assert again.graph_cost(GRAPH) == pytest.approx(again.scale * alone)


def test_where_calls_are_captured_the_network_is_too_and_prices_stay_if_it_cannot_be(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked = list[bool]()

    def run_and_call_seconds(cost: CostModel, *_: object) -> list[tuple[float, float]]:
        asked.append(cost.captured)
        if cost.captured:
            raise TimingError("this cannot be captured in a CUDA graph")
        return [(3.0, 2.0)]

    monkeypatch.setattr(CostModel, "run_and_call_seconds", run_and_call_seconds)
    with LatencyDatabase(":memory:") as database:
        costs = [CostModel(CPU, database, captured=captured) for captured in (False, True)]
        for cost in costs:
            scale_to_runs(cost)
    assert asked == [False, True]
    assert [cost.scale for cost in costs] == [1.5, 1.0]
    assert "a fifth too low: this cannot be captured" in caplog.text


def test_past_the_time_to_measure_prices_stay_unless_all_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrating, "network_seconds", lambda _: pytest.fail("there is no time"))
    with LatencyDatabase(":memory:") as database:
        cost = CostModel(CPU, database)
        cost.latencies.limit_s = 0.0
        scale_to_runs(cost)
        assert cost.scale == 1.0
        _known(database, Environment.current(CPU), together=3.0, apart=2.0)
        scale_to_runs(cost)
        assert cost.scale == 1.5


def test_on_a_busy_machine_prices_stay_unless_all_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrating, "network_seconds", lambda _: pytest.fail("it would be measured in vain"))
    with LatencyDatabase(":memory:") as database:
        cost = CostModel(CPU, database)
        cost.latencies.measured, cost.latencies.disturbed = 3, 2
        scale_to_runs(cost)
        assert cost.scale == 1.0
        _known(database, Environment.current(CPU), together=3.0, apart=2.0)
        scale_to_runs(cost)
        assert cost.scale == 1.5
        monkeypatch.setattr(calibrating, "network_seconds", lambda _: (5.0, 2.0))
    with LatencyDatabase(":memory:") as database:
        cost = CostModel(CPU, database)
        cost.latencies.measured, cost.latencies.disturbed = 4, 2
        scale_to_runs(cost)
        assert cost.scale == 2.5


def test_what_is_not_to_be_measured_is_used_if_it_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = list[CostModel]()

    def network_seconds(cost: CostModel) -> tuple[float, float]:
        measured.append(cost)
        return 3.0, 2.0

    monkeypatch.setattr(calibrating, "network_seconds", network_seconds)
    with LatencyDatabase(":memory:") as database:
        cost = CostModel(CPU, database)
        scale_to_runs(cost, measures=False)
        assert (cost.scale, measured) == (1.0, [])
        _known(database, Environment.current(CPU), together=4.0, apart=2.0)
        scale_to_runs(cost, measures=False)
        assert (cost.scale, measured) == (2.0, [])
    with LatencyDatabase(":memory:") as database:
        cost = CostModel(CPU, database)
        scale_to_runs(cost)
        assert (cost.scale, measured) == (1.5, [cost])
    assert [effort.calibrates for effort in EFFORTS.values()] == [False, True, True]


@pytest.mark.parametrize(("most_s", "passes"), [(1e9, latencies.PASSES), (0.0, 1)])
def test_a_run_and_its_calls_are_measured_several_times_unless_that_takes_too_long(
    monkeypatch: pytest.MonkeyPatch, most_s: float, passes: int
) -> None:
    monkeypatch.setattr(latencies, "PASSES_S", most_s)
    monkeypatch.setattr(latencies.Latencies, "of_run", lambda *_: Latency(1.0, 1.0, 1.0, 9, 0))
    with LatencyDatabase(":memory:") as database:
        found = CostModel(CPU, database).latencies.measure_run_and_calls(lambda: None, {})
    assert found == [(1.0, {})] * passes


def test_where_nothing_runs_what_is_known_there_counts_and_nothing_else() -> None:
    there = replace(Environment.current(CPU), threads=4096)
    with LatencyDatabase(":memory:") as database:
        cost = CostModel(CPU, database, environment=there)
        scale_to_runs(cost)
        assert cost.scale == 1.0
        _known(database, there, together=3.0, apart=2.0)
        scale_to_runs(cost)
        assert cost.scale == 1.5


def test_prices_in_an_engine_are_scaled_to_a_run_of_the_graph_whatever_they_were() -> None:
    with LatencyDatabase(":memory:") as database:
        cost = CostModel(CPU, database)
        scale_to_run(cost, GRAPH, 1.0)
        scale_to_run(cost, GRAPH, 0.5)
        assert cost.graph_cost(GRAPH) == pytest.approx(0.5)


def test_prices_stay_where_a_graph_has_none_or_costs_nothing() -> None:
    nothing = parse_graph("graph(x: f32[64]) { return x }")
    there = replace(Environment.current(CPU), threads=4096)
    with LatencyDatabase(":memory:") as database:
        for cost, graph in ((CostModel(CPU, database, environment=there), GRAPH), (CostModel(CPU, database), nothing)):
            scale_to_run(cost, graph, 1.0)
            assert cost.scale == 1.0


def test_the_network_gives_scores_of_its_classes() -> None:
    image = torch.rand(2, 3, calibrating.SIZE, calibrating.SIZE)
    with torch.no_grad():
        assert Network().eval()(image).shape == (2, calibrating.CLASSES)
