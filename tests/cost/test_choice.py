"""The joint choice of kernels and memory formats: against brute force, with invented prices."""

from __future__ import annotations

import math

import pytest

from fuzz.prices import InventedPrices
from taso_py.backend.plan import Format, Plan
from taso_py.cost import packing
from taso_py.cost.choice import Choice, choose
from taso_py.ir.graph import Graph
from taso_py.ir.node import Value, is_running
from taso_py.kernels.tile import Cover, Formats
from taso_py.ops.table import parse_graph
from tests.prices import least_seconds, plan_seconds

HEADER = """graph(x: f32[1,4,6,6], y: f32[1,4,6,6]) {
  w = weight{key="w", type=f32[4,4,3,3]} u = weight{key="u", type=f32[4,4,1,1]} b = weight{key="b", type=f32[4]}
  c = conv2d(x, w){padding=[1,1]} d = conv2d(y, u)
"""
GRAPHS = [
    "return relu(c)",
    "return relu(add(c, d))",
    "s = relu(add(c, d)) return s, conv2d(s, w){padding=[1,1]}",
    "return relu(c), sigmoid(c)",
    "m = max_pool2d(relu(c)){kernel=[3,3], stride=[1,1], padding=[1,1]} return conv2d(concat(m, d){axis=-3}, "
    'weight{key="q", type=f32[2,8,1,1]})',
    "return permute(relu(c)){order=[-4,-2,-1,-3]}, reshape(add(d, y)){shape=[144]}",
    "return relu(batch_norm(c, b, b, b, b){eps=0.1})",
    'return add(x, opaque(c){target="aten.cumsum.default", arguments=[$0,1], types=[f32[1,4,6,6]]})',
]


def _taken(graph: Graph, plan: Plan, prices: InventedPrices) -> tuple[list[Cover], list[Formats]]:
    """The covers and formats of a plan, plain ones included."""
    inside = {node for step in plan.steps.values() if step.kernel for node in step.kernel.nodes[:-1]}
    taken: list[Cover] = []
    pairs: list[Formats] = []
    for node in graph.nodes:
        if is_running(node) and node not in inside:
            step = plan.step(node)
            taken.append(step.kernel if isinstance(step.kernel, Cover) else prices.covers(node)[0])
            pairs.append((step.reads, step.gives))
    return taken, pairs


def _check(graph: Graph, choice: Choice, prices: InventedPrices) -> None:
    taken, pairs = _taken(graph, choice.plan, prices)
    assert sorted(node.digest for cover in taken for node in cover.nodes) == sorted(
        node.digest for node in graph.nodes if is_running(node)
    )
    assert choice.seconds == pytest.approx(plan_seconds(graph, taken, pairs, prices))


@pytest.mark.parametrize("body", GRAPHS)
@pytest.mark.parametrize("seed", range(6))
def test_the_choice_is_exact_for_its_covers_and_never_worse_than_one_format_throughout(body: str, seed: int) -> None:
    graph, prices = parse_graph(f"{HEADER} {body} }}"), InventedPrices(seed)
    choice = choose(graph, prices)
    _check(graph, choice, prices)
    taken, _ = _taken(graph, choice.plan, prices)
    assert choice.seconds == pytest.approx(least_seconds(graph, prices, list(Format), taken))
    for format_ in Format:
        throughout = choose(graph, prices, formats=[format_])
        _check(graph, throughout, prices)
        assert choice.seconds <= throughout.seconds + 1e-12
    assert choice.seconds >= least_seconds(graph, prices, list(Format)) - 1e-12


@pytest.mark.parametrize("body", GRAPHS)
def test_the_choice_is_near_the_best_of_all(body: str) -> None:
    """Covers are taken before formats, so that the best of all may be missed; on the average it is not by much."""
    graph = parse_graph(f"{HEADER} {body} }}")
    ratios: list[float] = []
    for seed in range(20):
        prices = InventedPrices(seed)
        ratios.append(choose(graph, prices).seconds / least_seconds(graph, prices, list(Format)))
    assert sum(ratios) / len(ratios) < 1.02


def test_a_node_that_others_read_is_not_computed_inside() -> None:
    graph, prices = parse_graph(f"{HEADER} return relu(c), sigmoid(c) }}"), InventedPrices(0)
    for cover in (cover for node in graph.nodes for cover in prices.covers(node)):
        # Fusing would always pay.
        for pair in cover.formats:
            prices.drawn[(cover.name, *(node.digest for node in cover.nodes), pair[0].value)] = 1.0 / len(cover.nodes)
    steps = choose(graph, prices).plan.steps.values()
    assert all(step.kernel is None or len(step.kernel.nodes) == 1 for step in steps)


def test_formats_are_left_alone_where_nothing_depends_on_them() -> None:
    graph = parse_graph("graph(x: f32[2,3,4,5]) { return softmax(relu(x)){axis=-1} }")
    prices = InventedPrices(1)
    assert choose(graph, prices).plan.steps == {}
    assert all(key[-1] == "dense" for key in prices.drawn if isinstance(key, tuple))


class _SomeUnknown(InventedPrices):
    """Latencies of which some are not known: of covers by their place in a format, and of all conversions."""

    def __init__(self, seed: int, known: frozenset[Format]) -> None:
        super().__init__(seed)
        self._known = known

    def cover_seconds(self, cover: Cover, formats: Formats) -> float:
        return super().cover_seconds(cover, formats) if formats[0] in self._known else math.inf

    def conversion_seconds(self, value: Value, format_: Format) -> float:
        return math.inf


@pytest.mark.parametrize("body", GRAPHS)
@pytest.mark.parametrize("known", [frozenset[Format](), frozenset({Format.DENSE}), frozenset({Format.CHANNELS_LAST})])
def test_what_is_not_known_is_no_obstacle(body: str, known: frozenset[Format]) -> None:
    graph = parse_graph(f"{HEADER} {body} }}")
    seconds = choose(graph, _SomeUnknown(0, known)).seconds
    assert math.isfinite(seconds) == (known == {Format.DENSE}), "arguments and results are dense"


@pytest.mark.parametrize("body", GRAPHS)
def test_where_too_many_covers_overlap_every_node_is_computed_once_all_the_same(
    body: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "MOST_EXACT", 0)
    graph = parse_graph(f"{HEADER} {body} }}")
    for seed in range(6):
        prices = InventedPrices(seed)
        _check(graph, choose(graph, prices), prices)
