"""Greedy search."""

from taso_py.ops.table import parse_graph
from taso_py.search.greedy import search
from taso_py.search.result import Limits, StopReason
from tests.search.examples import FakeCost, products, read, recurrent

COST = FakeCost()


def test_every_step_is_the_best_that_improves() -> None:
    result = search(products(4), read("merge", "slices"), COST)
    assert result.best.trace.applied[:3] == (read("merge")[0].id,) * 3
    assert result.stop_reason is StopReason.EXHAUSTED
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
    assert (result.built, result.stop_reason) == (3, StopReason.BUDGET)
