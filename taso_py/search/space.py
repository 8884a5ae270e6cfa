"""The space that is searched: states, which are graphs with their matches, and the steps between them.

Matches are remembered across steps, by the sites of what they match (:mod:`taso_py.search.sites`). A substitution makes
everything downstream of it anew, but what matched there before matches still, site for site; only around what changed
in kind are matches searched for. A step in a graph of hundreds of nodes thus costs little more than building the new
graph.

A match that reads something which is computed from what it replaces cannot be applied. A step far from it may change
that, so it is remembered as well: it is *dormant*. That a step made a match far from it circular in this way is noticed
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
from taso_py.search.change import Change
from taso_py.search.cost import Appraisal, Cost, Difference, difference, static_bytes
from taso_py.search.rewire import rewire
from taso_py.search.sites import Sites
from taso_py.search.skeleton import Skeleton, Skeletons
from taso_py.search.state import Dormant, Option, Path, State, Step


@dataclass(frozen=True, eq=False)
class Appraised:
    """A step whose graph's cost is known."""

    step: Step
    change: Change
    appraisal: Appraisal


_Key: TypeAlias = frozenset[tuple[Value, Value]]
"""What becomes what: the same for matches of different rules that do the same."""


class Space:
    """The graphs that a set of rules reaches."""

    def __init__(
        self, matcher: Matcher, cost: Cost, allows: Callable[[Match], bool], pause: Callable[[], None]
    ) -> None:
        """Prepare a space.

        Args:
            matcher: the rules.
            cost: says what graphs cost.
            allows: whether a match may be followed.
            pause: called often; may end the search by an exception.
        """
        self._matcher, self._cost, self._allows, self._pause = matcher, cost, allows, pause
        self._numbers = count()
        self._skeletons = Skeletons()

    def start(self, graph: Graph) -> State:
        """The state of a graph, without options so far."""
        index = GraphIndex(graph)
        sites = Sites.fresh(index, self._numbers)
        forms = {sites.number[node]: form for node, form in self._skeletons.of(graph).forms.items()}
        appraisal, stored = self._cost.appraise(graph), static_bytes(self._cost, graph)
        return State(graph, index, sites, forms, appraisal, stored, (), None, frozenset())

    def with_options(self, state: State) -> State:
        """A state with its options searched for from scratch."""
        found = self._matcher.matches(state.index, only_running=True)
        dormant: list[Dormant] = []
        options = self._options(found, state.index, state.sites, set(), dormant)
        return replace(state, options=options, dormant=dormant)

    def step(self, state: State, option: Option, seen: Container[Skeleton] = ()) -> Step | None:
        """The step that an option is; None if it is impossible, or leads to a graph whose skeleton was seen."""
        match = option.match(state.sites)
        replaced = replacements(match, state.index)
        if replaced is None:
            return None
        first = min(state.index.place[node] for node, _ in replaced)
        outline = self._skeletons.after(state.graph, state.form, replaced, first)
        if outline.skeleton in seen:
            return None
        graph, images = rewire(state.graph, replaced, first)
        return Step(state, match, outline, replaced, images, graph)

    def appraise(self, step: Step) -> Appraised:
        """What the graph that a step leads to costs."""
        change = Change(step, GraphIndex(step.graph), self._numbers)
        appraisal = self._cost.revise(step.before.appraisal, step.graph, step.images, change.touched)
        return Appraised(step, change, appraisal)

    def finish(self, appraised: Appraised, ends_excursion: bool = True) -> State:
        """The state that a step leads to."""
        step, change = appraised.step, appraised.change
        index, before = change.index, step.before
        known, keys, dormant = set[Identity](), set[_Key](), list[Dormant]()
        options = self._carried(change, before, known, keys, dormant)
        stirred = self._stirred(change, before, dormant)
        places = sorted(change.changed, key=index.place.__getitem__)
        new = self._matcher.around(index, places, only_running=True, known=known)
        options += self._options(chain(stirred, new), index, change.sites, keys, dormant)
        path = Path(before.path, step.match, step.graph)
        stored = static_bytes(self._cost, step.graph)
        zone = frozenset[int]() if ends_excursion else before.zone | change.zone
        return State(
            step.graph, index, change.sites, change.forms, appraised.appraisal, stored, options, path, zone, dormant
        )

    def _carried(
        self, change: Change, before: State, known: set[Identity], keys: set[_Key], dormant: list[Dormant]
    ) -> list[Option]:
        """The options of the state before that are still there, their differences brought up to date.

        What those near the changes are and do is added to ``known`` and ``keys``. Those that are dormant now are added
        to ``dormant``, but for those near the changes, which are found again.
        """
        carried: list[Option] = []
        for option in before.options:
            if change.spares(option):
                carried.append(option)
                continue
            if change.destroys(option):
                continue
            match = change.carried(option.match(before.sites))
            if match is None or _gains_nothing(match):
                continue
            self._pause()
            is_near = not change.changed.isdisjoint(match.nodes)
            way = cyclic_path(match, change.index)
            if way:
                if not is_near:
                    dormant.append(Dormant(match, change.sites, way))
                continue
            evaluated = self._evaluated(match, change.index)
            if evaluated is None:
                continue
            key, estimate = evaluated
            keys.add(key)
            if is_near:
                known.add(self._matcher.identity(match, change.index))
            carried.append(Option(match, change.sites, estimate, option))
        return carried

    def _stirred(self, change: Change, before: State, dormant: list[Dormant]) -> list[Match]:
        """The dormant matches of the state before that perhaps can be applied now; the others are added to ``dormant``.

        Those near the changes are left out: they are found again.
        """
        stirred: list[Match] = []
        for remembered in before.dormant:
            if change.leaves(remembered):
                dormant.append(remembered)
            elif not change.destroys(remembered):
                match = change.carried(remembered.match(before.sites))
                if not (match is None or _gains_nothing(match)) and change.changed.isdisjoint(match.nodes):
                    stirred.append(match)
        return stirred

    def _options(
        self, matches: Iterable[Match], index: GraphIndex, sites: Sites, keys: set[_Key], dormant: list[Dormant]
    ) -> list[Option]:
        """What matches do that is not known by its key, each with its estimate; the dormant go to ``dormant``."""
        options: list[Option] = []
        for match in matches:
            self._pause()
            if not self._allows(match):
                continue
            way = cyclic_path(match, index)
            if way:
                dormant.append(Dormant(match, sites, way))
                continue
            evaluated = self._evaluated(match, index)
            if evaluated is not None and (evaluated[0] not in keys or self._matcher.keeps_symmetric):
                keys.add(evaluated[0])
                options.append(Option(match, sites, evaluated[1]))
        return options

    def _evaluated(self, match: Match, index: GraphIndex) -> tuple[_Key, Difference] | None:
        """What a match that is not circular does, and what that is estimated to change; None if it does nothing."""
        replaced = acyclic_replacements(match)
        return None if replaced is None else (frozenset(replaced.items()), difference(self._cost, index, replaced))


def _gains_nothing(match: Match) -> bool:
    """Whether what a match computes depends on weights only, and so is computed once, at build time."""
    return all(node.is_static for node, _ in match.outputs)
