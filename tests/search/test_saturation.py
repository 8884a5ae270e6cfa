"""Equality saturation: what is equal, what is cheapest, and the steps that lead there."""

from __future__ import annotations

from itertools import count

import pytest

from taso_py.ir.graph import Graph
from taso_py.ops.table import parse_graph
from taso_py.rules.pattern import compile_pattern
from taso_py.search.egraph import egraph_of
from taso_py.search.extract import PASSES, choose_nodes, extract_graph
from taso_py.search.result import Limits, SearchStop
from taso_py.search.saturation import search
from taso_py.search.trace import replay
from tests.search.examples import FakeCost, products, read

COST = FakeCost()


def chain(inputs: str, body: str) -> Graph:
    return parse_graph(f"graph({inputs}) {{ {body} }}")


SUMS = chain("a: f32[4], b: f32[4], c: f32[4], d: f32[4]", "return add(add(mul(a, b), c), mul(a, d))")


def test_values_are_equal_modulo_congruence() -> None:
    graph = chain("x: f32[4], y: f32[4]", "return relu(x), relu(y), tanh(relu(x)), tanh(relu(y))")
    made = egraph_of(graph)
    x, y = (node.value for node in graph.inputs)
    relu_x, relu_y, tanh_x, tanh_y = graph.outputs
    assert len({made.find(value) for value in graph.outputs}) == 4
    assert made.union(x, y)
    assert made.find(relu_x) == made.find(relu_y)
    assert made.find(tanh_x) == made.find(tanh_y)
    assert made.find(relu_x) != made.find(tanh_x)
    assert len(made) == 4  # two inputs, and what are now the same functions of them
    assert not made.union(tanh_x, tanh_y)


def test_a_rule_matches_what_no_single_graph_shows() -> None:
    """relu(z) is relu(relu(x)) once it is known that z is relu(x)."""
    graph = chain("x: f32[4], z: f32[4]", "return relu(x), relu(z)")
    made = egraph_of(graph)
    pattern = compile_pattern(read("idempotent")[0])
    assert [m for node in made.nodes for m in made.matches(pattern, node)] == []
    made.union(graph.inputs[1].value, graph.outputs[0])
    assert len([m for node in tuple(made.nodes) for m in made.matches(pattern, node)]) == 1


def test_what_nothing_is_known_of_has_no_class() -> None:
    made = egraph_of(chain("x: f32[4]", "return relu(x)"))
    assert made.class_of(chain("x: f32[4]", "return relu(x)").outputs[0]) is not None
    assert made.class_of(chain("x: f32[4]", "return tanh(tanh(x))").outputs[0]) is None


def test_extraction_pays_for_what_is_shared_once() -> None:
    graph = chain("x: f32[4]", "a = exp(tanh(x)) b = sigmoid(x) return add(a, a), b")
    made = egraph_of(graph)
    total, other = graph.outputs
    # The sum costs 6; the products cost 2, for the sigmoid is there anyway, and is read three times for nothing more.
    shared = chain("x: f32[4]", "s = sigmoid(x) return mul(mul(s, s), s)").outputs[0]
    made.union(total, made.add(shared))
    best = extract_graph(made, graph, choose_nodes(made, FakeCost({"mul": 1.0})))
    assert best is not None
    assert best.outputs == (shared, other)


def test_extraction_chooses_for_all_classes_however_many_looks_that_takes() -> None:
    """One node of each level is looked at last, since it was renewed: a look reaches one level more."""
    levels = 2 * PASSES
    lines = [f"i{n} = relu(f{n}) o{n} = relu(i{n}) f{n + 1} = add(o{n}, i{n})" for n in range(levels)]
    graph = chain("f0: f32[4]", " ".join([*lines, f"return f{levels}"]))
    made = egraph_of(graph)
    for node in graph.nodes:
        if node.op.name == "relu" and node.inputs[0].node.op.name == "relu":
            made.union(node.value, node.inputs[0])
    best = extract_graph(made, graph, choose_nodes(made, COST))
    assert best is not None
    assert sum(node.op.name == "relu" for node in best.nodes) == levels


def test_what_is_cut_short_is_not_exhausted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taso_py.search.saturation.NODES", 6)
    assert search(SUMS, read("associate", "factor"), COST).stop_reason is SearchStop.STALLED


def test_a_gain_behind_a_step_without_gain_is_found_and_replays() -> None:
    result = search(SUMS, read("associate", "factor"), COST)
    assert sum(node.op.name == "mul" for node in result.best.graph.nodes) == 1
    assert result.stop_reason is SearchStop.EXHAUSTED
    assert replay(SUMS, result.best.trace) == result.best.graph
    assert "reached step by step in 1 of 1 regions" in result.notes[-1]


def test_rules_with_several_outputs_are_left_out_and_counted() -> None:
    result = search(products(3), read("merge", "slices", "idempotent"), COST)
    assert result.best.trace.steps == ()
    assert result.notes[0].startswith("1 rules with several outputs were left out")


def test_a_collapse_and_what_it_makes_possible() -> None:
    graph = chain("x: f32[4], y: f32[4]", "return add(mul(x, relu(relu(relu(y)))), mul(x, relu(y)))")
    result = search(graph, read("idempotent", "factor"), COST)
    assert sorted(n.op.name for n in result.best.graph.nodes if n.inputs) == ["add", "mul", "relu"]
    assert replay(graph, result.best.trace) == result.best.graph


def test_expansion_without_end_is_limited() -> None:
    result = search(SUMS, read("associate", "factor", "expand"), COST, Limits(budget=50))
    assert result.best.seconds < result.original.seconds


@pytest.mark.parametrize("size", [2, 6])
def test_large_graphs_are_saturated_region_by_region(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taso_py.search.saturation.WHOLE", 20)
    cells = [f"h{i + 1} = tanh(add(add(mul(h{i}, b), c), mul(h{i}, relu(relu(d)))))" for i in range(size)]
    graph = chain("h0: f32[4], b: f32[4], c: f32[4], d: f32[4]", " ".join([*cells, f"return h{size}"]))
    result = search(graph, read("associate", "factor", "idempotent"), COST)
    assert sum(node.op.name == "mul" for node in result.best.graph.nodes) == size
    assert replay(graph, result.best.trace) == result.best.graph


def test_a_rule_that_matches_nowhere_heeds_the_clock() -> None:
    # Each look at the clock takes a second.
    ticks = count()
    limits = Limits(seconds=15.0, now=lambda: float(next(ticks)))
    inputs, results = ", ".join(f"x{i}: f32[4]" for i in range(25)), ", ".join(f"relu(x{i})" for i in range(25))
    many = chain(inputs, f"return {results}")
    assert search(many, read("idempotent"), COST, limits).stop_reason is SearchStop.TIME


def test_a_goal_that_is_given_up_is_not_the_end_of_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taso_py.search.saturation.DETOURS", -100)
    assert search(SUMS, read("associate", "factor"), COST).stop_reason is SearchStop.STALLED
