"""Reach: a rule touches the subgraphs that its operators lie in, and none without it."""

from __future__ import annotations

import pytest

from experiments.reach import cheaper_forms, places, tally_subgraphs
from taso_py.ops.table import parse_graph
from taso_py.rules.match import Matcher
from taso_py.rules.text import read_rules

FACTOR = "rule a: float[..B], b: float[..B], c: float[..B] source add(mul(a, b), mul(a, c)) target mul(a, add(b, c))"
SPREAD = "rule a: float[..B], b: float[..B], c: float[..B] source mul(a, add(b, c)) target add(mul(a, b), mul(a, c))"
NEGATED = "rule a: float[..B], b: float[..B] source sub(a, b) target add(a, mul(b, constant{value=-1.0, dtype=float}))"
DROPPED = "rule a: float[..B] source relu(a) target a"
PRODUCTS = parse_graph("graph(x: f32[64,64], y: f32[64,64], z: f32[64,64]) { return relu(add(mul(x, y), mul(x, z))) }")


def matcher(*rules: str) -> Matcher:
    return Matcher(read_rules("\n".join(rules)))


def test_a_rule_touches_the_subgraphs_that_its_operators_lie_in() -> None:
    (place,) = places(PRODUCTS, matcher(FACTOR))
    assert sorted(node.op.name for node in place.nodes) == ["add", "mul", "mul"]
    assert place.is_cheaper
    tally = tally_subgraphs(PRODUCTS, [place])
    assert tally.all[2] == {"add(a, mul(b, d))": 2, "relu(add(a, b))": 1}
    assert tally.untouched[2] == tally.all[2]
    factored = "add(mul(a, b), mul(a, d))"
    assert tally.all[3] == {factored: 1, "relu(add(a, mul(b, d)))": 2}
    assert tally.untouched[3] == {"relu(add(a, mul(b, d)))": 2}
    assert tally.all[4] == {f"relu({factored})": 1}
    assert not tally.untouched[4]
    assert not tally.all[5]


def test_without_the_rule_nothing_is_touched() -> None:
    assert not places(PRODUCTS, matcher())
    tally = tally_subgraphs(PRODUCTS, places(PRODUCTS, matcher(SPREAD)))
    assert tally.untouched == tally.all
    assert tally.all[4].total() == 1


def test_a_dearer_form_is_reached_but_not_cheaper() -> None:
    graph = parse_graph("graph(x: f32[64,64], y: f32[64,64], z: f32[64,64]) { return mul(x, add(y, z)) }")
    (place,) = places(graph, matcher(SPREAD))
    assert not place.is_cheaper
    assert not cheaper_forms([place])
    assert cheaper_forms(places(PRODUCTS, matcher(FACTOR))) == {"add(mul(a, b), mul(a, d))": 1}


@pytest.mark.parametrize(("rule", "reached"), [(NEGATED, 0), (DROPPED, 1)])
def test_a_rule_about_one_operator_counts_only_at_a_gain(rule: str, reached: int) -> None:
    graph = parse_graph("graph(x: f32[64,64], y: f32[64,64]) { return relu(sub(x, y)) }")
    found = places(graph, matcher(rule))
    assert len(found) == reached
    tally = tally_subgraphs(graph, found)
    assert len(tally.untouched[2]) == 1 - reached


def test_weights_are_no_operators_that_run() -> None:
    text = """graph(x: f32[4]) {
      w = weight{key="w", type=f32[4]}
      return add(mul(x, w), mul(x, relu(w)))
    }"""
    (place,) = places(parse_graph(text), matcher(FACTOR))
    assert len(place.nodes) == 3
    assert tally_subgraphs(parse_graph(text), []).all[3] == {"add(mul(a, w), mul(a, w))": 1}
    static = """graph(x: f32[4]) {
      w = weight{key="w", type=f32[4]}
      u = weight{key="u", type=f32[4]}
      return add(x, add(mul(w, u), mul(w, relu(u))))
    }"""
    assert not places(parse_graph(static), matcher(FACTOR))
