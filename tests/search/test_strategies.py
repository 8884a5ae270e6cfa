"""Searches by prices that are found out to be wrong."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from taso_py.ir.graph import Graph
from taso_py.ops.table import parse_graph
from taso_py.rules.match import Matcher
from taso_py.rules.text import read_rules
from taso_py.rules.verdict import Numerics
from taso_py.search import names
from taso_py.search import strategies as searching
from taso_py.search.result import Limits, SearchResult, SearchStop
from taso_py.search.strategies import search
from tests.search.examples import FakeCost

GRAPH = parse_graph("graph(x: f32[4]) { return relu(x) }")
RULES = read_rules(
    """rule a: float[N] source relu(a) target tanh(a)
    rule a: float[N] source relu(a) target sigmoid(a)"""
)
"""Not true, which is nothing to the search."""
TRUTH = {"relu": 10.0, "tanh": 12.0, "sigmoid": 9.0}
"""What seems best, tanh, is not; and what is best seems to be the second."""


class Refined(FakeCost):
    """Prices of which the ones that decide are corrected once asked for."""

    def __init__(self, *, is_interrupted: bool = False) -> None:
        self.prices = {"relu": 10.0, "tanh": 5.0, "sigmoid": 8.0}
        self.asked: list[set[str]] = []
        self.settled: dict[tuple[Graph, str], float] = {}
        self.is_interrupted = is_interrupted
        self.times = count()
        super().__init__(self.prices)

    def refine(self, graph: Graph, other: Graph) -> bool:
        decisive = {node.op.name for one in (graph, other) for node in one.nodes if node.inputs}
        self.asked.append(decisive)
        if self.is_interrupted:
            raise KeyboardInterrupt
        wrong = {name: TRUTH[name] for name in decisive if self.prices[name] != TRUTH[name]}
        self.prices.update(wrong)
        return bool(wrong)

    def settle(self, graph: Graph) -> bool:
        return False

    def now(self) -> float:
        return float(next(self.times))

    def has_converged(self, graph: Graph, setup: str) -> bool:
        return (graph, setup) in self.settled

    def record_convergence(self, graph: Graph, setup: str, best_s: float) -> None:
        self.settled[graph, setup] = best_s


def operator(found: SearchResult) -> str:
    (node,) = (node for node in found.best.graph.nodes if node.inputs)
    return node.op.name


def test_the_names_that_are_imported_alone_are_those_of_the_searches() -> None:
    assert tuple(searching.SEARCHES) == names.SEARCHES


def test_what_only_seems_best_is_given_up() -> None:
    cost = Refined()
    found = search(GRAPH, RULES, cost, "backtracking", Limits(), progress=False)
    assert (operator(found), found.best.seconds) == ("sigmoid", 9.0)
    asked = [{"relu", "tanh"}, {"relu", "sigmoid"}, {"relu", "sigmoid"}]
    assert cost.asked == asked
    assert [(graph, seconds) for (graph, _), seconds in cost.settled.items()] == [(GRAPH, 9.0)]
    assert operator(search(GRAPH, RULES, cost, "backtracking", Limits(), progress=False)) == "sigmoid"
    assert cost.asked == asked, "a second search has nothing to find out"
    once = searching.SEARCHES["backtracking"](GRAPH, RULES, cost, Limits())
    assert found.built > once.built
    assert found.expansions > once.expansions


@pytest.mark.parametrize(("change", "searches"), [(1.01, 1), (1.1, 2)])
def test_a_search_is_repeated_only_where_the_price_of_the_best_changes(
    change: float, searches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, seen = searching.SEARCHES["backtracking"], list[Graph]()

    def counted(graph: Graph, rules: Any, *others: Any) -> SearchResult:
        seen.append(graph)
        return real(graph, rules, *others)

    monkeypatch.setitem(searching.SEARCHES, "backtracking", counted)
    monkeypatch.setitem(TRUTH, "tanh", 5.0 * change)
    found = search(GRAPH, RULES, Refined(), "backtracking", Limits(), progress=False)
    assert (operator(found), found.best.seconds) == ("tanh", 5.0 * change), "at the corrected price in any case"
    assert len(seen) == searches


def test_the_price_of_the_best_may_be_nothing() -> None:
    class Free(Refined):
        def refine(self, graph: Graph, other: Graph) -> bool:
            self.asked.append(set())
            return True

    cost = Free()
    cost.prices.update(dict.fromkeys(cost.prices, 0.0))
    found = search(GRAPH, RULES, cost, "backtracking", Limits(), progress=False)
    assert (found.best.seconds, len(cost.asked)) == (0.0, 1)


def test_a_search_that_is_to_refine_nothing_goes_by_the_costs_as_they_are() -> None:
    cost = Refined()
    found = search(GRAPH, RULES, cost, "backtracking", Limits(), progress=False, refines=False)
    assert (operator(found), cost.asked, cost.settled) == ("tanh", [], {})
    assert operator(search(GRAPH, RULES, cost, "backtracking", Limits(), progress=False)) == "sigmoid"


@pytest.mark.parametrize("change", [{"budget": 1}, {"seconds": 30.0}, {"numerics": Numerics.EXACT}])
def test_a_search_is_not_settled_for_another(change: dict[str, Any]) -> None:
    cost = Refined()
    search(GRAPH, RULES, cost, "backtracking", replace(Limits(), **change), progress=False)
    search(GRAPH, RULES[:1], cost, "backtracking", Limits(), progress=False)
    asked = len(cost.asked)
    search(GRAPH, RULES, cost, "backtracking", Limits(), progress=False)
    assert len(cost.asked) > asked


def test_the_time_of_a_search_is_that_of_the_cost() -> None:
    cost, limits = Refined(), Limits(seconds=1e3)
    found = search(GRAPH, RULES, cost, "backtracking", limits, progress=False)
    assert found.seconds == next(cost.times) - 1, "it began at 0"
    hurried = search(GRAPH, RULES, Refined(), "backtracking", replace(limits, seconds=2.0), progress=False)
    assert (found.stop_reason, hurried.stop_reason) == (SearchStop.EXHAUSTED, SearchStop.TIME)


def test_an_interrupt_between_searches_gives_what_was_found() -> None:
    cost = Refined(is_interrupted=True)
    found = search(GRAPH, RULES, cost, "backtracking", Limits(), progress=False)
    assert (operator(found), found.stop_reason) == ("tanh", SearchStop.INTERRUPTED)
    assert len(cost.asked) == 1
    assert not cost.settled


def test_an_interrupt_of_a_later_search_gives_the_best_that_is_known_by_present_prices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real, seen = searching.SEARCHES["backtracking"], list[Graph]()

    def second_is_interrupted(graph: Graph, rules: Any, *others: Any) -> SearchResult:
        seen.append(graph)
        if len(seen) == 1:
            return real(graph, rules, *others)
        return replace(real(graph, [], *others), stop_reason=SearchStop.INTERRUPTED)

    monkeypatch.setitem(searching.SEARCHES, "backtracking", second_is_interrupted)
    cost = Refined()
    found = search(GRAPH, RULES, cost, "backtracking", Limits(), progress=False)
    assert (len(seen), found.stop_reason, operator(found)) == (2, SearchStop.INTERRUPTED, "sigmoid")
    assert not cost.settled


def test_what_a_later_search_misses_is_kept_at_its_new_price(monkeypatch: pytest.MonkeyPatch) -> None:
    real, seen = searching.SEARCHES["backtracking"], list[Graph]()

    def later_ones_miss_sigmoid(graph: Graph, rules: Matcher, *others: Any) -> SearchResult:
        seen.append(graph)
        return real(graph, rules if len(seen) == 1 else rules.rules[:1], *others)

    monkeypatch.setitem(searching.SEARCHES, "backtracking", later_ones_miss_sigmoid)
    monkeypatch.setitem(TRUTH, "sigmoid", 8.5)
    cost = Refined()
    found = search(GRAPH, RULES, cost, "backtracking", Limits(), progress=False)
    assert len(seen) > 1
    assert (operator(found), found.best.seconds) == ("sigmoid", 8.5)
    assert [candidate.seconds for candidate in found.candidates] == sorted(c.seconds for c in found.candidates)
    assert sum(not candidate.applied for candidate in found.candidates) == 1
    assert cost.asked[1] == {"relu", "sigmoid"}, "what it is to be compared with next is the best of all"
