"""Traces: a round trip, and replays that notice what was changed."""

from dataclasses import replace

import pytest

from taso_py.ops.table import parse_graph
from taso_py.rules.apply import apply
from taso_py.rules.match import Matcher
from taso_py.rules.pattern import Bindings
from taso_py.rules.substitution import Substitution
from taso_py.rules.text import read_rules
from taso_py.search.backtracking import search
from taso_py.search.trace import Trace, TraceError, make_trace, read_trace, replay, replay_steps, write_trace
from tests.search.examples import RULES, FakeCost, products, read, recurrent


@pytest.fixture(scope="module")
def trace() -> Trace:
    return search(recurrent(2), read(*RULES), FakeCost()).best.trace


def test_a_trace_survives_a_round_trip(trace: Trace) -> None:
    assert len(trace.steps) > 5
    assert read_trace(write_trace(trace)) == trace
    empty = replace(trace, steps=(), rules=())
    assert read_trace(write_trace(empty)) == empty


def test_a_replay_derives_every_result(trace: Trace) -> None:
    result = search(recurrent(2), read(*RULES), FakeCost())
    for candidate in result.candidates:
        assert replay(recurrent(2), candidate.trace) == candidate.graph
    steps = list(replay_steps(recurrent(2), trace))
    assert [match.rule.id for match, _ in steps] == list(trace.applied)
    assert steps[-1][1].digest == trace.steps[-1].result


def test_a_replay_with_a_database_needs_its_rules(trace: Trace) -> None:
    assert replay(recurrent(2), trace, read(*RULES)) == replay(recurrent(2), trace)
    rules: list[Substitution] = [rule for rule in read(*RULES) if rule.id != trace.applied[0]]
    with pytest.raises(TraceError, match=f"step 1: the database has no rule {trace.applied[0]}"):
        replay(recurrent(2), trace, rules)


def test_a_replay_on_another_graph_is_refused(trace: Trace) -> None:
    with pytest.raises(TraceError, match="of another graph"):
        replay(products(3), trace)


def test_a_step_that_was_changed_is_noticed(trace: Trace) -> None:
    first = trace.steps[0]
    moved = replace(first, nodes=tuple("0" * 32 for _ in first.nodes))
    other = replace(first, result="0" * 32)
    names, values = zip(*first.values, strict=True)
    swapped = replace(first, values=tuple(zip(names, values[::-1], strict=True)))
    for step, reason in ((moved, "does not match"), (swapped, "does not match"), (other, "gives another graph")):
        with pytest.raises(TraceError, match=f"step 1: .* {reason}"):
            replay(recurrent(2), replace(trace, steps=(step, *trace.steps[1:])))


def test_a_replay_does_not_believe_the_matcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that binds a size wrongly would make the same mistake twice: in the search and in the replay."""
    rule = """rule x: float[M,2*N] source div(sum(x){axes=[-1]}, constant{value=N, dtype=float})
      target mul(mean(x){axes=[-1]}, constant{value=2.0, dtype=float})"""
    graph = parse_graph("graph(x: f32[3,12]) { return div(sum(x){axes=[-1]}, constant{value=8.0, dtype=f32}) }")
    monkeypatch.setattr(Bindings, "_bind_size", lambda self, name, size: self.sizes.update({name: size}) or True)
    (match,) = Matcher(read_rules(rule)).matches(graph)
    after = apply(graph, match)
    assert after is not None
    with pytest.raises(TraceError, match=r"step 1: .* does not match"):
        replay(graph, make_trace(graph, [(match, after)], after))


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("trace ", "track ", "this is no trace"),
        ("  step r", "  step q", "cannot be read"),
        ("rule r", "rule q", "identifier"),
    ],
)
def test_text_that_is_no_trace_is_refused(trace: Trace, old: str, new: str, reason: str) -> None:
    with pytest.raises(Exception, match=reason):
        read_trace(write_trace(trace).replace(old, new, 1))


def test_a_trace_without_its_rules_is_refused(trace: Trace) -> None:
    with pytest.raises(TraceError, match="lacks the rule"):
        read_trace(write_trace(replace(trace, rules=())))
