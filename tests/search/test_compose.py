"""Compositions: what was found for regions becomes one graph, with the steps that lead to it."""

from __future__ import annotations

from typing import Any

import pytest

from taso_py.ir.graph import Graph
from taso_py.ir.node import Value, make
from taso_py.ir.operator import Input
from taso_py.ops.signs import sign_of
from taso_py.ops.table import parse_graph
from taso_py.rules.match import Matcher
from taso_py.rules.text import read_rules
from taso_py.search import compose, transfer
from taso_py.search.backtracking import Backtracking
from taso_py.search.compose import Composition, RegionInstance
from taso_py.search.explorer import Explorer
from taso_py.search.partition import Partition
from taso_py.search.region import GraphRegion
from taso_py.search.result import Candidate, Limits, SearchResult
from taso_py.search.trace import TraceError, replay
from tests.search.examples import FakeCost, blocks, read

SHORTER = "rule a: float[..B] source tanh(exp(a)) target sigmoid(a)"
LONGER = "rule a: float[..B] source sigmoid(a) target tanh(exp(a))"
IDEMPOTENT = "rule a: float[..B] source relu(relu(a)) target relu(a)"


def region(values: tuple[Value, ...], outputs: tuple[Value, ...]) -> GraphRegion:
    """The region of a graph that computes outputs from values."""
    leaves = {
        value: make(Input(f"r{number}", value.type, sign=sign_of(value))).value for number, value in enumerate(values)
    }
    whole = Graph((), outputs)
    inside = whole.map(lambda node, inputs: make(node.op, inputs) if inputs else node, leaves)
    return GraphRegion(Graph(tuple(leaf.node for leaf in leaves.values()), inside.outputs), values, outputs)


def place(number: int, of: GraphRegion, rule: str) -> tuple[RegionInstance, Candidate]:
    """A region with what one application of a rule makes of it."""
    (match,) = Matcher(read_rules(rule)).matches(of.graph)
    after = of.graph.replace(dict(zip(match.outputs, compose.instantiate(match) or (), strict=True)))
    found = Candidate(of.graph, after, 0.0, 0, (match.rule.id,), ((match, after),))
    return RegionInstance(number, of, of.graph, {node: node for node in of.graph.nodes}), found


def composed(graph: Graph, *chosen: tuple[RegionInstance, Candidate | None]) -> Candidate:
    made = Composition(Candidate(graph, graph, 0.0, 0), chosen)
    return Candidate(graph, made.graph, 0.0, 0, made.applied, made)


def test_each_region_reads_what_the_others_became() -> None:
    graph = parse_graph("graph(x: f32[4]) { p = tanh(exp(x)) return tanh(exp(p)) }")
    (x,), (q,) = (graph.inputs[0].value,), graph.outputs
    p = q.node.inputs[0].node.inputs[0]
    first, second = region((x,), (p,)), region((p,), (q,))
    found = composed(graph, place(0, first, SHORTER), place(1, second, SHORTER))
    assert found.graph == parse_graph("graph(x: f32[4]) { return sigmoid(sigmoid(x)) }")
    assert len(found.applied) == 2
    assert replay(graph, found.trace) == found.graph


def test_a_region_stays_as_it_is_where_two_of_its_inputs_became_one() -> None:
    graph = parse_graph("graph(x: f32[4]) { p = relu(x) q = relu(p) return add(relu(p), tanh(exp(mul(p, q)))) }")
    x, (end,) = graph.inputs[0].value, graph.outputs
    q = next(value for value in end.node.inputs if value.node.op.name == "relu")
    p = q.node.inputs[0]
    first, second = region((x,), (p, q)), region((p, q), (end,))
    found = composed(graph, place(0, first, IDEMPOTENT), place(1, second, SHORTER))
    assert found.graph == parse_graph("graph(x: f32[4]) { p = relu(x) return add(p, tanh(exp(mul(p, p)))) }")
    assert len(found.applied) == 1
    assert replay(graph, found.trace) == found.graph


@pytest.mark.parametrize(
    ("first", "applied"),
    [
        ("rule a: float[..B] source exp(relu(a)) target exp(abs(a))", 2),
        ("rule a: float[..B] source exp(relu(a)) target sub(tanh(a), a)", 1),
    ],
)
def test_a_region_stays_as_it_is_where_a_sign_is_not_evident_any_more(first: str, applied: int) -> None:
    graph = parse_graph("graph(x: f32[4]) { p = exp(relu(x)) return relu(tanh(p)) }")
    (x,), (q,) = (graph.inputs[0].value,), graph.outputs
    p = q.node.inputs[0].node.inputs[0]
    before, after = region((x,), (p,)), region((p,), (q,))
    nothing = "rule a: positive float[..B] source relu(tanh(a)) target tanh(a)"
    found = composed(graph, place(0, before, first), place(1, after, nothing))
    assert len(found.applied) == applied
    assert replay(graph, found.trace) == found.graph


def test_steps_that_lead_elsewhere_give_no_trace() -> None:
    graph = parse_graph("graph(x: f32[4]) { return tanh(exp(x)), sigmoid(x) }")
    x, (p, q) = graph.inputs[0].value, graph.outputs
    found = composed(graph, place(0, region((x,), (p,)), SHORTER), place(1, region((x,), (q,)), LONGER))
    assert found.graph == parse_graph("graph(x: f32[4]) { return sigmoid(x), tanh(exp(x)) }")
    with pytest.raises(TraceError, match="lead to another graph"):
        _ = found.trace


def counted(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> list[None]:
    """Grows by one with each call of a function."""
    calls: list[None] = []
    function = getattr(module, name)

    def counting(*arguments: Any) -> Any:
        calls.append(None)
        return function(*arguments)

    monkeypatch.setattr(module, name, counting)
    return calls


def partitioned(graph: Graph) -> SearchResult:
    strategy: type[Explorer] = Backtracking
    return Partition(graph, Matcher(read("merge", "idempotent")), FakeCost(), Limits(), None, strategy).run()


def test_steps_are_derived_when_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    derived = counted(monkeypatch, compose, "rewire")
    best = partitioned(blocks(8)).best
    assert len(best.applied) > 8
    assert not derived
    assert len(best.trace.steps) == len(best.applied) == len(derived)


def test_putting_twice_as_many_blocks_together_makes_twice_as_many_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    made = counted(monkeypatch, transfer, "remake")
    partitioned(blocks(10))
    few = len(made)
    partitioned(blocks(20))
    assert few > 100
    assert len(made) - few < 2.5 * few
