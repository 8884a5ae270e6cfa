"""Cost-guided backtracking search (Jia et al., SOSP 2019, section 5, algorithm 2), made to scale.

As there, the most promising step is taken first, and graphs are followed as long as they cost at most alpha times the
best. A step is only estimated when it enters the queue; its graph is built when it leaves it. In addition, the
following avoids exploring every order of steps that commute:

- A *base* is a state that is cheaper than all before it on its path. Steps that were possible at the base before, and
  still are, are taken at the new base only: it *supersedes* the old one for those steps, and only steps that conflict
  with the improvement remain as alternatives.
- Between bases lies a *detour*: steps that do not pay yet. Its steps touch what earlier steps of the same detour
  changed, since steps elsewhere gain the same without it. A detour that led to nothing is not repeated from a later
  base, unless something changed where it began.
- Of graphs that differ only in which weight is where (see :mod:`taso_py.search.canonical`) one is followed.

A choice that pays at once may cost more later, at many places of a model alike, and by the time this shows, the other
choice is far outside the slack. So the search makes several *descents*: the first with all rules, the next ones each
without one of the rules that the best so far uses, or without all that merge operators side by side, since what is
merged so cannot be merged into one. Then all are continued together.

A descent ends when ``patience`` graphs in a row improved its best by less than a thousandth; so does the search in the
end, unless nothing is left within the slack, or budget or time are used up, and says which. Each region ends by itself,
so that a promising one is searched further than its neighbours.

Invariant: the result depends on graph, rules, costs, limits and seed alone, as long as time does not run out.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush
from typing import TypeAlias

from taso_py.collector import collector_paused
from taso_py.ir.graph import Graph
from taso_py.rules.match import Matcher
from taso_py.rules.substitution import Substitution
from taso_py.search.canonical import CanonicalForm
from taso_py.search.cost import Cost
from taso_py.search.explorer import PRECISION, Explorer, quantized
from taso_py.search.partition import Partition
from taso_py.search.result import Limits, ProgressCallback, SearchResult, SearchStop
from taso_py.search.rolling import SearchAmongLemmas
from taso_py.search.state import Option, SearchState


def search(
    graph: Graph,
    rules: Iterable[Substitution] | Matcher,
    cost: Cost,
    limits: Limits | None = None,
    report: ProgressCallback | None = None,
) -> SearchResult:
    """Search for cheaper graphs that compute the same; a keyboard interrupt ends the search with the best known so far.

    Lemmas, as of loops over rows, are applied first and last (:mod:`taso_py.search.rolling`). Graphs with more than
    ``WHOLE`` nodes that run are searched region by region (:mod:`taso_py.search.partition`).

    Args:
        graph: the graph to start from.
        rules: the rules to apply; a matcher that has them prepared may be used for several searches.
        cost: gives the costs of graphs.
        limits: the limits of the search.
        report: called with the progress after every graph that is built.
    """
    matcher, limits = Matcher.of(rules), limits or Limits()

    def search_within(graph: Graph, limits: Limits) -> SearchResult:
        if sum(not node.is_static for node in graph.nodes) <= WHOLE:
            return Backtracking(graph, matcher, cost, limits=limits, report=report).run()
        return Partition(graph, matcher, cost, limits=limits, report=report, strategy=Backtracking).run()

    with collector_paused(shared=False):
        return SearchAmongLemmas(matcher.rules, cost, limits, search_within).run(graph)


WHOLE = 60
"""The most running nodes of a graph that is searched in one piece."""
PROGRESS = 1e-3
"""The share of the best graph's cost that has to be gained for the search to go on."""
DESCENTS = 12
"""The most descents."""
MERGES = "merges"
"""Stands among rules that a descent does without for all that replace several outputs."""
DETOUR_OPERATORS, DETOUR_SHARE = 2, 0.3
"""Number of the cheapest operators that a step may add, however small the slack, up to a share of the best graph's
cost: three products become one by way of a graph with another slice and another concatenation, and in a small model
each of them takes a tenth of the time."""


class _Base:
    """A state that is cheaper than all before it on its path, and the detours from there."""

    def __init__(self, state: SearchState, is_valid: bool) -> None:
        self.state, self.is_valid = state, is_valid
        self.taken: dict[SearchState, frozenset[Option]] = {state: frozenset()}
        """The states of its detours, and the set of steps that leads to each."""
        self.met = set[frozenset[Option]]()

    def meet(self, ticket: _Ticket) -> frozenset[Option] | None:
        """Return the steps up to and including a step; None if they were taken before in another order."""
        taken = self.taken[ticket.state] | {ticket.option.root}
        if taken in self.met:
            return None
        self.met.add(taken)
        return taken


class _Ticket:
    """A step in the queue, not taken yet."""

    __slots__ = ("_first", "base", "open", "option", "state", "superseded", "tried")

    def __init__(self, base: _Base, state: SearchState, option: Option, first: _Ticket | None = None) -> None:
        self.base, self.state, self.option = base, state, option
        self._first = first
        self.open = 0
        """For a first step: the number of further steps of its detour in the queue."""
        self.tried = False
        self.superseded = False
        """For a first step: true if it can also be taken at a base that improves on this one."""

    @property
    def first(self) -> _Ticket:
        """The first step of the detour that this step continues."""
        return self._first or self

    @property
    def estimate(self) -> float:
        """The expected cost of the graph after the step."""
        return self.state.seconds + self.option.cost_delta.seconds

    def leave(self) -> None:
        """Tell the first step of the detour that this step has left the queue."""
        self.first.open -= self is not self.first


_Entry: TypeAlias = tuple[float, int, float, int, _Ticket]


CROWD = 10_000
"""The length at which a queue is purged of steps no longer worth taking."""


class _Descent:
    """A search without some of the rules: its queue, and the best it has found."""

    def __init__(self, banned: frozenset[str], original: SearchState) -> None:
        self.banned = banned
        self.best = self.lowest = original
        """The cheapest graph that may be a result, and the cheapest of all."""
        self.queue: list[_Entry] = []
        self.seen = set[CanonicalForm]()
        self.tickets: dict[_Base, dict[Option, _Ticket]] = {}
        """The steps that can be taken at each base."""
        self._crowd = CROWD

    def push(self, entry: _Entry, bound: float) -> None:
        """Queue an entry; now and then purge entries no longer worth taking, since they keep graphs alive."""
        heappush(self.queue, entry)
        if len(self.queue) > self._crowd:
            entries, self.queue = self.queue, []
            for entry in entries:
                if not self._keeps(entry[-1], bound):
                    entry[-1].leave()
                else:
                    self.queue.append(entry)
            heapify(self.queue)
            self._crowd = max(CROWD, 2 * len(self.queue))

    def _keeps(self, ticket: _Ticket, bound: float) -> bool:
        return not ticket.first.superseded and ticket.estimate <= bound

    def next(self, bound: float) -> _Ticket | None:
        """Return the most promising ticket, after dropping those that are no longer worth taking."""
        while self.queue:
            ticket = self.queue[0][-1]
            if self._keeps(ticket, bound):
                return ticket
            self.drop()
        return None

    def allows(self, rule: Substitution) -> bool:
        """Return whether it may apply a rule."""
        return rule.id not in self.banned and not (MERGES in self.banned and _merges(rule))

    def drop(self) -> None:
        """Remove the most promising ticket."""
        heappop(self.queue)[-1].leave()


def _merges(rule: Substitution) -> bool:
    """Return whether a rule merges operators side by side: it replaces several outputs."""
    return len(rule.source.outputs) > 1


class _Progress:
    """Counts the graphs since the best cost last fell by a share of ``PROGRESS``."""

    def __init__(self, built: int, seconds: float) -> None:
        self._built, self._seconds = built, seconds

    def since(self, built: int, seconds: float) -> int:
        """Return how many graphs ago it fell, given the number that are built and the best cost now."""
        if seconds < self._seconds * (1 - PROGRESS):
            self._built, self._seconds = built, seconds
        return built - self._built


class Backtracking(Explorer):
    """The backtracking strategy; :func:`search` runs it."""

    def explore(self, original: SearchState) -> SearchStop:
        self._pushed = 0
        self._random = random.Random(self.limits.seed)
        self._least = PRECISION * self.original.seconds
        prices = filter(None, map(self._cost.node_cost, self._graph.nodes))
        self._detour_slack = DETOUR_OPERATORS * min(prices, default=0.0)
        self._descending = True
        descents: list[_Descent] = []
        waiting = [frozenset[str]()]
        while waiting and len(descents) < DESCENTS:
            descent = _Descent(waiting.pop(0), original)
            descents.append(descent)
            self._open(descent, original, None)
            self._descend(descent)
            if descent is descents[0] or self.best is descent.best:
                used = {path.match.rule for path in descent.lowest.steps}
                merges = [MERGES] if any(map(_merges, used)) else []
                names = [*merges, *sorted(rule.id for rule in used)]
                waiting += [banned for name in names if (banned := descent.banned | {name}) not in waiting]
        return self._carry_on(descents)

    def _descend(self, descent: _Descent) -> None:
        """Take the steps of a descent as long as one is expected to give the cheapest graph it has found."""
        progress = _Progress(self._built, descent.lowest.seconds)
        while not self.is_spent and progress.since(self._built, descent.lowest.seconds) < self.limits.patience:
            ticket = descent.next(self._bound(descent.best.seconds))
            if ticket is None or ticket.estimate > descent.lowest.seconds - self._least:
                return
            self._take(descent, ticket)

    def _carry_on(self, descents: Sequence[_Descent]) -> SearchStop:
        """Take the most promising steps of all descents until nothing is left within the slack, or none helps."""
        self._descending = False
        for descent in descents:
            descent.queue = [(self._rank(entry[-1], entry[-1].estimate), *entry[1:]) for entry in descent.queue]
            heapify(descent.queue)
        progress = _Progress(self._built, self.best.seconds)
        while not self.is_spent:
            if progress.since(self._built, self.best.seconds) >= self.limits.patience:
                return SearchStop.STALLED
            bound = self._bound(self.best.seconds)
            open_ = [descent for descent in descents if descent.next(bound) is not None]
            if not open_:
                return SearchStop.EXHAUSTED
            descent = min(open_, key=lambda descent: descent.queue[0][:-1])
            self._take(descent, descent.queue[0][-1])
        return SearchStop.BUDGET

    def _take(self, descent: _Descent, ticket: _Ticket) -> None:
        """Build the graph of a step, and queue its next steps if it is worth following."""
        descent.drop()
        ticket.tried = True
        taken = ticket.base.meet(ticket)
        built = self.build(ticket.state, ticket.option, descent.seen) if taken is not None else None
        if taken is None or built is None:
            return
        seconds = built.estimate.seconds
        # The true cost delta of a step is remembered for later states in which the same step can be taken.
        ticket.option.cost_delta = replace(ticket.option.cost_delta, seconds=seconds - ticket.state.seconds)
        if seconds > self._bound(descent.best.seconds):
            return
        improves = seconds < ticket.base.state.seconds - self._least
        state = self.expand(built, ends_detour=improves)
        if state.seconds < descent.lowest.seconds:
            descent.lowest = state
        if state.seconds < descent.best.seconds and self.is_valid(state.static_bytes):
            descent.best = state
        if improves:
            self._open(descent, state, ticket.base)
        else:
            ticket.base.taken[state] = taken
            self._continue(descent, state, ticket)

    def _open(self, descent: _Descent, state: SearchState, before: _Base | None) -> None:
        """Queue the steps of a new base that are within the slack; those that the base before had are superseded."""
        base = _Base(state, self.is_valid(state.static_bytes))
        worth = self._within_slack(descent, state)
        tickets = descent.tickets[base] = {option: _Ticket(base, state, option) for option in worth}
        olds = descent.tickets[before] if before is not None else {}
        for option in state.options if olds else ():
            old = olds.get(option.root)
            if old is None:
                continue
            old.superseded |= base.is_valid or not old.base.is_valid
            if option in tickets:
                # Nothing changed where a detour began that led nowhere: it would lead nowhere again.
                is_same = old.option.cost_delta is option.cost_delta
                tickets[option].tried = old.tried and not old.open and is_same
        self._push(descent, [ticket for ticket in tickets.values() if not ticket.tried])

    def _continue(self, descent: _Descent, state: SearchState, ticket: _Ticket) -> None:
        """Queue the steps within the slack that touch what the detour changed."""
        affected = state.affected
        touching = [
            _Ticket(ticket.base, state, option, first=ticket.first)
            for option in self._within_slack(descent, state)
            if not (affected.isdisjoint(option.nodes) and affected.isdisjoint(option.operands))
        ]
        self._push(descent, touching)

    def _within_slack(self, descent: _Descent, state: SearchState) -> list[Option]:
        """Return the steps of a state that a descent may take and that are within the slack, the last one first."""
        bound, seconds = self._bound(descent.best.seconds), state.seconds
        return [
            option
            for option in reversed(state.options)
            if seconds + option.cost_delta.seconds <= bound and descent.allows(option.rule)
        ]

    def _push(self, descent: _Descent, tickets: Iterable[_Ticket]) -> None:
        """Queue steps."""
        bound = self._bound(descent.best.seconds)
        for ticket in tickets:
            ticket.first.open += ticket is not ticket.first
            self._pushed += 1
            tie = self._random.random() if self.limits.seed else 0.0
            # Among equals the step found last comes first: a detour is continued before the next one begins.
            stored = ticket.option.cost_delta.static_bytes
            entry = self._rank(ticket, ticket.estimate), stored, tie, -self._pushed, ticket
            descent.push(entry, bound)

    def _bound(self, best_s: float) -> float:
        """Return the highest cost of a graph that is followed, given the best cost; that itself if alpha is 1."""
        detour = min(self._detour_slack, DETOUR_SHARE * best_s) if self.limits.alpha > 1 else 0.0
        return max(self.limits.alpha * best_s, best_s + detour)

    def _rank(self, ticket: _Ticket, estimate: float) -> float:
        """Return the sort key of a ticket: its estimate, increased if its graph stores too much to be a result."""
        cost_delta = ticket.option.cost_delta
        stored = ticket.state.static_bytes + cost_delta.static_bytes
        # Weights that are shared are merged at one place after the other and stored twice until the last, which pays at
        # every step. Any other way through graphs that store too much waits until there is nothing better to do.
        if not self.is_valid(stored) and not (self._descending and cost_delta.seconds < 0):
            estimate *= stored / max(self.original.static_bytes, 1)
        return quantized(estimate, self._least)
