"""Greedy search: the best improving step, again and again, until none improves.

It is what a compiler with templates does, with measured costs; backtracking is judged against it.

Invariant: every step of the result made the graph cheaper. Among equals the one that stores least is taken, so that
weights which are shared are merged in the same way everywhere.
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
    """Improves a graph step by step; as :func:`taso_py.search.backtracking.search`, alpha and seed without meaning."""
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
        """The state after the first step, most promising first, that makes the graph cheaper."""
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
