"""Loops rolled up before a search: within its limits, in traces that can be replayed, and checked there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from taso_py.ir.graph import Graph
from taso_py.ops.table import parse_graph
from taso_py.rules.lemma import LEMMA
from taso_py.rules.text import read_rules
from taso_py.rules.verdict import Numerics
from taso_py.search.backtracking import search
from taso_py.search.follow import follow
from taso_py.search.result import Limits, SearchResult, SearchStop
from taso_py.search.trace import Trace, TraceError, read_trace, replay, write_trace
from tests.rules.test_lemma import JOINED, LINEAR, RELU, WHOLE
from tests.search.examples import FakeCost, read

RULES = [RELU, LINEAR, JOINED, WHOLE]
ALL = [*RULES, *read("idempotent")]


def _loop(count: int) -> Graph:
    """What is done to each row of a value, joined, and then to each row of that."""

    def rows(name: str) -> str:
        parts = (f"relu(slice({name}){{axis=-2, start={row}, stop={row + 1}}})" for row in range(count))
        return f"concat({', '.join(parts)}){{axis=-2}}"

    return parse_graph(f"graph(x: f32[{count},8]) {{ s = tanh(relu({rows('x')})) return {rows('s')} }}")


@pytest.fixture(scope="module")
def found() -> SearchResult:
    return search(_loop(5), ALL, FakeCost())


def test_loops_are_rolled_up_and_the_search_goes_on(found: SearchResult) -> None:
    assert found.best.graph == parse_graph("graph(x: f32[5,8]) { return relu(tanh(relu(x))) }")
    assert found.original.graph == _loop(5)
    assert found.candidates[-1] == found.original
    assert [len(candidate.applied) for candidate in found.candidates] == [3, 2, 0]
    assert found.original.seconds == FakeCost().graph_cost(_loop(5))


def test_large_graphs_are_rolled_up_before_they_are_cut() -> None:
    best = search(_loop(150), ALL, FakeCost()).best
    assert best.graph == parse_graph("graph(x: f32[150,8]) { return relu(tanh(relu(x))) }")


def test_a_trace_with_lemmas_is_replayed_and_followed(found: SearchResult) -> None:
    trace = read_trace(write_trace(found.best.trace))
    assert trace == found.best.trace
    assert replay(_loop(5), trace) == replay(_loop(5), trace, ALL) == found.best.graph
    assert follow(_loop(5), trace, ALL, FakeCost(), Limits()).best == found.best
    assert trace.applied[0] == trace.applied[1]
    assert [rule.id for rule in trace.rules if rule.proof == LEMMA] == [trace.applied[0]]


def test_a_lemma_has_to_follow_from_the_rules(found: SearchResult) -> None:
    trace = found.best.trace
    for rules in (RULES[1:], [rule for rule in RULES if rule.proof != LEMMA][:2]):
        with pytest.raises(TraceError, match=r"step 1: the lemma r\w+ does not follow from the rules"):
            replay(_loop(5), trace, rules)
    bare = replace(trace, rules=tuple(rule for rule in trace.rules if rule.proof == LEMMA or rule in ALL[-1:]))
    with pytest.raises(TraceError, match="does not follow"):
        replay(_loop(5), bare)


def test_a_lemma_that_says_something_else_is_refused(found: SearchResult) -> None:
    (wrong,) = read_rules(f"""rule v0: f32[5,8]
      source concat({", ".join(f"relu(slice(v0){{axis=-2, start={i}, stop={i + 1}}})" for i in range(5))}){{axis=-2}}
      target v0
      proof lemma""")
    step = replace(found.best.trace.steps[0], rule=wrong.id)
    trace = Trace(found.best.trace.original, (step,), (wrong, *RULES))
    for rules in (None, RULES):
        with pytest.raises(TraceError, match="does not follow"):
            replay(_loop(5), trace, rules)


def test_a_lemma_applies_only_where_the_trace_says_what_is_there(found: SearchResult) -> None:
    trace = found.best.trace
    first = trace.steps[0]
    nodes = first.nodes
    others = [nodes[::-1], (nodes[0],) * len(nodes), ("0" * 32, *nodes[1:]), nodes[1:], (*nodes, nodes[0])]
    for wrong in (*(replace(first, nodes=other) for other in others), replace(first, values=())):
        with pytest.raises(TraceError, match="step 1"):
            replay(_loop(5), replace(trace, steps=(wrong,)))


def _recurrent(count: int) -> Graph:
    """A product of each row of a value, each needed at another time."""
    rows = [f"h = tanh(add(linear(slice(x){{axis=-2, start={i}, stop={i + 1}}}, w), h))" for i in range(count)]
    return parse_graph(f"graph(x: f32[{count},8], w: f32[8,8], h: f32[1,8]) {{ {' '.join(rows)} return h }}")


def test_what_a_recurrent_network_does_to_each_row_is_done_at_once() -> None:
    calls = {"linear": 4.0, "slice": 0.5}
    few, many = (search(_recurrent(count), RULES, FakeCost(calls)).best for count in (4, 30))
    assert not few.applied
    (step,) = many.trace.steps
    assert [node.op.name for node in many.graph.nodes].count("linear") == 1
    trace = read_trace(write_trace(many.trace))
    assert replay(_recurrent(30), trace) == replay(_recurrent(30), trace, RULES) == many.graph
    others = [step.nodes[:-1], (*step.nodes[1:], step.nodes[0]), step.nodes[::-1]]
    for wrong in (*(replace(step, nodes=other) for other in others), replace(step, values=step.values[:1])):
        with pytest.raises(TraceError, match="step 1"):
            replay(_recurrent(30), replace(trace, steps=(wrong,)))


def test_rows_of_which_nothing_is_gained_stay() -> None:
    assert not search(_recurrent(30), RULES, FakeCost({"linear": 0.0, "slice": 0.1})).best.applied


def test_lemmas_keep_to_the_numerics_cap() -> None:
    loop = parse_graph("""graph(x: f32[2,8], w: f32[4,8]) {
      a = slice(x){axis=-2, start=0, stop=1}
      b = slice(x){axis=-2, start=1, stop=2}
      return concat(linear(a, w), linear(b, w)){axis=-2}
    }""")
    applied = [search(loop, RULES, FakeCost(), Limits(numerics=cap)).best.applied for cap in Numerics]
    assert [len(steps) for steps in applied] == [0, *[1] * (len(Numerics) - 1)]


def test_a_lemma_that_costs_more_is_not_applied() -> None:
    calls = {"relu": 2.0, "slice": 0.0, "concat": 0.0, "add": 0.0}
    rows = ", ".join(f"relu(slice(x){{axis=-2, start={row}, stop={row + 1}}})" for row in range(2))
    loop = parse_graph(f"graph(x: f32[2,8]) {{ return concat({rows}){{axis=-2}}, {rows} }}")
    assert search(loop, RULES, FakeCost(calls)).best.applied == ()


def test_an_interrupt_while_loops_are_rolled_up_ends_the_search() -> None:
    class Interrupted(FakeCost):
        left = 3

        def graph_cost(self, graph: Graph) -> float:
            self.left -= 1
            if not self.left:
                raise KeyboardInterrupt
            return super().graph_cost(graph)

    result = search(_loop(5), ALL, Interrupted())
    assert result.stop_reason is SearchStop.INTERRUPTED
    assert result.best == result.original
