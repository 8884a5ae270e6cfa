"""The search for a model: repeated runs of a strategy, with prices measured again in between.

Prices are medians of few samples or estimates, and the best of many graphs tends to consist of kernels whose prices
came out too low, the more so the more graphs there are. So the kernels that it does not share with the original are
measured again, interleaved, and the search is repeated with the new prices, unless the best stays the best at nearly
the price that it had. A search leaves out more graphs than it visits; so results of earlier ones are kept, at the new
prices.

Invariant: a keyboard interrupt gives the best known result. A search that ends otherwise, on an otherwise idle machine,
has converged: another one of the same graph, with the same rules and limits, refines nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Protocol

from taso_py.ir.graph import Graph
from taso_py.progress import share_bar
from taso_py.rules.match import Matcher
from taso_py.rules.ruleset import RuleSet
from taso_py.rules.substitution import Substitution
from taso_py.search import backtracking, greedy, saturation, templates
from taso_py.search.cost import Cost
from taso_py.search.finalists import finalists
from taso_py.search.result import Candidate, Limits, Progress, SearchResult, SearchStop

SEARCHES = {
    "backtracking": backtracking.search,
    "greedy": greedy.search,
    "saturation": saturation.search,
    "templates": templates.search,
    "templates-measured": templates.search_measured,
}
"""The strategies, by name."""
MOST = 4
"""The most searches of a graph."""
DRIFT = 0.02
"""The share by which the price of the best graph may change without another search."""


class Refinable(Cost, Protocol):
    """A cost that can be measured more precisely for the graphs that matter."""

    def refine(self, graph: Graph, other: Graph) -> bool:
        """Refine the costs that decide between two graphs; return whether any cost changed."""
        ...

    def settle(self, graph: Graph) -> bool:
        """Measure the costs of a graph that were only estimated; return whether there were any."""
        ...

    def now(self) -> float:
        """Return the time in seconds, not counting the time spent on measuring costs."""
        ...

    def has_converged(self, graph: Graph, setup: str) -> bool:
        """Return whether a search of this graph with this setup has converged, so that no cost needs refining."""
        ...

    def record_convergence(self, graph: Graph, setup: str, best_s: float) -> None:
        """Record that a search of this graph with this setup has converged, and the cost of its best graph."""
        ...


def search(
    graph: Graph,
    rules: Sequence[Substitution] | Matcher,
    cost: Refinable,
    strategy: str,
    limits: Limits,
    *,
    progress: bool,
    refines: bool = True,
) -> SearchResult:
    """Return the result of a strategy after the costs that decide have been refined.

    Args:
        graph: the graph to start from.
        rules: the rules to apply; a matcher that has them prepared may be used for several searches.
        cost: gives the costs of graphs, and is refined.
        strategy: one of :data:`SEARCHES`.
        limits: the time limit is for all searches together, each but the last of which gets half of the remaining time;
            the budget is for each. The time for measuring costs comes on top, so that the result does not depend on
            how many of them were known.
        progress: true to show a progress bar.
        refines: false to search once by the costs as they are, where an earlier search has refined them.
    """
    matcher = Matcher.of(rules)
    setup = _setup_key(strategy, matcher.rules, limits)
    limits = replace(limits, now=cost.now)
    refines = refines and not cost.has_converged(graph, setup)

    def corrected(best: Graph) -> bool:
        return cost.refine(graph, best) if refines else cost.settle(graph) | cost.settle(best)

    def searched(seconds: float) -> SearchResult:
        within = replace(limits, seconds=seconds)
        return _searched(graph, matcher, cost, strategy=strategy, limits=within, progress=progress)

    start = cost.now()
    found = searched(limits.seconds / 2 if refines else limits.seconds)
    try:
        for left in reversed(range(MOST - 1)):
            if found.stop_reason is SearchStop.INTERRUPTED or not corrected(found.best.graph):
                break
            before, found = found, _repriced(found, cost)
            remaining = limits.seconds - (cost.now() - start)
            if remaining <= 0 or _has_kept(before, found):
                break
            found = _after(found, searched(remaining / 2 if left else remaining), cost, limits.results)
    except KeyboardInterrupt:
        found = replace(found, stop_reason=SearchStop.INTERRUPTED)
    if refines and found.stop_reason is not SearchStop.INTERRUPTED:
        cost.record_convergence(graph, setup, found.best.seconds)
    return replace(found, seconds=cost.now() - start)


def _repriced(found: SearchResult, cost: Cost) -> SearchResult:
    """Return a result at present prices."""
    original = replace(found.original, seconds=cost.graph_cost(found.original.graph))
    candidates = [
        original if one is found.original else replace(one, seconds=cost.graph_cost(one.graph))
        for one in found.candidates
    ]
    return replace(found, original=original, candidates=tuple(sorted(candidates, key=lambda one: one.seconds)))


def _has_kept(before: SearchResult, found: SearchResult) -> bool:
    """Return whether the best graph is the one it was, at nearly the same price."""
    now, then = found.best.seconds, before.best.seconds
    return found.best.graph == before.best.graph and (now == then or abs(now - then) <= DRIFT * then)


def _setup_key(strategy: str, rules: RuleSet, limits: Limits) -> str:
    """Return a key of strategy, rules and limits; searches with different keys do not converge for each other."""
    asked = [(field.name, getattr(limits, field.name)) for field in fields(limits) if field.name != "now"]
    parts = repr((asked, [*rules.ids]))
    return f"{strategy} {hashlib.blake2b(parts.encode(), digest_size=8).hexdigest()}"


def _after(found: SearchResult, again: SearchResult, cost: Cost, results: int) -> SearchResult:
    """Return the combined result after one more search, perhaps an interrupted one, at its prices."""
    return replace(
        again,
        candidates=_merged(found.candidates, again, cost, results),
        built=found.built + again.built,
        expansions=found.expansions + again.expansions,
    )


def _merged(old: Sequence[Candidate], again: SearchResult, cost: Cost, results: int) -> tuple[Candidate, ...]:
    """Return the best of a search's candidates and of older ones, both at present prices."""
    graphs = {candidate.graph for candidate in again.candidates}
    missed = [candidate for candidate in old if candidate.applied and candidate.graph not in graphs]
    if not missed:
        return again.candidates
    best: dict[frozenset[str], Candidate] = {}
    for candidate in sorted([*again.candidates, *missed], key=lambda one: one.seconds):
        best.setdefault(frozenset(candidate.applied), candidate)
    return tuple(finalists(best.values(), again.original, cost, results))


def _searched(
    graph: Graph, matcher: Matcher, cost: Refinable, strategy: str, limits: Limits, progress: bool
) -> SearchResult:
    with share_bar("search", shown=progress) as on_share:

        def report(found: Progress) -> None:
            on_share(max(found.built / limits.budget, found.seconds / limits.seconds))

        return SEARCHES[strategy](graph, matcher, cost, limits, report)
