"""Latencies that are estimated until a plan rests on them."""

from collections.abc import Callable

import pytest
import torch

from taso_py.cost.model import CostModel
from taso_py.latency import latencies
from taso_py.latency.clock import Latency
from taso_py.latency.database import LatencyDatabase
from taso_py.latency.schema import Key
from taso_py.ops.table import parse_graph

CPU = torch.device("cpu")
SIMILAR = parse_graph(
    """graph(x: f32[64,64]) {
      a = relu(linear(x, weight{key="u", type=f32[64,64]}))
      b = relu(linear(a, weight{key="v", type=f32[72,64]}))
      return relu(linear(b, weight{key="w", type=f32[80,72]}))
    }"""
)


def test_what_is_similar_is_estimated_until_the_best_plan_rests_on_it(measured: list[object]) -> None:
    with LatencyDatabase(":memory:") as database:
        CostModel(CPU, database).graph_cost(SIMILAR)
        everything = len(measured)
    measured.clear()
    with LatencyDatabase(":memory:") as database:
        cost = CostModel(CPU, database)
        cost.latencies.reach = 1.0
        cost.graph_cost(SIMILAR)
        some = len(measured)
        assert 0 < some < everything
        assert len(list(database.rows())) <= some, "estimates are not stored"
        assert cost.settle(SIMILAR)
        assert not cost.settle(SIMILAR)
        assert some < len(measured) <= everything
        chosen = [cost.latencies.key(*where) for where in cost._chosen_covers(SIMILAR)]
        known = {(row.kernel, row.signature) for row in database.rows()}
        assert set(chosen) <= known


def test_a_plan_that_leaves_the_model_rests_on_measured_latencies(measured: list[object]) -> None:
    with LatencyDatabase(":memory:") as database:
        cost = CostModel(CPU, database)
        cost.latencies.reach = 1.0
        plan = cost.plan(SIMILAR)
        assert not cost.settle(SIMILAR)
        assert plan.steps


def test_a_kernel_that_only_seems_good_is_given_up_once_it_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """The estimate of a packed product is ten times too low; measured, it is no longer chosen."""

    def measured(_: object, make: Callable[[], object], key: Key, *_more: object) -> tuple[Latency, bool]:
        is_packed, is_first = not key[0].startswith("torch:"), "f32[64,64] of" in key[1]
        seconds = 1e-4 if is_packed and is_first else 1e-2 if is_packed else 1e-3
        return Latency(seconds, seconds, seconds, 9, 0), True

    monkeypatch.setattr(latencies.Latencies, "_measure", measured)
    with LatencyDatabase(":memory:") as database:
        cost = CostModel(CPU, database)
        cost.latencies.reach = 1.0
        promised = cost.graph_cost(SIMILAR)
        assert cost.settle(SIMILAR)
        assert cost.graph_cost(SIMILAR) > 2 * promised
        packed = [cover for cover, _ in cost._chosen_covers(SIMILAR) if cover.binder is not None]
        assert len(packed) <= 1


def test_estimates_of_one_model_are_corrected_in_another_that_shares_its_latencies(measured: list[object]) -> None:
    with LatencyDatabase(":memory:") as database:
        cost = CostModel(CPU, database)
        cost.latencies.reach = 1.0
        cost.graph_cost(SIMILAR)
        twin = cost.with_tiles(cost.tiles)
        twin.graph_cost(SIMILAR)
        assert twin.settle(SIMILAR)
        assert not cost.settle(SIMILAR)
        assert cost.graph_cost(SIMILAR) == pytest.approx(twin.graph_cost(SIMILAR))
