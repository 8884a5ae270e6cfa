"""Greedy search: take the best improving step until none improves.

A compiler with templates does the same, with measured costs; backtracking is compared with it.

Invariant: every step of the result made the graph cheaper. Among equal steps the one that stores least is taken, so
that shared weights are merged in the same way everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable

from taso_py.ir.graph import Graph
from taso_py.rules.match import Matcher
from taso_py.rules.substitution import Substitution
from taso_py.search.cost import Cost
from taso_py.search.engine import PRECISION, Engine, in_steps
from taso_py.search.result import Limits, Report, SearchResult, StopReason
from taso_py.search.skeleton import Skeleton
from taso_py.search.state import State


def search(
    graph: Graph,
    rules: Iterable[Substitution] | Matcher,
    cost: Cost,
    limits: Limits | None = None,
    report: Report | None = None,
) -> SearchResult:
    """Improve a graph step by step; like :func:`taso_py.search.backtracking.search`, but without alpha and seed."""
    return _Greedy(graph, rules, cost, limits or Limits(), report).run()


class _Greedy(Engine):
    def explore(self, original: State) -> StopReason:
        self._seen = set[Skeleton]()
        state: State | None = original
        while state is not None:
            if self.is_spent:
                return StopReason.BUDGET
            state = self._improved(state)
        return StopReason.BUDGET if self.is_spent else StopReason.EXHAUSTED

    def _improved(self, state: State) -> State | None:
        """Return the state after the first step, most promising first, that makes the graph cheaper."""
        least = PRECISION * self.original.seconds
        promising = [option for option in state.options if option.difference.seconds <= -least]
        promising.sort(key=lambda o: (in_steps(o.difference.seconds, least), o.difference.static_bytes))
        for option in promising:
            if self.is_spent:
                break
            built = self.build(state, option, self._seen)
            if built is not None and built.appraisal.seconds < state.seconds - least:
                return self.expand(built, ends_excursion=True)
        return None
