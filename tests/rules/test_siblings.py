"""Lemmas of many operators that read one value: which are merged, and that it follows from rules for two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from taso_py.ir.graph import Graph
from taso_py.ops.table import parse_graph
from taso_py.rules.apply import apply
from taso_py.rules.index import MOST_SIBLINGS
from taso_py.rules.lemma import LEMMA, Lemmas
from taso_py.rules.match import Match, Matcher
from taso_py.rules.substitution import Substitution
from taso_py.rules.text import read_rules, write_rules
from taso_py.rules.verdict import Numerics, Outcome
from taso_py.search.backtracking import search
from taso_py.search.result import Candidate, Limits
from taso_py.search.trace import read_trace, replay, write_trace
from tests.search import examples
from tests.search.examples import FakeCost, read
from verify import prove

COLUMNS, ROWS = RULES = read("merge", "stack")
(THREE,) = read_rules(examples.THREE)
MANY = MOST_SIBLINGS + 2


def heads(sizes: Sequence[int], product: str = "matmul(x, w{0})", more: str = "") -> Graph:
    """Products of one value with weights of so many columns."""
    weights = "".join(f', w{i} = weight{{key="w{i}", type=f32[8,{size}]}}' for i, size in enumerate(sizes))
    body = weights.replace(", w", "\n  w")
    results = ", ".join(f"tanh({product.format(i)})" for i in range(len(sizes)))
    return parse_graph(f"graph(x: f32[3,8], y: f32[3,8], z: f32[2,8]) {{{body}\n return {results}{more} }}")


def towers(sizes: Sequence[int]) -> Graph:
    """Products of values of so many rows with one weight."""
    variables = ", ".join(f"x{i}: f32[{size},8]" for i, size in enumerate(sizes))
    results = ", ".join(f"tanh(matmul(x{i}, w))" for i in range(len(sizes)))
    return parse_graph(f'graph({variables}) {{ w = weight{{key="w", type=f32[8,5]}} return {results} }}')


def lemmas(graph: Graph, rules: Sequence[Substitution] = RULES) -> list[Match]:
    return list(Lemmas(rules).matches(graph, set()))


@pytest.mark.parametrize("graph", [heads([4] * MANY), heads([*range(1, MANY + 1)]), towers([1, 3] * MANY)])
def test_many_that_read_one_value_are_one(graph: Graph) -> None:
    (match,) = lemmas(graph)
    after = apply(graph, match)
    assert after is not None
    kinds = [node.op.name for node in after.nodes if not node.is_static]
    assert kinds.count("matmul") == 1
    assert kinds.count("slice") == len(graph.outputs)
    assert [node.op.name for node in match.rule.target.nodes].count("concat") == 1
    assert match.rule.numerics is Numerics.REORDER
    assert match.rule.proof == LEMMA
    assert prove(match.rule).outcome is Outcome.PROVED


def test_weights_of_the_type_of_what_they_share_are_not_taken_for_it() -> None:
    sizes = [*range(1, 8), 8, 8, 8]
    weights = "\n".join(f'w{i} = weight{{key="w{i}", type=f32[8,{size}]}}' for i, size in enumerate(sizes))
    results = ", ".join(f"matmul(x, w{i})" for i in range(len(sizes)))
    graph = parse_graph(f"graph(x: f32[8,8]) {{\n{weights}\n return {results} }}")
    (match,) = lemmas(graph)
    after = apply(graph, match)
    assert after is not None
    (product,) = (node for node in after.nodes if node.op.name == "matmul")
    assert product.inputs[0] == graph.inputs[0].value
    joined = product.inputs[1].node
    assert joined.op.name == "concat"
    assert sorted(value.node.digest for value in joined.inputs) == sorted(
        node.digest for node in graph.nodes if node.is_static
    )


def test_some_are_left_out_where_no_rule_merges_them() -> None:
    deeper = heads([3] * MANY, more=", matmul(x, matmul(permute(x){order=[-1,-2]}, matmul(x, w0)))")
    for graph in (heads([3] * MANY, more=", matmul(z, w0)"), deeper):
        (match,) = lemmas(graph)
        assert len(match.outputs) == MANY
        assert match.outputs == tuple(value.node.inputs[0] for value in graph.outputs[:MANY])


def test_what_they_share_has_to_be_in_the_place_of_a_rule() -> None:
    graph = heads([3] * MANY, product="matmul(permute(w{0}){{order=[-1,-2]}}, permute(x){{order=[-1,-2]}})")
    assert lemmas(graph, [ROWS])
    assert not lemmas(graph, [COLUMNS])


@pytest.mark.parametrize("graph", [heads([4] * MOST_SIBLINGS), heads([4] * MANY, product="mul(x, x)")])
def test_few_are_left_to_other_rules(graph: Graph) -> None:
    assert not lemmas(graph)


def test_layers_one_after_the_other_are_not_merged() -> None:
    lines = " ".join("h = tanh(matmul(h, w))" for _ in range(3 * MANY))
    assert not lemmas(parse_graph(f"graph(h: f32[3,8], w: f32[8,8]) {{ {lines} return h }}"))


def test_a_lemma_follows_from_its_rules_and_no_others() -> None:
    for graph, rule, other in ((heads([4] * MANY), COLUMNS, ROWS), (towers([2] * MANY), ROWS, COLUMNS)):
        (match,) = lemmas(graph)
        assert list(match.bases) == [rule]
        (lemma,) = read_rules(write_rules([match.rule]))
        assert Lemmas(RULES[::-1]).bases(lemma) == Lemmas([rule]).bases(lemma) == [rule]
        assert not Lemmas([other]).bases(lemma)
        outputs, inputs = lemma.target.outputs, lemma.source.inputs
        for wrong in (outputs[::-1], (*outputs[:-1], outputs[0]), lemma.source.outputs):
            assert not Lemmas(RULES).bases(replace(lemma, target=Graph(inputs, tuple(wrong))))
        assert not Lemmas(RULES).bases(replace(lemma, numerics=Numerics.EXACT))


def test_a_search_merges_them_and_its_trace_is_replayed() -> None:
    graph = heads([*range(1, 31)])
    found = search(graph, [*RULES, THREE], FakeCost({"slice": 0.1}), Limits(seconds=60.0)).best
    assert [node.op.name for node in found.graph.nodes if not node.is_static].count("matmul") == 1
    trace = read_trace(write_trace(found.trace))
    assert replay(graph, trace) == replay(graph, trace, RULES) == found.graph


def test_what_a_region_merged_is_replayed_where_there_are_more() -> None:
    """A region of a graph may hold a few of many."""
    graph = heads([4] * MANY)
    match = Matcher([THREE], keep_all=True).matches(graph)[0]
    after = apply(graph, match)
    assert after is not None
    found = Candidate(graph, after, 1.0, static_bytes=0, applied=(THREE.id,), steps=((match, after),))
    trace = read_trace(write_trace(found.trace))
    assert replay(graph, trace) == replay(graph, trace, [THREE]) == after


@pytest.mark.parametrize("count", range(3, 15))
def test_of_many_that_read_one_value_rules_for_three_match_none(count: int) -> None:
    graph = heads([4] * count)
    assert len(Matcher([COLUMNS]).matches(graph)) == count * (count - 1) / 2
    expected = count * (count - 1) * (count - 2) / 6 if count <= MOST_SIBLINGS else 0
    assert len(Matcher([THREE]).matches(graph)) == expected
