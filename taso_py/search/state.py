"""States: graphs with their matches, and the steps from one to the next.

Invariant: the options of a state, and its blocked matches, are matches in its graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, Value
from taso_py.rules.index import GraphIndex
from taso_py.rules.match import Match
from taso_py.rules.substitution import Substitution
from taso_py.search.canonical import GraphForm
from taso_py.search.cost import CostDelta, CostEstimate
from taso_py.search.node_ids import NodeIds


class CachedMatch:
    """A match in a state's graph, stored by the ids of its nodes.

    States share it as long as nothing changes there.
    """

    __slots__ = ("_born", "nodes", "operands")

    def __init__(self, match: Match, node_ids: NodeIds) -> None:
        self._born = match
        self.nodes = tuple([node_ids.number[node] for node in match.nodes])
        """The ids of the nodes that the operators are matched to."""
        self.operands = tuple([node_ids.number[node] for node, _ in match.values.values()])
        """The ids of the nodes that the variables are bound to."""

    @property
    def rule(self) -> Substitution:
        """The rule that is applied."""
        return self._born.rule

    def match(self, node_ids: NodeIds) -> Match:
        """Return the match in the graph that has these node ids."""
        born, node = self._born, node_ids.node
        nodes = [node[node_id] for node_id in self.nodes]
        now = dict(zip(born.nodes, nodes, strict=True))
        named = zip(born.values.items(), self.operands, strict=True)
        return Match(
            born.rule,
            tuple(nodes),
            {name: Value(node[node_id], value.output) for (name, value), node_id in named},
            born.sizes,
            born.dtype,
            tuple([Value(now[before], output) for before, output in born.outputs]),
        )


class Option(CachedMatch):
    """A match that can be applied, with its estimated cost delta."""

    __slots__ = ("cost_delta", "origin")

    def __init__(self, match: Match, node_ids: NodeIds, cost_delta: CostDelta, origin: Option | None = None) -> None:
        super().__init__(match, node_ids)
        self.cost_delta = cost_delta
        self.origin = origin
        """The option of an earlier state that this one was carried over from after a change; None for a new one."""

    @property
    def root(self) -> Option:
        """The first of the options that this one was carried over from."""
        option = self
        while option.origin is not None:
            option = option.origin
        return option


class BlockedMatch(CachedMatch):
    """A match that cannot be applied for now: something that it reads is computed from what it replaces."""

    __slots__ = ("blockers",)

    def __init__(self, match: Match, node_ids: NodeIds, way: Iterable[Node]) -> None:
        super().__init__(match, node_ids)
        self.blockers = frozenset([*self.operands, *[node_ids.number[node] for node in way]])
        """The ids of the nodes it reads, and of a dependency path through them: while all exist, it remains blocked."""


@dataclass(frozen=True, eq=False)
class Path:
    """The history of a state: the last step, and the path before it."""

    before: Path | None
    match: Match
    after: Graph


@dataclass(frozen=True, eq=False)
class SearchState:
    """A graph, its cost, and the rewrites that can be applied to it."""

    graph: Graph
    index: GraphIndex
    node_ids: NodeIds
    forms: Mapping[int, int]
    """The canonical forms of the nodes by node id (see :mod:`taso_py.search.canonical`)."""
    estimate: CostEstimate
    static_bytes: int
    options: Sequence[Option]
    path: Path | None
    affected: frozenset[int]
    """The ids of the nodes that the steps of the present detour made or connected anew."""
    blocked: Sequence[BlockedMatch] = ()

    def form(self, node: Node) -> int | None:
        """Return the canonical form of a node, None for one that is not in the graph."""
        node_id = self.node_ids.number.get(node)
        return None if node_id is None else self.forms[node_id]

    @property
    def seconds(self) -> float:
        """The cost of the graph."""
        return self.estimate.seconds

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
class SearchStep:
    """A step from a state to a graph whose matches are not known yet."""

    before: SearchState
    match: Match
    graph_form: GraphForm
    replaced: Mapping[Value, Value]
    images: Mapping[Node, Node]
    """Maps nodes that read something else now to their new nodes, which may be dead."""
    graph: Graph

    def image(self, node: Node) -> Node:
        """Return the new node of a node; for a node with a replaced value, the node it would be without that."""
        return self.images.get(node, node)

    def value(self, before: Value) -> Value:
        """Return the value that is read in place of a value."""
        return self.replaced.get(before) or Value(self.image(before.node), before.output)
