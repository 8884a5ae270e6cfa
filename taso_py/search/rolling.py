"""Search of graphs to which lemmas are applied, as those that roll up loops over rows.

A lemma (:mod:`taso_py.rules.lemma`) replaces as many operators as a loop has rows; a region of a large graph holds some
of them, and a step of a search moves one. So lemmas are applied first, to the whole graph, and the search goes on from
there.

Invariant: lemmas that are applied make the graph cheaper, alone or all together, and keep to the limits of the search.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
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
FindMatches: TypeAlias = Callable[[Graph, set[tuple[object, ...]]], Iterator[Match]]
"""Yields the matches of lemmas in a graph; see :meth:`taso_py.rules.lemma.Lemmas.matches`."""
ALONE_SHARE = 0.5
"""Share of the time for lemmas in which they are tried one by one; each may need latencies that are not known."""
LAST_SHARE = 0.1
"""Share of the time of a search that remains for lemmas about what it found."""


@dataclass(frozen=True)
class SearchAmongLemmas:
    """A search before and after which lemmas are applied."""

    rules: Iterable[Substitution]
    """The rules that lemmas may rest on."""
    cost: Cost
    """Gives the costs of graphs."""
    limits: Limits
    """The limits of all together."""
    search: Callable[[Graph, Limits], SearchResult]
    """Searches from a graph, within other limits."""

    def run(self, graph: Graph) -> SearchResult:
        """Return what is found from a graph, as the result of a search from it.

        Where its steps merged layers, lemmas may match that did not before; so they are applied afterwards as well.
        """
        start, lemmas, original = self.limits.now(), Lemmas(self.rules), _candidate(graph, self.cost)
        within = replace(self.limits, static_bytes=self.limits.most_bytes(original.static_bytes))
        before, is_interrupted = self._steps(graph, lemmas, within)
        begin = before[-1][1] if before else graph
        if is_interrupted:
            end = _candidate(begin, self.cost)
            found = SearchResult(end, (end,), SearchStop.INTERRUPTED, expansions=0, built=0, seconds=0.0)
        else:
            left = max(1e-9, self.limits.seconds - (self.limits.now() - start))  # a limit must be above 0
            found = self.search(begin, replace(within, seconds=left) if before else self.limits)
        if before or is_interrupted:
            found = self._with_steps_before(found, original, before)
        if found.stop_reason is not SearchStop.INTERRUPTED and found.best.graph != begin:
            left = max(self.limits.seconds * LAST_SHARE, self.limits.seconds - (self.limits.now() - start))
            after, is_interrupted = self._steps(found.best.graph, lemmas, replace(within, seconds=left))
            if after and not is_interrupted:
                found = self._with_steps_after(found, after)
        return replace(found, seconds=self.limits.now() - start)

    def _steps(self, graph: Graph, lemmas: Lemmas, limits: Limits) -> tuple[Sequence[tuple[Match, Graph]], bool]:
        """Return the lemmas that are applied to a graph, and whether a keyboard interrupt came meanwhile."""
        steps = list[tuple[Match, Graph]]()
        try:
            for step in roll_up(graph, lemmas, self.cost, limits) if may_have_lemmas(graph) else ():
                steps.append(step)
        except KeyboardInterrupt:
            return steps, True
        return steps, False

    def _with_steps_before(
        self, found: SearchResult, original: Candidate, steps: Sequence[tuple[Match, Graph]]
    ) -> SearchResult:
        """Return the result of a search as that of one from the original, from which some steps led there."""
        names = _names(steps)
        candidates = [
            replace(one, original=original.graph, applied=(*names, *one.applied), steps=_Steps(steps, one.steps))
            for one in found.candidates
            if names or one.applied
        ]
        best = sorted(candidates, key=lambda candidate: candidate.seconds)[: self.limits.results]
        return replace(found, original=original, candidates=(*best, original))

    def _with_steps_after(self, found: SearchResult, steps: Sequence[tuple[Match, Graph]]) -> SearchResult:
        """Return the result of a search with what some steps lead to from its best graph, which is better."""
        best, end = found.best, _candidate(steps[-1][1], self.cost)
        better = replace(
            end, original=best.original, applied=(*best.applied, *_names(steps)), steps=_Steps(best.steps, steps)
        )
        others = [candidate for candidate in found.candidates if candidate != found.original]
        return replace(found, candidates=(*[better, *others][: self.limits.results], found.original))


def roll_up(graph: Graph, lemmas: Lemmas, cost: Cost, limits: Limits) -> Iterator[tuple[Match, Graph]]:
    """Yield lemmas that make a graph cheaper, each applied to the graph after the one before, with the graph after it.

    Some pay only together, as the first of two layers is one product of batches, but taken apart again for the second:
    so where none pays by itself, all are tried that leave fewer operators to call.

    Args:
        graph: the graph.
        lemmas: the lemmas that may be applied.
        cost: gives the costs of graphs.
        limits: the limits on time, numerics, and the bytes that a graph may store, as a number.
    """
    most = limits.static_bytes if limits.static_bytes is not None else math.inf

    def price(after: Graph) -> float:
        return cost.graph_cost(after) if after is graph or static_bytes(cost, after) <= most else math.inf

    reached, start = graph, limits.now()
    alone_end, end = start + ALONE_SHARE * limits.seconds, start + limits.seconds
    with_few = partial(lemmas.matches, kinds=WITH_FEW)
    while True:
        for step in _improved(reached, lemmas.matches, limits, alone_end, price):
            yield step
            reached = step[1]
        together = list(_improved(reached, with_few, limits, end, running_operators))
        is_more_than_merged = any(not merges(base) for match, _ in together for base in match.bases)
        if not is_more_than_merged or not price(together[-1][1]) < price(reached):
            return
        yield from together
        reached = together[-1][1]


def shortened(graph: Graph, lemmas: Lemmas, limits: Limits) -> Graph:
    """Return a graph after all lemmas that leave fewer operators to call, whatever they cost; arguments as above."""
    end = limits.now() + limits.seconds
    *_, shortest = graph, *(after for _, after in _improved(graph, lemmas.matches, limits, end, running_operators))
    return shortest


def running_operators(graph: Graph) -> int:
    """Return the number of operators that are called on every run, and do more than take a view of their operand."""
    return sum(is_running(node) and not node.op.is_view for node in graph.nodes)


def applied_in_turn(
    graph: Graph, matches: FindMatches, is_wanted: Callable[[Match, Graph], bool]
) -> Iterator[tuple[Match, Graph]]:
    """Yield lemmas, each applied to the graph after the one before, with the graph after it.

    Args:
        graph: the graph.
        matches: yields the matches of lemmas in a graph, but for those that were tried.
        is_wanted: returns whether a match is applied, given the graph after it.
    """
    tried, is_changed = set[tuple[object, ...]](), True
    while is_changed:
        is_changed = False
        for match in matches(graph, tried):
            after = apply(graph, match)
            if after is not None and is_wanted(match, after):
                graph, is_changed = after, True
                yield match, graph
                break


def _improved(
    graph: Graph, matches: FindMatches, limits: Limits, end: float, measure: Callable[[Graph], float]
) -> Iterator[tuple[Match, Graph]]:
    """Yield lemmas that lower a measure, each applied to the graph after the one before, with the graph after it.

    None is looked for after the time ``end``.
    """
    best = measure(graph)

    def is_better(match: Match, after: Graph) -> bool:
        nonlocal best
        if not limits.allows(match) or not (found := measure(after)) < best:
            return False
        best = found
        return True

    def in_time(graph: Graph, tried: set[tuple[object, ...]]) -> Iterator[Match]:
        return takewhile(lambda _: limits.now() <= end, matches(graph, tried))

    return applied_in_turn(graph, in_time, is_better)


def _names(steps: Steps) -> tuple[str, ...]:
    return tuple([match.rule.id for match, _ in steps])


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
