"""Base of all search strategies: the space, the clock, the graphs seen, the best so far, and the result.

Invariant: of graphs with one canonical form only one is built and kept, and only graphs within the growth limit are
results.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable

from taso_py.collector import collector_paused
from taso_py.ir.graph import Graph
from taso_py.rules.match import Matcher
from taso_py.rules.substitution import Substitution
from taso_py.search.canonical import CanonicalForm
from taso_py.search.cost import Cost
from taso_py.search.finalists import finalists_or_cheapest
from taso_py.search.result import Candidate, Limits, Progress, ProgressCallback, SearchResult, SearchStop
from taso_py.search.space import EstimatedStep, Space
from taso_py.search.state import Option, SearchState

PRECISION = 1e-5
"""Costs that differ by less than this share of the original's are equal."""


def quantized(seconds: float, step: float) -> float:
    """Return seconds as a whole number of steps, to sort by; infinite if they are unknown or undefined."""
    if -math.inf < seconds < math.inf and step > 0:
        return round(seconds / step)
    return math.inf if math.isnan(seconds) else math.copysign(math.inf, seconds) if seconds else 0.0


class _OutOfTime(Exception):
    pass


class SearchClock:
    """The time limit of a search; a call raises once it is exceeded."""

    def __init__(self, limits: Limits) -> None:
        self._seconds, self._now = limits.seconds, limits.now
        self._started = limits.now()

    @property
    def spent(self) -> float:
        """Seconds since the search began."""
        return self._now() - self._started

    def __call__(self) -> None:
        if self.spent > self._seconds:
            raise _OutOfTime


class Explorer(ABC):
    """One search; a strategy decides in which order the space is explored."""

    def __init__(
        self,
        graph: Graph,
        rules: Iterable[Substitution] | Matcher,
        cost: Cost,
        limits: Limits,
        report: ProgressCallback | None = None,
    ) -> None:
        """Create a search.

        Args:
            graph: the graph to start from.
            rules: the rules to apply; a matcher that has them prepared may be used for several searches.
            cost: gives the costs of graphs.
            limits: the limits of the search.
            report: called with the progress after every graph that is built.
        """
        self.limits = limits
        self._graph, self._cost, self._report = graph, cost, report
        self.clock = SearchClock(limits)
        self.space = Space(Matcher.of(rules), cost, limits.allows, pause=self.clock)
        self._pool: dict[frozenset[str], SearchState] = {}
        self._expansions = self._built = 0

    def run(self) -> SearchResult:
        """Run the whole search; a keyboard interrupt ends it with the best known so far.

        Raises:
            KeyboardInterrupt: it came before the cost of the original was known, so that there is no result.
        """
        with collector_paused(shared=False):
            self.original = self.best = self.space.start(self._graph)
            try:
                self._keep(self.original)
                stop = self.explore(self.space.with_options(self.original))
            except _OutOfTime:
                stop = SearchStop.TIME
            except KeyboardInterrupt:
                stop = SearchStop.INTERRUPTED
        return self._result(stop)

    @abstractmethod
    def explore(self, original: SearchState) -> SearchStop:
        """Explore the space from a state until there is a reason to stop."""

    @property
    def is_spent(self) -> bool:
        """True if the budget is used up."""
        return self._built >= self.limits.budget

    def is_valid(self, static_bytes: int) -> bool:
        """Return whether a graph that stores so many bytes may be a result."""
        return static_bytes <= self.limits.most_bytes(self.original.static_bytes)

    def build(self, state: SearchState, option: Option, seen: set[CanonicalForm]) -> EstimatedStep | None:
        """Build the graph of an option and estimate its cost; None if it is impossible or gives nothing new.

        Args:
            state: the state at which the step begins.
            option: one of its options.
            seen: the canonical forms that are not new; the graph's is added.
        """
        self.clock()
        step = self.space.step(state, option, seen)
        if step is None:
            return None
        seen.add(step.graph_form.canonical)
        self._built += 1
        if self._report is not None:
            self._report(self._progress())
        return self.space.estimate(step)

    def expand(self, estimated: EstimatedStep, ends_detour: bool) -> SearchState:
        """Return the state that a step leads to."""
        state = self.space.finish(estimated, ends_detour)
        self._expansions += 1
        self._keep(state)
        return state

    def _keep(self, state: SearchState) -> None:
        """Remember a state if it is the best, or the best of those that use the same rules."""
        if self.is_valid(state.static_bytes):
            used = frozenset(path.match.rule.id for path in state.steps)
            if used not in self._pool or state.seconds < self._pool[used].seconds:
                self._pool[used] = state
            if state.seconds < self.best.seconds:
                self.best = state

    def _progress(self) -> Progress:
        return Progress(
            self._built,
            self._expansions,
            self.original.seconds,
            best_seconds=self.best.seconds,
            seconds=self.clock.spent,
        )

    def _result(self, stop: SearchStop) -> SearchResult:
        best = sorted(self._pool.values(), key=lambda state: (state.seconds, len(state.steps)))
        best, is_whole = finalists_or_cheapest(best, self.original, self._cost, self.limits.results)
        original = self._candidate(self.original)
        return SearchResult(
            original,
            tuple([original if state is self.original else self._candidate(state) for state in best]),
            stop if is_whole else SearchStop.INTERRUPTED,
            expansions=self._expansions,
            built=self._built,
            seconds=self.clock.spent,
        )

    def _candidate(self, state: SearchState) -> Candidate:
        steps = tuple([(path.match, path.after) for path in state.steps])
        applied = tuple([match.rule.id for match, _ in steps])
        return Candidate(
            self._graph, state.graph, state.seconds, static_bytes=state.static_bytes, applied=applied, steps=steps
        )
