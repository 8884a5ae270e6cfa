"""What is kept of what a search found: the cheapest, and what may be faster if a latency is wrong."""

from __future__ import annotations

from dataclasses import dataclass

from taso_py.ir.graph import Graph
from taso_py.ir.node import Node
from taso_py.ir.operator import Input
from taso_py.ops.table import parse_graph
from taso_py.search.finalists import distinct, finalists


@dataclass(frozen=True, eq=False)
class Found:
    name: str
    graph: Graph
    seconds: float


class OneEach:
    """Every node that is no leaf takes a second."""

    def node_cost(self, node: Node) -> float:
        return 0.0 if isinstance(node.op, Input) else 1.0


def found(name: str, body: str, seconds: float) -> Found:
    return Found(name, parse_graph(f"graph(x: f32[4], y: f32[4]) {{ return {body} }}"), seconds)


BEST = found("best", "relu(tanh(exp(x)))", 3.0)
ALIKE = found("alike", "relu(tanh(relu(x)))", 3.01)
OTHER = found("other", "sigmoid(silu(sqrt(x)))", 3.05)
SLOW = found("slow", "gelu(erf(add(x, y)))", 6.0)


def names(chosen: list[Found]) -> list[str]:
    return [one.name for one in chosen]


def test_what_differs_more_is_tried_before_what_is_nearly_the_same() -> None:
    assert names(distinct([BEST, ALIKE, OTHER, SLOW], OneEach(), 2)) == ["best", "other"]
    assert names(distinct([BEST, ALIKE, OTHER, SLOW], OneEach(), 3)) == ["best", "other", "alike"]


def test_what_cannot_be_fastest_is_tried_last() -> None:
    """Even if all that it does is priced too high by a tenth, it is slower."""
    assert names(distinct([BEST, SLOW, ALIKE], OneEach(), 2)) == ["best", "alike"]


def test_the_same_work_in_another_order_is_no_other_graph() -> None:
    again = found("again", "tanh(relu(exp(x)))", 3.001)
    assert names(distinct([BEST, again, OTHER], OneEach(), 2)) == ["best", "other"]


def test_the_cheapest_comes_first_and_then_what_differs() -> None:
    original = found("original", "gelu(x)", 7.0)
    every = [SLOW, OTHER, ALIKE, BEST]
    assert names(finalists(every, original, OneEach(), 3)) == ["best", "alike", "other"]
    assert names(finalists(every, original, OneEach(), 2)) == ["best", "other"]
    assert names(finalists([SLOW, OTHER, BEST], original, OneEach(), 1)) == ["best"]
    assert finalists([], original, OneEach(), 3) == []


def test_the_original_is_kept_beside_them_if_it_was_found() -> None:
    assert names(finalists([SLOW, OTHER, ALIKE, BEST], SLOW, OneEach(), 2)) == ["best", "other", "slow"]
    assert names(finalists([OTHER, BEST], BEST, OneEach(), 1)) == ["best", "other"]
    assert names(finalists([BEST], BEST, OneEach(), 1)) == ["best"]
