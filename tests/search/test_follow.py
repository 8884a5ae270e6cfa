"""Following a trace gives what the search found, and takes no step that the caller's rules and limits do not allow."""

from __future__ import annotations

from dataclasses import replace

import pytest

from taso_py.rules.verdict import Numerics
from taso_py.search.backtracking import search
from taso_py.search.follow import follow
from taso_py.search.result import Limits, SearchResult, StopReason
from taso_py.search.trace import TraceError
from tests.search.examples import RULES, FakeCost, products, read, recurrent


@pytest.fixture(scope="module")
def found() -> SearchResult:
    return search(recurrent(2), read(*RULES), FakeCost())


def test_what_a_search_found_is_found_again(found: SearchResult) -> None:
    again = follow(recurrent(2), found.best.trace, read(*RULES), FakeCost(), Limits())
    assert again.best == found.best
    assert again.original == found.original
    assert again.best.seconds < again.original.seconds
    assert (again.stop_reason, again.expansions, again.built) == (StopReason.FOLLOWED, 0, len(found.best.trace.steps))


def test_a_trace_without_steps_leads_to_the_original(found: SearchResult) -> None:
    nothing = replace(found.best.trace, steps=(), rules=())
    again = follow(recurrent(2), nothing, read(*RULES), FakeCost(), Limits())
    assert again.candidates == (again.original,) == (found.original,)


def test_rules_are_the_callers_not_the_traces(found: SearchResult) -> None:
    trace = found.best.trace
    rules = [rule for rule in read(*RULES) if rule.id != trace.applied[0]]
    with pytest.raises(TraceError, match=f"the database has no rule {trace.applied[0]}"):
        follow(recurrent(2), trace, rules, FakeCost(), Limits())
    with pytest.raises(TraceError, match="of another graph"):
        follow(products(3), trace, read(*RULES), FakeCost(), Limits())


def test_limits_hold(found: SearchResult) -> None:
    with pytest.raises(TraceError, match="is above the cap"):
        follow(recurrent(2), found.best.trace, read(*RULES), FakeCost(), Limits(numerics=Numerics.EXACT))
