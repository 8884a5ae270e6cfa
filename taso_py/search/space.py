"""The search space: states, which are graphs with their matches, and the steps between them.

Matches are remembered across steps, by the ids of the nodes that they match (:mod:`taso_py.search.node_ids`). A
substitution rebuilds everything downstream of it, but matches there remain, id for id; new matches are searched for
only around nodes that really changed. A step in a graph of hundreds of nodes thus costs little more than building the
new graph.

A match that reads something which is computed from what it replaces cannot be applied. A step far from it may change
that, so it is remembered as well: it is *blocked*. (Matches of rules with three outputs or more are not: there may be
thousands, and rules with two reach the same.) If a step makes a match far from it circular in this way, that is noticed
only when the option is to be followed.

Invariant: the options of a state are the matches that can be applied to its graph, each once up to the symmetries of
its rule, and once where several rules do the same; and perhaps some that became circular, of which the step is None.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, replace
from itertools import chain, count
from typing import TypeAlias

from taso_py.ir.graph import Graph
from taso_py.ir.node import Value
from taso_py.rules.apply import acyclic_replacements, cyclic_path, replacements
from taso_py.rules.index import GraphIndex
from taso_py.rules.match import Identity, Match, Matcher
from taso_py.search.canonical import CanonicalForm, CanonicalForms
from taso_py.search.change import GraphChange
from taso_py.search.cost import Cost, CostDelta, CostEstimate, cost_delta, static_bytes
from taso_py.search.node_ids import NodeIds
from taso_py.search.rewire import rewire
from taso_py.search.state import BlockedMatch, Option, Path, SearchState, SearchStep


@dataclass(frozen=True, eq=False)
class EstimatedStep:
    """A step with the estimated cost of its graph."""

    step: SearchStep
    change: GraphChange
    estimate: CostEstimate


_Key: TypeAlias = frozenset[tuple[Value, Value]]
"""The values replaced and their replacements, equal for matches of different rules with the same effect."""


class Space:
    """The graphs that a set of rules reaches."""

    def __init__(
        self, matcher: Matcher, cost: Cost, allows: Callable[[Match], bool], pause: Callable[[], None]
    ) -> None:
        """Create a space.

        Args:
            matcher: the rules.
            cost: gives the costs of graphs.
            allows: returns whether a match may be followed.
            pause: called often; may end the search by an exception.
        """
        self._matcher, self._cost, self._allows, self._pause = matcher, cost, allows, pause
        self._numbers = count()
        self._canonical_forms = CanonicalForms()

    def start(self, graph: Graph) -> SearchState:
        """Return the state of a graph, without options so far."""
        index = GraphIndex(graph)
        node_ids = NodeIds.fresh(index, self._numbers)
        forms = {node_ids.number[node]: form for node, form in self._canonical_forms.of(graph).forms.items()}
        estimate, stored = self._cost.estimate(graph), static_bytes(self._cost, graph)
        return SearchState(
            graph,
            index,
            node_ids,
            forms=forms,
            estimate=estimate,
            static_bytes=stored,
            options=(),
            path=None,
            affected=frozenset(),
        )

    def with_options(self, state: SearchState) -> SearchState:
        """Return a state with its options, searched for from scratch."""
        found = self._matcher.matches(state.index, only_running=True)
        blocked: list[BlockedMatch] = []
        options = self._options(found, state.index, state.node_ids, keys=set(), blocked=blocked)
        return replace(state, options=options, blocked=blocked)

    def step(self, state: SearchState, option: Option, seen: Container[CanonicalForm] = ()) -> SearchStep | None:
        """Return the step of an option; None if it is impossible, or leads to a graph whose canonical form was seen."""
        match = option.match(state.node_ids)
        replaced = replacements(match, state.index)
        if replaced is None:
            return None
        first = min(state.index.place[node] for node, _ in replaced)
        graph_form = self._canonical_forms.after(state.graph, state.form, replaced, first)
        if graph_form.canonical in seen:
            return None
        graph, images = rewire(state.graph, replaced, first)
        return SearchStep(state, match, graph_form, replaced=replaced, images=images, graph=graph)

    def estimate(self, step: SearchStep) -> EstimatedStep:
        """Estimate the cost of the graph that a step leads to."""
        change = GraphChange(step, GraphIndex(step.graph), self._numbers)
        estimate = self._cost.revise(step.before.estimate, step.graph, step.images, change.touched)
        return EstimatedStep(step, change, estimate)

    def finish(self, estimated: EstimatedStep, ends_detour: bool = True) -> SearchState:
        """Return the state that a step leads to."""
        step, change = estimated.step, estimated.change
        index, before = change.index, step.before
        known, keys, blocked = set[Identity](), set[_Key](), list[BlockedMatch]()
        options = self._carried(change, before, known, keys=keys, blocked=blocked)
        unblocked = self._unblocked(change, before, blocked)
        places = sorted(change.changed, key=index.place.__getitem__)
        new = self._matcher.around(index, places, only_running=True, known=known)
        options += self._options(chain(unblocked, new), index, change.node_ids, keys=keys, blocked=blocked)
        path = Path(before.path, step.match, step.graph)
        stored = static_bytes(self._cost, step.graph)
        affected = frozenset[int]() if ends_detour else before.affected | change.affected
        return SearchState(
            step.graph,
            index,
            change.node_ids,
            forms=change.forms,
            estimate=estimated.estimate,
            static_bytes=stored,
            options=options,
            path=path,
            affected=affected,
            blocked=blocked,
        )

    def _carried(
        self,
        change: GraphChange,
        before: SearchState,
        known: set[Identity],
        keys: set[_Key],
        blocked: list[BlockedMatch],
    ) -> list[Option]:
        """Return the options of the state before that remain, with their cost deltas brought up to date.

        Identities and keys of those near the changes are added to ``known`` and ``keys``. Options that are blocked now
        are added to ``blocked``, except those near the changes, which are found again.
        """
        carried: list[Option] = []
        for option in before.options:
            if change.spares(option):
                carried.append(option)
                continue
            if change.destroys(option):
                continue
            match = self._surviving(change, option.match(before.node_ids))
            if match is None:
                continue
            self._pause()
            is_near = not change.changed.isdisjoint(match.nodes)
            way = cyclic_path(match, change.index)
            if way:
                if not is_near:
                    blocked.append(BlockedMatch(match, change.node_ids, way))
                continue
            if is_near:  # rules that do the same are told by the same of their matches that differ by a symmetry
                identity, match = self._matcher.as_found(match, change.index)
                known.add(identity)
            evaluated = self._evaluated(match, change.index)
            if evaluated is None:
                continue
            key, delta = evaluated
            keys.add(key)
            carried.append(Option(match, change.node_ids, delta, origin=option))
        return carried

    def _unblocked(self, change: GraphChange, before: SearchState, blocked: list[BlockedMatch]) -> list[Match]:
        """Return the blocked matches of the state before that may be applicable now; add the others to ``blocked``.

        Matches near the changes are left out: they are found again.
        """
        unblocked: list[Match] = []
        for cached in before.blocked:
            if change.leaves(cached):
                blocked.append(cached)
            elif not change.destroys(cached):
                match = self._surviving(change, cached.match(before.node_ids))
                if match is not None and change.changed.isdisjoint(match.nodes):
                    unblocked.append(match)
        return unblocked

    def _surviving(self, change: GraphChange, match: Match) -> Match | None:
        """Return a match in terms of the graph after a change; None if it would not be found there from scratch."""
        found = change.carried(match)
        is_lost = found is None or _gains_nothing(found) or self._matcher.leaves_out(found, change.index)
        return None if is_lost else found

    def _options(
        self,
        matches: Iterable[Match],
        index: GraphIndex,
        node_ids: NodeIds,
        keys: set[_Key],
        blocked: list[BlockedMatch],
    ) -> list[Option]:
        """Return options for the matches with a new effect, with their cost deltas; add the blocked to ``blocked``."""
        options: list[Option] = []
        for match in matches:
            self._pause()
            if not self._allows(match):
                continue
            way = cyclic_path(match, index)
            if way:
                blocked.append(BlockedMatch(match, node_ids, way))
                continue
            evaluated = self._evaluated(match, index)
            if evaluated is not None and (evaluated[0] not in keys or self._matcher.keeps_all):
                keys.add(evaluated[0])
                options.append(Option(match, node_ids, evaluated[1]))
        return options

    def _evaluated(self, match: Match, index: GraphIndex) -> tuple[_Key, CostDelta] | None:
        """Return the key of a match that is not circular, and its cost delta; None if it has no effect."""
        replaced = acyclic_replacements(match)
        return None if replaced is None else (frozenset(replaced.items()), cost_delta(self._cost, index, replaced))


def _gains_nothing(match: Match) -> bool:
    """Return whether a match computes only values that depend on weights, and so are computed once, at build time."""
    return all(node.is_static for node, _ in match.outputs)
