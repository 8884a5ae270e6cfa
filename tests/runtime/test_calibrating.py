"""Prices are scaled by what a small network takes longer in a run than call by call, found once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from taso_py.cost.clock import Latency
from taso_py.cost.database import LatencyDatabase
from taso_py.cost.environment import Environment
from taso_py.cost.model import CostModel
from taso_py.ops.table import parse_graph
from taso_py.runtime import calibrating
from taso_py.runtime.calibrating import APART, TOGETHER, Network, calibrate

CPU = torch.device("cpu")
GRAPH = parse_graph("graph(x: f32[64]) { return relu(x) }")


def _known(database: LatencyDatabase, environment: Environment, **seconds: float) -> None:
    for key, name in ((TOGETHER, "together"), (APART, "apart")):
        database.put(environment, *key, Latency(seconds[name], seconds[name], seconds[name], 1, 0))


def test_a_run_of_the_network_is_what_prices_are_scaled_by_and_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every_latency_counts: None
) -> None:
    before = torch.get_rng_state()
    with LatencyDatabase(tmp_path / "latencies.sqlite") as database:
        cost = CostModel(CPU, database)
        calibrate(cost)
        assert 0.1 < cost.scale < 10.0
        assert torch.equal(before, torch.get_rng_state())
        monkeypatch.setattr(calibrating, "_measured", lambda _: pytest.fail("it is known"))
        again = CostModel(CPU, database)
        alone = again.graph_cost(GRAPH)
        calibrate(again)
        assert again.scale == cost.scale
        assert again.graph_cost(GRAPH) == pytest.approx(again.scale * alone)


def test_where_nothing_runs_what_is_known_there_counts_and_nothing_else() -> None:
    there = replace(Environment.current(CPU), threads=4096)
    with LatencyDatabase(":memory:") as database:
        cost = CostModel(CPU, database, environment=there)
        calibrate(cost)
        assert cost.scale == 1.0
        _known(database, there, together=3.0, apart=2.0)
        calibrate(cost)
        assert cost.scale == 1.5


def test_the_network_gives_scores_of_its_classes() -> None:
    image = torch.rand(2, 3, calibrating.SIZE, calibrating.SIZE)
    with torch.no_grad():
        assert Network().eval()(image).shape == (2, calibrating.CLASSES)
