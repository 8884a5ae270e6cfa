"""The search of a model: by which strategy, how often, and what is measured in between.

Prices are medians of few samples, and the best of many graphs is made of kernels whose prices came out too low, the
more so the more graphs there are. What it and the original do not share is measured again, in turns, and the search is
made anew with that. A search leaves out more than it visits: what an earlier one found is kept, at the new prices.

Invariant: an interrupt from the keyboard gives the best that is known. A search that ends otherwise, on a machine that
did nothing else, is settled: another of the same graph, by the same rules and within the same limits, refines nothing.
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
from taso_py.search.result import Candidate, Limits, Progress, SearchResult, StopReason

SEARCHES = {
    "backtracking": backtracking.search,
    "greedy": greedy.search,
    "saturation": saturation.search,
    "templates": templates.search,
    "templates-measured": templates.search_measured,
}
"""The strategies, by name."""
TEMPLATES = frozenset({"templates", "templates-measured"})
"""Those that take rules one by one in their order, and have rules of their own."""
MOST = 4
"""How often a graph is searched at most."""


class Refinable(Cost, Protocol):
    """A cost that can be made better where it matters."""

    def refine(self, graph: Graph, other: Graph) -> bool:
        """Finds out more of what decides between two graphs; whether any cost changed."""
        ...

    def now(self) -> float:
        """The time in seconds, without what it took to find out costs."""
        ...

    def is_settled(self, graph: Graph, question: str) -> bool:
        """Whether nothing more is to be found out for a search of a graph that is asked this."""
        ...

    def settle(self, graph: Graph, question: str, best_s: float) -> None:
        """Tells that a search of a graph that was asked this has ended, and what the best costs."""
        ...


def search(
    graph: Graph, rules: Sequence[Substitution], cost: Refinable, strategy: str, limits: Limits, *, progress: bool
) -> SearchResult:
    """What a strategy finds once the prices that decide are good.

    Args:
        graph: where to start.
        rules: what may be applied.
        cost: says what graphs cost, and is refined.
        strategy: one of :data:`SEARCHES`.
        limits: the time is that of all searches together, of which each but the last has half of what is left; the
            budget is each one's. What it takes to find out costs comes on top, so that what is found does not depend on
            how many of them were known.
        progress: whether to show a bar.
    """
    question = _question(strategy, rules, limits)
    limits = replace(limits, now=cost.now)
    if cost.is_settled(graph, question):
        return _searched(graph, rules, cost, strategy, limits, progress)
    start = cost.now()
    found = _searched(graph, rules, cost, strategy, replace(limits, seconds=limits.seconds / 2), progress)
    try:
        for left in reversed(range(MOST - 1)):
            if found.stop_reason is StopReason.INTERRUPTED or not cost.refine(graph, found.best.graph):
                break
            remaining = limits.seconds - (cost.now() - start)
            if remaining <= 0:
                break
            share = replace(limits, seconds=remaining / 2 if left else remaining)
            again = _searched(graph, rules, cost, strategy, share, progress)
            found = _after(found, again, cost, limits.results)
    except KeyboardInterrupt:
        found = replace(found, stop_reason=StopReason.INTERRUPTED)
    if found.stop_reason is not StopReason.INTERRUPTED:
        cost.settle(graph, question, found.best.seconds)
    return replace(found, seconds=cost.now() - start)


def _question(strategy: str, rules: Sequence[Substitution], limits: Limits) -> str:
    """What tells searches apart that are not to be settled for each other: another may look farther."""
    asked = [(field.name, getattr(limits, field.name)) for field in fields(limits) if field.name != "now"]
    parts = repr((asked, [rule.id for rule in rules]))
    return f"{strategy} {hashlib.blake2b(parts.encode(), digest_size=8).hexdigest()}"


def _after(found: SearchResult, again: SearchResult, cost: Cost, results: int) -> SearchResult:
    """What is known after one search more, perhaps an interrupted one, at the prices that it had."""
    return replace(
        again,
        candidates=_merged(found.candidates, again, cost, results),
        built=found.built + again.built,
        expansions=found.expansions + again.expansions,
    )


def _merged(old: Sequence[Candidate], again: SearchResult, cost: Cost, results: int) -> tuple[Candidate, ...]:
    """The best of a search's candidates and of old ones, which have prices of their time."""
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
