"""Greedy search."""

import math
from collections.abc import Mapping, Set
from typing import Any

import pytest

from taso_py.ir.graph import Graph
from taso_py.ir.node import Node
from taso_py.ops.table import parse_graph
from taso_py.search import backtracking
from taso_py.search.greedy import search
from taso_py.search.result import Limits, SearchStop
from tests.search.examples import FakeCost, Latency, products, read, recurrent

COST = FakeCost()


def test_every_step_is_the_best_that_improves() -> None:
    result = search(products(4), read("merge", "slices"), COST)
    assert result.best.trace.applied[:3] == (read("merge")[0].id,) * 3
    assert result.stop_reason is SearchStop.EXHAUSTED
    assert result.best.seconds < result.original.seconds


def test_a_step_without_gain_is_not_taken() -> None:
    graph = parse_graph(
        "graph(a: f32[4], b: f32[4], c: f32[4], d: f32[4]) { return add(add(mul(a, b), c), mul(a, d)) }"
    )
    result = search(graph, read("associate", "factor"), COST)
    assert result.best.trace.applied == ()


def test_shared_weights_are_merged_in_the_same_way_everywhere() -> None:
    result = search(recurrent(3), read("merge"), COST)
    assert sum(node.op.name == "matmul" and not node.is_static for node in result.best.graph.nodes) == 6
    assert result.best.static_bytes == result.original.static_bytes


def test_the_budget_is_kept() -> None:
    result = search(products(9), read("merge"), COST, Limits(budget=3))
    assert (result.built, result.stop_reason) == (3, SearchStop.BUDGET)


def test_a_budget_that_ends_without_a_gain_is_the_reason_to_stop() -> None:
    # Joining two products is expected to pay, and does not: what is concatenated costs as well.
    class Wrong(FakeCost):
        def revise(self, before: Latency, graph: Graph, images: Mapping[Node, Node], touched: Set[Node]) -> Latency:
            return Latency(before.seconds + 1)

    result = search(products(4), read("merge"), Wrong(), Limits(budget=2))
    assert (result.built, result.stop_reason) == (2, SearchStop.BUDGET)


@pytest.mark.parametrize("strategy", [search, backtracking.search])
@pytest.mark.parametrize("unknown", ["slice", "matmul", "relu"])
def test_latencies_that_nobody_knows_are_no_obstacle(strategy: Any, unknown: str) -> None:
    """As where a device is predicted that is not here: a step may cost or gain infinitely much, or who knows what."""
    graph = parse_graph(
        """graph(x: f32[1,16]) {
          w = weight{key="w", type=f32[16,8]} u = weight{key="u", type=f32[16,8]}
          return matmul(x, w), matmul(x, u), relu(relu(x))
        }"""
    )
    cost = FakeCost({"matmul": 8.0, "slice": 1.0, unknown: math.inf})
    result = strategy(graph, read("merge", "idempotent"), cost)
    assert result.stop_reason is SearchStop.EXHAUSTED
    if unknown == "slice":
        assert result.best.applied == (read("idempotent")[0].id,)
    else:
        assert result.best.seconds == result.original.seconds == math.inf
