"""The search for a model: repeated runs of a strategy, with prices measured again in between.

Prices are medians of few samples, and the best of many graphs tends to consist of kernels whose prices came out too
low, the more so the more graphs there are. So the kernels that it does not share with the original are measured again,
interleaved, and the search is repeated with the new prices. A search leaves out more graphs than it visits; so results
of earlier ones are kept, at the new prices.

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


class Refinable(Cost, Protocol):
    """A cost that can be measured more precisely for the graphs that matter."""

    def refine(self, graph: Graph, other: Graph) -> bool:
        """Refine the costs that decide between two graphs; return whether any cost changed."""
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
    rules: Sequence[Substitution],
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
        rules: the rules to apply.
        cost: gives the costs of graphs, and is refined.
        strategy: one of :data:`SEARCHES`.
        limits: the time limit is for all searches together, each but the last of which gets half of the remaining time;
            the budget is for each. The time for measuring costs comes on top, so that the result does not depend on
            how many of them were known.
        progress: true to show a progress bar.
        refines: false to search once by the costs as they are, where an earlier search has refined them.
    """
    setup = _setup_key(strategy, rules, limits)
    limits = replace(limits, now=cost.now)
    if not refines or cost.has_converged(graph, setup):
        return _searched(graph, rules, cost, strategy=strategy, limits=limits, progress=progress)
    start = cost.now()
    found = _searched(
        graph, rules, cost, strategy=strategy, limits=replace(limits, seconds=limits.seconds / 2), progress=progress
    )
    try:
        for left in reversed(range(MOST - 1)):
            if found.stop_reason is SearchStop.INTERRUPTED or not cost.refine(graph, found.best.graph):
                break
            remaining = limits.seconds - (cost.now() - start)
            if remaining <= 0:
                break
            share = replace(limits, seconds=remaining / 2 if left else remaining)
            again = _searched(graph, rules, cost, strategy=strategy, limits=share, progress=progress)
            found = _after(found, again, cost, limits.results)
    except KeyboardInterrupt:
        found = replace(found, stop_reason=SearchStop.INTERRUPTED)
    if found.stop_reason is not SearchStop.INTERRUPTED:
        cost.record_convergence(graph, setup, found.best.seconds)
    return replace(found, seconds=cost.now() - start)


def _setup_key(strategy: str, rules: Sequence[Substitution], limits: Limits) -> str:
    """Return a key of strategy, rules and limits; searches with different keys do not converge for each other."""
    asked = [(field.name, getattr(limits, field.name)) for field in fields(limits) if field.name != "now"]
    parts = repr((asked, [rule.id for rule in rules]))
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
    """Return the best of a search's candidates and of older ones, which are priced anew."""
    graphs = {candidate.graph for candidate in again.candidates}
    missed = [replace(c, seconds=cost.graph_cost(c.graph)) for c in old if c.applied and c.graph not in graphs]
    if not missed:
        return again.candidates
    best: dict[frozenset[str], Candidate] = {}
    for candidate in sorted([*again.candidates, *missed], key=lambda one: one.seconds):
        best.setdefault(frozenset(candidate.applied), candidate)
    return tuple(finalists(best.values(), again.original, cost, results))


def _searched(
    graph: Graph, rules: Sequence[Substitution], cost: Refinable, strategy: str, limits: Limits, progress: bool
) -> SearchResult:
    with share_bar("search", shown=progress) as on_share:

        def report(found: Progress) -> None:
            on_share(max(found.built / limits.budget, found.seconds / limits.seconds))

        return SEARCHES[strategy](graph, rules, cost, limits, report)
