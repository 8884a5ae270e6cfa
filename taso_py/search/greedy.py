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
from taso_py.search.canonical import CanonicalForm
from taso_py.search.cost import Cost
from taso_py.search.explorer import PRECISION, Explorer, quantized
from taso_py.search.result import Limits, ProgressCallback, SearchResult, SearchStop
from taso_py.search.state import SearchState


def search(
    graph: Graph,
    rules: Iterable[Substitution] | Matcher,
    cost: Cost,
    limits: Limits | None = None,
    report: ProgressCallback | None = None,
) -> SearchResult:
    """Improve a graph step by step; like :func:`taso_py.search.backtracking.search`, but without alpha and seed."""
    return _Greedy(graph, rules, cost, limits=limits or Limits(), report=report).run()


class _Greedy(Explorer):
    def explore(self, original: SearchState) -> SearchStop:
        self._seen = set[CanonicalForm]()
        state: SearchState | None = original
        while state is not None:
            if self.is_spent:
                return SearchStop.BUDGET
            state = self._improved(state)
        return SearchStop.BUDGET if self.is_spent else SearchStop.EXHAUSTED

    def _improved(self, state: SearchState) -> SearchState | None:
        """Return the state after the first step, most promising first, that makes the graph cheaper."""
        least = PRECISION * self.original.seconds
        promising = [option for option in state.options if option.cost_delta.seconds <= -least]
        promising.sort(key=lambda o: (quantized(o.cost_delta.seconds, least), o.cost_delta.static_bytes))
        for option in promising:
            if self.is_spent:
                break
            built = self.build(state, option, self._seen)
            if built is not None and built.estimate.seconds < state.seconds - least:
                return self.expand(built, ends_detour=True)
        return None
