"""Which graphs that a search found are worth building."""

import math
from dataclasses import replace

import pytest

from taso_py.ops.table import parse_graph
from taso_py.rules.match import Matcher
from taso_py.rules.text import read_rules
from taso_py.search.result import Candidate, Limits, SearchResult, SearchStop

GRAPH = parse_graph("graph(x: f32[4]) { return relu(x) }")


@pytest.mark.parametrize(
    ("original_s", "seconds", "kept"),
    [
        (1.0, [0.5, 0.997, 0.999, 1.0, 1.1], [0.5, 0.997]),
        (math.inf, [0.5, math.inf], [0.5, math.inf]),  # an operator has no price
        (0.0, [0.0], []),
    ],
)
def test_graphs_of_about_the_cost_of_the_original_are_not_built(
    original_s: float, seconds: list[float], kept: list[float]
) -> None:
    original = Candidate(GRAPH, GRAPH, original_s, 0)
    rewritten = [replace(original, seconds=each, applied=("rule",)) for each in seconds]
    found = SearchResult(original, (*rewritten, original), SearchStop.EXHAUSTED, 1, 1, 0.0).worthwhile()
    assert [one.seconds for one in found.candidates if one.applied] == kept
    assert original in found.candidates


@pytest.mark.parametrize(
    ("named", "dtype", "allowed"), [("f16", "f16", False), ("float", "f16", False), ("float", "f32", True)]
)
def test_rules_that_may_overflow_are_not_applied_in_half_precision(named: str, dtype: str, allowed: bool) -> None:
    (rule,) = read_rules(
        f"rule a: {named}[N], b: {named}[N], c: {named}[N]\n"
        "source mul(mul(a, c), b) target mul(mul(a, b), c) numerics RANGE"
    )
    graph = parse_graph(f"graph(a: {dtype}[4], b: {dtype}[4], c: {dtype}[4]) {{ return mul(mul(a, c), b) }}")
    matches = Matcher([rule]).matches(graph)
    assert matches
    assert {Limits().allows(match) for match in matches} == {allowed}
