"""Greedy templates, blind and measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from taso_py.ir.graph import Graph
from taso_py.ops.table import parse_graph
from taso_py.rules.match import Matcher
from taso_py.rules.substitution import Substitution
from taso_py.rules.verdict import Outcome
from taso_py.search.result import Limits, SearchResult, SearchStop
from taso_py.search.templates import read_templates, search, search_measured
from taso_py.search.trace import replay
from tests.search.examples import FakeCost
from verify import check

CHEAP_SLICES = FakeCost({"linear": 8.0, "conv2d": 8.0})
DEAR_SLICES = FakeCost({"linear": 8.0, "conv2d": 8.0, "slice": 9.0})


def weights(**types: str) -> str:
    return " ".join(f'{name} = weight{{key="{name}", type=f32[{shape}]}}' for name, shape in types.items())


def attention_inputs() -> Graph:
    """Query, key and value, and something that no template concerns."""
    leaves = weights(q="8,8", k="8,8", v="8,8", a="8", b="8", c="8")
    body = "y = relu(x) q1 = linear(y, q, a) k1 = linear(y, k, b) v1 = linear(y, v, c)"
    return parse_graph(f"graph(x: f32[2,4,8]) {{ {leaves} {body} return add(mul(q1, k1), v1) }}")


def operators(result: SearchResult) -> list[str]:
    return sorted(node.op.name for node in result.best.graph.nodes if node.inputs and not node.is_static)


@pytest.mark.parametrize("template", read_templates(), ids=lambda template: template.id)
def test_a_template_is_proved_in_its_class(template: Substitution) -> None:
    verdict = check(template)
    assert (verdict.outcome, verdict.numerics) == (Outcome.PROVED, template.numerics), verdict.reason


def test_a_wrong_template_is_not_proved() -> None:
    merge = next(t for t in read_templates() if len(t.source.outputs) == 2)
    equal = merge.substitute({"N": 3, "P": 3})
    crossed = replace(equal, source=replace(equal.source, outputs=equal.source.outputs[::-1]))
    assert check(equal).outcome is Outcome.PROVED
    assert check(crossed).outcome is Outcome.REFUTED


def test_query_key_and_value_are_merged() -> None:
    result = search(attention_inputs(), read_templates(), CHEAP_SLICES)
    assert operators(result) == ["add", "linear", "mul", "relu", "slice", "slice", "slice"]
    assert result.best.seconds < result.original.seconds
    assert result.stop_reason is SearchStop.EXHAUSTED


def test_blindly_a_template_is_applied_even_if_it_loses() -> None:
    result = search(attention_inputs(), read_templates(), DEAR_SLICES)
    assert len(result.best.trace.steps) == 1
    assert result.best.seconds > result.original.seconds


def test_measured_a_template_that_loses_is_reverted() -> None:
    result = search_measured(attention_inputs(), read_templates(), DEAR_SLICES)
    assert result.best.trace.steps == ()
    assert result.built > 0
    assert result.stop_reason is SearchStop.EXHAUSTED


def test_batch_norm_is_folded_before_pointwise_convolutions_are_merged() -> None:
    leaves = weights(u="4,3,1,1", v="5,3,1,1", **{f"{n}{i}": s for n, s in (("p", "4"), ("q", "5")) for i in range(4)})
    norms = (
        "a = batch_norm(conv2d(x, u), p0, p1, p2, p3){eps=0.1} b = batch_norm(conv2d(x, v), q0, q1, q2, q3){eps=0.1}"
    )
    graph = parse_graph(f"graph(x: f32[1,3,6,6]) {{ {leaves} {norms} return concat(relu(a), relu(b)){{axis=-3}} }}")
    result = search(graph, read_templates(), CHEAP_SLICES)
    assert operators(result) == ["concat", "conv2d", "relu", "relu", "slice", "slice"]
    folds = [t.id for t in read_templates() if any(n.op.name == "batch_norm" for n in t.source.nodes)]
    assert [rule in folds for rule in result.best.trace.applied] == [True, True, False]


def test_many_layers_are_merged_two_or_three_at_a_time_and_their_slices_tidied_up() -> None:
    leaves = weights(**{f"w{i}": "8,8" for i in range(7)})
    body = " ".join(f"y{i} = relu(linear(x, w{i}))" for i in range(7))
    graph = parse_graph(f"graph(x: f32[2,8]) {{ {leaves} {body} return {', '.join(f'y{i}' for i in range(7))} }}")
    result = search(graph, read_templates(), CHEAP_SLICES)
    assert operators(result) == ["linear"] + ["relu"] * 7 + ["slice"] * 7
    assert Matcher(read_templates()).matches(result.best.graph) == []


def test_attention_written_out_is_the_operator() -> None:
    graph = parse_graph(
        "graph(q: f32[1,2,4,8], k: f32[1,2,4,8], v: f32[1,2,4,8]) { "
        "s = mul(matmul(q, permute(k){order=[-1,-2]}), constant{value=0.25, dtype=f32}) "
        "return matmul(softmax(s){axis=-1}, v) }"
    )
    assert operators(search(graph, read_templates(), CHEAP_SLICES)) == ["attention"]


def test_what_is_no_weight_is_not_merged() -> None:
    graph = parse_graph("graph(x: f32[2,8], a: f32[8,8], b: f32[8,8]) { return linear(x, a), linear(x, b) }")
    assert search(graph, read_templates(), CHEAP_SLICES).best.trace.steps == ()


def test_half_precision_is_spared_what_may_overflow() -> None:
    graph = parse_graph("graph(x: f16[1,2,4,8]) { return matmul(softmax(matmul(x, permute(x){order=[-1,-2]})), x) }")
    assert search(graph, read_templates(), CHEAP_SLICES).best.trace.steps == ()


def test_the_trace_replays_and_the_budget_is_kept() -> None:
    graph = attention_inputs()
    result = search(graph, read_templates(), CHEAP_SLICES)
    assert replay(graph, result.best.trace) == result.best.graph
    norms = " ".join(f"y{i} = mul(y{i - 1}, sigmoid(y{i - 1}))" for i in range(1, 6))
    chain = parse_graph(f"graph(y0: f32[4]) {{ {norms} return y5 }}")
    limited = search(chain, read_templates(), CHEAP_SLICES, Limits(budget=2))
    assert (limited.built, limited.stop_reason) == (2, SearchStop.BUDGET)
