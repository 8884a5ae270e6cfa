"""Search of graphs to which lemmas are applied, as those that roll up loops over rows.

A lemma (:mod:`taso_py.rules.lemma`) replaces as many operators as a loop has rows; a region of a large graph holds some
of them, and a step of a search moves one. So lemmas are applied first, to the whole graph, and the search goes on from
there.

Invariant: lemmas that are applied make the graph cheaper, alone or all together, and keep to the limits of the search.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

from taso_py.ir.graph import Graph
from taso_py.ir.node import is_running
from taso_py.rules.apply import apply
from taso_py.rules.lemma import WITH_FEW, Lemmas, may_have_lemmas
from taso_py.rules.match import Match
from taso_py.rules.siblings import merges
from taso_py.rules.substitution import Substitution
from taso_py.search.cost import Cost, static_bytes
from taso_py.search.result import Candidate, Limits, SearchResult, SearchStop

Steps: TypeAlias = Iterable[tuple[Match, Graph]]
LAST_SHARE = 0.1
"""Share of the time of a search that remains for lemmas about what it found."""


def search_rolled(
    graph: Graph,
    rules: Iterable[Substitution],
    cost: Cost,
    limits: Limits,
    search: Callable[[Graph, Limits], SearchResult],
) -> SearchResult:
    """Return the result of a search from a graph after its loops are rolled up, as that of a search from the graph.

    Where its steps merged layers, lemmas may match that did not before; so they are applied to what it found as well.

    Args:
        graph: the graph.
        rules: the rules that lemmas may rest on.
        cost: gives the costs of graphs.
        limits: the limits of the search.
        search: searches from another graph, within other limits.
    """
    start = limits.now()
    found = _search_from_rolled(graph, rules, cost, limits, search) if may_have_lemmas(graph) else search(graph, limits)
    if found.stop_reason is SearchStop.INTERRUPTED or not may_have_lemmas(found.best.graph):
        return found
    left = max(limits.seconds * LAST_SHARE, limits.seconds - (limits.now() - start))
    within = replace(limits, seconds=left, static_bytes=limits.most_bytes(found.original.static_bytes))
    try:
        steps = list(roll_up(found.best.graph, rules, cost, within))
    except KeyboardInterrupt:
        return found
    if not steps:
        return found
    best, end = found.best, _candidate(steps[-1][1], cost)
    names = tuple(match.rule.id for match, _ in steps)
    rolled = replace(end, original=graph, applied=(*best.applied, *names), steps=_Steps(best.steps, steps))
    others = [candidate for candidate in found.candidates if candidate != found.original]
    candidates = (*[rolled, *others][: limits.results], found.original)
    return replace(found, candidates=candidates, seconds=limits.now() - start)


def _search_from_rolled(
    graph: Graph,
    rules: Iterable[Substitution],
    cost: Cost,
    limits: Limits,
    search: Callable[[Graph, Limits], SearchResult],
) -> SearchResult:
    """Return the result of a search from a graph after lemmas are applied to it; arguments as above."""
    start, original = limits.now(), _candidate(graph, cost)
    within = replace(limits, static_bytes=limits.most_bytes(original.static_bytes))
    steps, is_interrupted = list[tuple[Match, Graph]](), False
    try:
        for step in roll_up(graph, rules, cost, within):
            steps.append(step)
    except KeyboardInterrupt:
        is_interrupted = True
    spent = limits.now() - start
    if not steps and not is_interrupted:
        return search(graph, limits)
    end = steps[-1][1] if steps else graph
    if is_interrupted:
        rolled = _candidate(end, cost)
        found = SearchResult(rolled, (rolled,), SearchStop.INTERRUPTED, expansions=0, built=0, seconds=0.0)
    else:
        found = search(end, replace(within, seconds=max(1e-9, limits.seconds - spent)))  # a limit must be above 0
    names = tuple(match.rule.id for match, _ in steps)
    candidates = [
        replace(one, original=graph, applied=(*names, *one.applied), steps=_Steps(steps, one.steps))
        for one in found.candidates
        if names or one.applied
    ]
    best = sorted(candidates, key=lambda candidate: candidate.seconds)[: limits.results]
    return replace(found, original=original, candidates=(*best, original), seconds=found.seconds + spent)


def roll_up(graph: Graph, rules: Iterable[Substitution], cost: Cost, limits: Limits) -> Iterator[tuple[Match, Graph]]:
    """Yield lemmas that make a graph cheaper, each applied to the graph after the one before, with the graph after it.

    Some pay only together, as the first of two layers is one product of batches, but taken apart again for the second:
    so where none pays by itself, all are tried that leave fewer operators to call.

    Args:
        graph: the graph.
        rules: the rules that lemmas may rest on.
        cost: gives the costs of graphs.
        limits: the limits on time, numerics, and the bytes that a graph may store, as a number.
    """
    most = limits.static_bytes if limits.static_bytes is not None else math.inf

    def price(after: Graph) -> float:
        return cost.graph_cost(after) if after is graph or static_bytes(cost, after) <= most else math.inf

    lemmas, more, end = Lemmas(rules), Lemmas(rules, WITH_FEW), limits.now() + limits.seconds
    reached = graph
    while True:
        for step in _improved(reached, lemmas, limits, end, price):
            yield step
            reached = step[1]
        together = list(_improved(reached, more, limits, end, running_operators))
        is_more_than_merged = any(not merges(base) for match, _ in together for base in match.bases)
        if not is_more_than_merged or not price(together[-1][1]) < price(reached):
            return
        yield from together
        reached = together[-1][1]


def shortened(graph: Graph, rules: Iterable[Substitution], limits: Limits) -> Graph:
    """Return a graph after all lemmas that leave fewer operators to call, whatever they cost; arguments as above."""
    end = limits.now() + limits.seconds
    *_, shortest = graph, *(after for _, after in _improved(graph, Lemmas(rules), limits, end, running_operators))
    return shortest


def running_operators(graph: Graph) -> int:
    """Return the number of operators that are called on every run, and do more than take a view of their operand."""
    return sum(is_running(node) and not node.op.is_view for node in graph.nodes)


def _improved(
    graph: Graph, lemmas: Lemmas, limits: Limits, end: float, measure: Callable[[Graph], float]
) -> Iterator[tuple[Match, Graph]]:
    """Yield lemmas that lower a measure, each applied to the graph after the one before, with the graph after it.

    None is looked for after the time ``end``.
    """
    best, tried = measure(graph), set[tuple[object, ...]]()
    is_changed = True
    while is_changed and limits.now() <= end:
        is_changed = False
        for match in lemmas.matches(graph, tried):
            after = apply(graph, match) if limits.allows(match) else None
            if after is None or not (found := measure(after)) < best:
                continue
            graph, best, is_changed = after, found, True
            yield match, graph
            break


def _candidate(graph: Graph, cost: Cost) -> Candidate:
    """Return a graph as it is as a result."""
    return Candidate(graph, graph, cost.graph_cost(graph), static_bytes=static_bytes(cost, graph))


@dataclass(frozen=True)
class _Steps:
    """Steps, and those after them."""

    first: Steps
    then: Steps

    def __iter__(self) -> Iterator[tuple[Match, Graph]]:
        yield from self.first
        yield from self.then
