"""Following a trace gives what the search found, and takes no step that the caller's rules and limits do not allow."""

from __future__ import annotations

from dataclasses import replace

import pytest

from taso_py.rules.verdict import Numerics
from taso_py.search.backtracking import search
from taso_py.search.follow import add_followed, follow
from taso_py.search.result import Limits, SearchResult, SearchStop
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
    assert (again.stop_reason, again.expansions, again.built) == (SearchStop.FOLLOWED, 0, len(found.best.trace.steps))


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


def test_what_a_trace_leads_to_is_added_in_its_place(found: SearchResult) -> None:
    missed = replace(found, candidates=(found.original,))
    again = add_followed(missed, found.best.trace, read(*RULES), FakeCost(), Limits())
    assert again.candidates == (found.best, found.original)
    assert again.original is again.candidates[1]
    assert add_followed(again, found.best.trace, read(*RULES), FakeCost(), Limits()) is again


def test_what_cannot_be_followed_is_not_added(found: SearchResult) -> None:
    missed, trace = replace(found, candidates=(found.original,)), found.best.trace
    fewer = [rule for rule in read(*RULES) if rule.id != trace.applied[0]]
    assert add_followed(missed, trace, fewer, FakeCost(), Limits()) is missed
    assert add_followed(missed, trace, read(*RULES), FakeCost(), Limits(numerics=Numerics.EXACT)) is missed
    elsewhere = replace(trace, original="0" * 32)
    assert add_followed(missed, elsewhere, read(*RULES), FakeCost(), Limits()) is missed
