"""The space that is searched: states, which are graphs with their matches, and the steps between them.

Matches are remembered across steps. A substitution makes everything downstream of it anew, but what matched there
before matches still, node for node; only around what changed in kind are matches searched for. A step in a graph of
hundreds of nodes thus costs little more than building the new graph.

Invariant: the options of a state are the matches that can be applied to its graph, each once up to the symmetries of
its rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, Value
from taso_py.rules.apply import replacements
from taso_py.rules.index import GraphIndex
from taso_py.rules.match import Match, Matcher
from taso_py.search.cost import Appraisal, Cost, Difference, created_nodes, difference, static_bytes
from taso_py.search.rewire import rewire


class Option:
    """A match in a state's graph, with what applying it is estimated to change."""

    __slots__ = ("difference", "match", "origin")

    def __init__(self, match: Match, difference: Difference, origin: Option | None = None) -> None:
        self.match, self.difference = match, difference
        self.origin = origin
        """The option of the state before that this one is, carried over; None where it is new."""

    @property
    def root(self) -> Option:
        """The first of the options that this one was carried over from."""
        option = self
        while option.origin is not None:
            option = option.origin
        return option


@dataclass(frozen=True, eq=False)
class Path:
    """How a state was reached: the last step, and the path before it."""

    before: Path | None
    match: Match
    after: Graph


@dataclass(frozen=True, eq=False)
class State:
    """A graph, what it costs, and what can be done with it."""

    graph: Graph
    index: GraphIndex
    appraisal: Appraisal
    static_bytes: int
    options: Sequence[Option]
    path: Path | None
    zone: frozenset[Node]
    """The nodes that the steps of the present excursion made or connected anew."""

    @property
    def seconds(self) -> float:
        """What the graph costs."""
        return self.appraisal.seconds

    @property
    def steps(self) -> Sequence[Path]:
        """The path from the original graph, first step first."""
        steps: list[Path] = []
        path = self.path
        while path is not None:
            steps.append(path)
            path = path.before
        return steps[::-1]


@dataclass(frozen=True, eq=False)
class Step:
    """A step from a state to a graph whose matches are not known yet."""

    before: State
    option: Option
    replaced: Mapping[Value, Value]
    images: Mapping[Node, Node]
    """What nodes became that read something else now; the new node may be dead."""
    graph: Graph

    def image(self, node: Node) -> Node:
        """What a node became; of a node whose value is replaced, what it would be without that."""
        return self.images.get(node, node)

    def value(self, before: Value) -> Value:
        """What is read in place of a value."""
        return self.replaced.get(before) or Value(self.image(before.node), before.output)


@dataclass(frozen=True, eq=False)
class Appraised:
    """A step whose graph's cost is known."""

    step: Step
    change: Change
    appraisal: Appraisal


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

    def start(self, graph: Graph) -> State:
        """The state of a graph, without options so far."""
        appraisal, stored = self._cost.appraise(graph), static_bytes(self._cost, graph)
        return State(graph, GraphIndex(graph), appraisal, stored, (), None, frozenset())

    def with_options(self, state: State) -> State:
        """A state with its options searched for from scratch."""
        return replace(state, options=self._options(self._matcher.matches(state.index), state.index))

    def step(self, state: State, option: Option) -> Step | None:
        """The step that an option is, or None if it turns out to be impossible."""
        replaced = replacements(option.match, state.index)
        if replaced is None:
            return None
        first = min(state.index.place[node] for node, _ in replaced)
        graph, images = rewire(state.graph, replaced, first)
        return Step(state, option, replaced, images, graph)

    def appraise(self, step: Step) -> Appraised:
        """What the graph that a step leads to costs."""
        change = Change(step, GraphIndex(step.graph))
        appraisal = self._cost.revise(step.before.appraisal, step.graph, step.images, change.touched)
        return Appraised(step, change, appraisal)

    def finish(self, appraised: Appraised, ends_excursion: bool = True) -> State:
        """The state that a step leads to."""
        step, change = appraised.step, appraised.change
        index, before = change.index, step.before
        options = self._carried(change, index, before.options)
        near = (option.match for option in options if not change.changed.isdisjoint(option.match.nodes))
        known = {self._matcher.identity(match, index) for match in near}
        found = self._matcher.around(index, sorted(change.changed, key=index.place.__getitem__))
        options += self._options((m for m in found if self._matcher.identity(m, index) not in known), index)
        path = Path(before.path, step.option.match, step.graph)
        stored = static_bytes(self._cost, step.graph)
        zone = frozenset[Node]() if ends_excursion else change.zone(before.zone)
        return State(step.graph, index, appraised.appraisal, stored, options, path, zone)

    def _carried(self, change: Change, index: GraphIndex, options: Iterable[Option]) -> list[Option]:
        """The options of the state before that are still there, their differences brought up to date."""
        outputs = frozenset(index.graph.outputs)
        carried: list[Option] = []
        for option in filter(None, map(change.carried, options)):
            if change.may_change_difference(option.match):
                self._pause()
                estimate = self._difference(option.match, index, outputs)
                if estimate is None:
                    continue
                option.difference = estimate
            carried.append(option)
        return carried

    def _options(self, matches: Iterable[Match], index: GraphIndex) -> list[Option]:
        outputs = frozenset(index.graph.outputs)
        options: list[Option] = []
        for match in matches:
            self._pause()
            # What depends on weights only is computed once, at build time: rewriting it gains nothing.
            if self._allows(match) and not all(node.is_static for node, _ in match.outputs):
                estimate = self._difference(match, index, outputs)
                if estimate is not None:
                    options.append(Option(match, estimate))
        return options

    def _difference(self, match: Match, index: GraphIndex, outputs: frozenset[Value]) -> Difference | None:
        replaced = replacements(match, index)
        return None if replaced is None else difference(self._cost, index, outputs, replaced)


class Change:
    """What a step changed, as seen from the graph after it."""

    def __init__(self, step: Step, index: GraphIndex) -> None:
        self.index = index
        self._step, self._place = step, index.place
        before, image = step.before.index, step.image
        created = set(created_nodes(before, step.replaced))
        readers = {image(user) for old in step.replaced for user in before.users[old.node] if old in user.inputs}
        remaining = {old.node for old in step.replaced}
        self.changed = self._alive(created | readers | remaining | _merged_readers(step, created, index))
        """A match that is new contains one of these."""
        dead = [node for node in before.place if image(node) not in index.place]
        lost = {image(operand) for node in dead for operand, _ in node.inputs}
        won = {operand for node in created for operand, _ in node.inputs}
        won.update(node for node, _ in step.replaced.values())
        self.touched = self.changed | self._alive(lost | won)
        """These, and the nodes that lost or won readers."""
        came = {node for node in created if created.isdisjoint(operand for operand, _ in node.inputs)}
        weights = {node for node in self.touched if node.is_static and node.inputs}
        self._operands = [set(node.inputs) for node in came | weights]
        self._operands += [set(map(step.value, node.inputs)) for node in dead]
        """What nodes are computed from that came or went, or are stored or no longer: targets may contain them."""

    def _alive(self, nodes: set[Node]) -> set[Node]:
        return {node for node in nodes if node in self._place}

    def zone(self, before: Iterable[Node]) -> frozenset[Node]:
        """What an excursion touched up to this step, weights apart."""
        moved = self._alive(set(map(self._step.image, before))) | self.touched
        return frozenset(node for node in moved if not node.is_static)

    def carried(self, option: Option) -> Option | None:
        """An option of the state before, carried over; None if the step destroyed the match."""
        match, step = option.match, self._step
        nodes = tuple([step.images.get(node, node) for node in match.nodes])
        for node in nodes:
            if node not in self._place:
                return None
        for old in step.replaced:
            if old.node in match.nodes:
                return None
        values = {name: step.value(value) for name, value in match.values.items()}
        if nodes != match.nodes or values != match.values:
            outputs = tuple([Value(step.image(node), output) for node, output in match.outputs])
            if len(set(outputs)) < len(set(match.outputs)):
                return None
            match = replace(match, nodes=nodes, values=values, outputs=outputs)
        return Option(match, option.difference, option)

    def may_change_difference(self, match: Match) -> bool:
        """Whether what the match would create may exist now, or what it would remove or store may be needed now."""
        if not self.touched.isdisjoint(match.nodes):
            return True
        values = match.values.values()
        for operands in self._operands:
            if operands.issubset(values):
                return True
        return any(node.is_static and node in self.touched for node, _ in values)


def _merged_readers(step: Step, created: set[Node], index: GraphIndex) -> set[Node]:
    """The readers of nodes that several different nodes became: only now have they an operand in common."""
    seen, merged = set(created), set[Node]()
    for node in step.images.values():
        (merged if node in seen or node in step.before.index.place else seen).add(node)
    return {user for node in merged for user in index.users.get(node, ())}
