"""Bodies of control flow taken out, put back, and found again by a trace."""

from __future__ import annotations

from dataclasses import replace

import pytest

from taso_py.ir.graph import Graph
from taso_py.ir.node import Value, make
from taso_py.ir.operator import AttributeValue, Input, Ref, Weight
from taso_py.ir.types import DType, TensorType
from taso_py.ops.elementwise import Relu
from taso_py.ops.layout import Order
from taso_py.ops.nested import ControlFlow, Nested
from taso_py.ops.opaque import Opaque
from taso_py.ops.table import parse_graph
from taso_py.rules.apply import apply
from taso_py.rules.match import Match, Matcher
from taso_py.rules.text import read_rules
from taso_py.search.bodies import Body
from taso_py.search.cost import static_bytes
from taso_py.search.follow import follow
from taso_py.search.result import Candidate, Limits
from taso_py.search.trace import (
    BodyTrace,
    Trace,
    TraceError,
    make_trace,
    read_trace,
    replay,
    replay_bodies,
    write_trace,
)
from tests.search.examples import FakeCost

RULES = read_rules("""rule x: float[..G,M,K], a: float[N,K], c: float[]
  source mul(linear(x, a), c)
  target linear(x, mul(a, c))
  numerics RANGE

rule x: float[..B]
  source relu(relu(x))
  target relu(x)
""")
SCALED = "graph(x0: f32[2,3], x1: f32[3,3]) { return mul(linear(x0, x1), constant{value=2.0, dtype=f32}) }"
PLAIN = "graph(x0: f32[2,3], x1: f32[3,3]) { return linear(x0, x1) }"
TWICE = "graph(x0: f32[2,3], x1: f32[3,3]) { return relu(relu(x0)) }"


def outer(*bodies: str, order: Order = (0, 1), static: bool = True, effect: bool = False) -> Graph:
    """A condition over an input and a weight (or another input), with these bodies."""
    matrix = TensorType(DType.F32, (3, 3))
    x = make(Input("x", TensorType(DType.F32, (2, 3))))
    asked = make(Input("p", TensorType(DType.BOOL, ())))
    other = make(Weight("w", matrix) if static else Input("w", matrix))
    texts: list[AttributeValue] = []
    for body in bodies:
        graph = parse_graph(body)
        draw = Opaque("aten.rand_like.default", (Ref(0),), (x.types[0],), is_pure=False)
        effects = (make(draw, [graph.inputs[0].value], 0),) if effect else ()
        texts.append(Nested("tuple", (order,), replace(graph, effects=effects)).text)
    op = Opaque("higher_order.cond", (Ref(0), *texts, (Ref(1), Ref(2))), x.types, is_pure=False)
    node = make(op, [asked.value, x.value, other.value], 0)
    return Graph((x, asked) if static else (x, asked, other), (node.value,), (node,))


def step(graph: Graph) -> tuple[Match, Graph]:
    """The first rule that applies, and what it gives."""
    (match, *_) = Matcher(RULES).matches(graph)
    after = apply(graph, match)
    assert after is not None
    return match, after


def rewritten(graph: Graph, *places: int) -> tuple[Graph, tuple[BodyTrace, ...]]:
    """The graph with a step taken in some of its bodies, and its trace."""
    told: list[BodyTrace] = []
    for place in places:
        node = graph.effects[0]
        body = Body.of(node, place)
        assert body is not None
        match, inner = step(body.graph)
        graph, _ = body.put_back(graph, inner)
        told.append(BodyTrace(node.digest, place, make_trace(body.graph, [(match, inner)], inner), graph.digest))
    return graph, tuple(told)


def bodies(graph: Graph) -> list[str]:
    flow = ControlFlow.of(graph.effects[0])
    assert flow is not None
    return [" ".join(body.text.split()) for body in flow.bodies]


def test_an_operand_that_is_static_is_a_weight_of_the_body() -> None:
    given = outer(SCALED, PLAIN)
    body = Body.of(given.effects[0], 0)
    assert body is not None
    leaves = {node.op.key: node.is_static for node in body.graph.nodes if isinstance(node.op, Input | Weight)}
    assert leaves == {"x0": False, "x1": True}
    varying = Body.of(outer(SCALED, PLAIN, static=False).effects[0], 0)
    assert varying is not None
    assert not any(isinstance(node.op, Weight) for node in varying.graph.nodes)


def test_what_a_body_computes_from_weights_is_computed_outside() -> None:
    """The other branch still reads the weight itself; where none does, it is an operand no longer."""
    graph, _ = rewritten(outer(SCALED, PLAIN), 0)
    first, second = bodies(graph)
    assert "linear(x0, x2)" in first
    assert "linear(x0, x1)" in second
    assert "graph(x0: f32[2,3], x1: f32[3,3], x2: f32[3,3])" in first
    assert len(graph.effects[0].inputs) == 4
    assert graph.effects[0].inputs[-1].node.is_static
    both, _ = rewritten(outer(SCALED, SCALED), 0, 1)
    assert len(both.effects[0].inputs) == 3, "both read it"
    assert all("x1:" not in text for text in bodies(both))
    assert both.effects[0].types == outer(SCALED, PLAIN).effects[0].types


def test_what_depends_on_the_call_stays_inside() -> None:
    graph, _ = rewritten(outer(SCALED, PLAIN, static=False), 0)
    assert len(graph.effects[0].inputs) == 3
    assert "mul(" in bodies(graph)[0]


def test_a_changed_result_lies_in_memory_as_before() -> None:
    orders: tuple[Order, ...] = ((0, 1), (1, 0), None)
    texts = [bodies(rewritten(outer(TWICE, PLAIN, order=order), 0)[0]) for order in orders]
    assert [text[0].count("aten.contiguous.default") for text in texts] == [1, 1, 0]
    assert [text[0].count("permute") for text in texts] == [0, 2, 0]
    assert all("contiguous" not in text[1] for text in texts)


def test_a_body_with_effects_is_left_alone() -> None:
    assert Body.of(outer(SCALED, PLAIN, effect=True).effects[0], 0) is None
    assert Body.of(outer(SCALED, PLAIN).effects[0], 2) is None


def around(target: str, *, draws: bool = False) -> Graph:
    """A condition whose first body holds another operator of control flow, and applies relu twice to its result."""
    (plain,) = outer(PLAIN, PLAIN, static=False).effects
    (inner,) = outer(SCALED, TWICE, static=False, effect=draws).effects
    assert isinstance(plain.op, Opaque)
    assert isinstance(inner.op, Opaque)
    x, w = (make(Input(name, value.type)) for name, value in zip(("x0", "x1"), inner.inputs[1:], strict=True))
    asked = make(Opaque("aten.any.default", (Ref(0),), (inner.inputs[0].type,)), [x.value])
    node = make(replace(inner.op, target=target), [asked.value, x.value, w.value], 0)
    made = make(Relu(), [make(Relu(), [node.value]).value])
    body = Nested("tuple", ((0, 1),), Graph((x, w), (made.value,), (node,)))
    head, _, other, operands = plain.op.arguments
    whole = make(replace(plain.op, arguments=(head, body.text, other, operands)), plain.inputs, 0)
    return Graph(tuple(value.node for value in plain.inputs), (whole.value,), (whole,))


def test_a_body_around_control_flow_that_surely_ends_is_rewritten() -> None:
    graph = around("higher_order.cond")
    before, _ = bodies(graph)
    after, _ = bodies(rewritten(graph, 0)[0])
    assert before.count("relu") - after.count("relu") == 1
    assert [text.count("higher_order.cond") for text in (before, after)] == [1, 1]


def test_a_body_around_what_may_not_end_or_draws_is_left_alone() -> None:
    for graph in (around("higher_order.while_loop"), around("higher_order.cond", draws=True)):
        assert ControlFlow.of(graph.effects[0]) is not None
        assert Body.of(graph.effects[0], 0) is None
        assert Body.of(graph.effects[0], 1) is not None


@pytest.fixture
def trace() -> Trace:
    graph, told = rewritten(outer(SCALED, TWICE), 0, 1)
    return make_trace(outer(SCALED, TWICE), (), graph, told)


def test_a_trace_of_bodies_survives_a_round_trip_and_is_replayed(trace: Trace) -> None:
    assert len(trace.applied) == 2
    assert read_trace(write_trace(trace)) == trace
    graph, _ = rewritten(outer(SCALED, TWICE), 0, 1)
    assert replay(outer(SCALED, TWICE), read_trace(write_trace(trace))) == graph
    replayed = list(replay_bodies(outer(SCALED, TWICE), trace))
    assert [one.body.place for one in replayed] == [0, 1]
    assert replayed[-1].outer == graph


def test_a_body_that_was_changed_is_noticed(trace: Trace) -> None:
    first = trace.bodies[0]
    for wrong, reason in (
        (replace(first, place=1), "there is none where"),
        (replace(first, node="0" * 32), "there is none where"),
        (replace(first, result="0" * 32), "give another graph"),
        (replace(first, trace=replace(first.trace, steps=())), "there is none where"),
    ):
        with pytest.raises(TraceError, match=f"body 1: .*{reason}"):
            replay(outer(SCALED, TWICE), replace(trace, bodies=(wrong,)))
    changed = replace(first.trace.steps[0], result="0" * 32)
    moved = replace(first, trace=replace(first.trace, steps=(changed,)))
    with pytest.raises(TraceError, match="gives another graph"):
        replay(outer(SCALED, TWICE), replace(trace, bodies=(moved,)))
    lost = write_trace(trace).replace(f"rule {first.trace.steps[0].rule}", "rule r000000000000")
    with pytest.raises(Exception, match=r"identifier|lacks the rule"):
        read_trace(lost)


def test_a_trace_of_bodies_is_followed(trace: Trace) -> None:
    found = follow(outer(SCALED, TWICE), trace, RULES, FakeCost(), Limits())
    assert found.best.trace == trace
    assert found.best.applied == trace.applied
    with pytest.raises(TraceError, match="the database has no rule"):
        follow(outer(SCALED, TWICE), trace, RULES[:1], FakeCost(), Limits())


def test_a_candidate_tells_of_its_bodies(trace: Trace) -> None:
    graph, told = rewritten(outer(SCALED, TWICE), 0, 1)
    candidate = Candidate(outer(SCALED, TWICE), graph, 1.0, 0, trace.applied, bodies=told)
    assert candidate.trace == trace
    with pytest.raises(TraceError, match="lead to another graph"):
        _ = replace(candidate, bodies=told[:1]).trace


def test_values_that_are_computed_outside_are_stored() -> None:
    before = outer(SCALED, SCALED)
    after, _ = rewritten(before, 0)
    value = Value(after.effects[0].inputs[-1].node, 0)
    assert static_bytes(FakeCost(), after) == static_bytes(FakeCost(), before) + FakeCost().value_bytes(value)
