"""What tests of lemmas share: the shipped rules, the lemmas about a graph, and what holds of every lemma."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from taso_py.ir.graph import Graph
from taso_py.ir.node import is_running
from taso_py.rules.database import read_database
from taso_py.rules.lemma import Lemmas
from taso_py.rules.match import Match
from taso_py.rules.substitution import Substitution
from taso_py.rules.text import read_rules, write_rules
from taso_py.search.result import Candidate
from taso_py.search.trace import read_trace, replay, write_trace


@cache
def rules() -> Sequence[Substitution]:
    return read_database()


def lemmas(graph: Graph) -> list[Match]:
    return list(Lemmas(rules()).matches(graph, set()))


def running(graph: Graph) -> list[str]:
    """The operators that run, by name, but for views."""
    return [node.op.name for node in graph.nodes if is_running(node) and not node.op.is_view]


def assert_follows(match: Match) -> None:
    """Fail unless a lemma, written and read, follows from all its rules only, and nothing else does in its place."""
    (lemma,) = read_rules(write_rules([match.rule]))
    assert Lemmas(rules()).bases(lemma) == Lemmas(match.bases).bases(lemma) == list(match.bases)
    for base in match.bases:
        assert not Lemmas([rule for rule in rules() if rule.id != base.id]).bases(lemma)
    assert not Lemmas(rules()).bases(replace(lemma, target=lemma.source))
    outputs = lemma.target.outputs[::-1]
    assert len(outputs) == 1 or not Lemmas(rules()).bases(
        replace(lemma, target=Graph(lemma.source.inputs, tuple(outputs)))
    )


def assert_replayed(graph: Graph, found: Candidate) -> None:
    """Fail unless the trace of what was found, written and read, leads there again, with and without the rules."""
    trace = read_trace(write_trace(found.trace))
    assert replay(graph, trace) == replay(graph, trace, rules()) == found.graph
