"""What a sequence of substitutions changed: which operators went, which came, and which belong together.

A node's digest covers all that it is computed from, so that everything after a change has another digest although it is
the same operator as before. So nodes are followed from step to step, by the replacements that each step made.

Invariant: every operator of the last graph stayed, and then is exactly one of the first graph, or came; every operator
of the first graph stayed or went.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import networkx as nx

from taso_py.ir.errors import InvariantError
from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, Value, make
from taso_py.ir.operator import LEAVES
from taso_py.rules.apply import replacements
from taso_py.rules.index import GraphIndex
from taso_py.rules.match import Match


@dataclass(frozen=True)
class Region:
    """Operators that went and those that came in their place, by one substitution or several that built on another."""

    removed: tuple[Node, ...]
    """Of the graph before, operands first."""
    added: tuple[Node, ...]
    """Of the graph after."""

    @property
    def kind(self) -> tuple[tuple[str, ...], ...]:
        """What alike regions have in common: operators and types."""
        return tuple(
            tuple(sorted(f"{node.op.text} {node.types[0] if node.types else ''}" for node in side))
            for side in (self.removed, self.added)
        )


@dataclass(frozen=True)
class Difference:
    """How two graphs differ."""

    before: Graph
    after: Graph
    stayed: Mapping[Node, Node]
    """The nodes of ``after`` that stayed, each with the node of ``before`` that it is."""
    regions: tuple[Region, ...]
    """The changed parts, those that come first in the graph first."""


def difference(before: Graph, steps: Iterable[tuple[Match, Graph]]) -> Difference:
    """What the steps of a trace changed; each is a match and the graph after it."""
    tracker = _Tracker(before)
    for match, after in steps:
        tracker.step(match, after)
    return Difference(before, tracker.graph, tracker.stayed, tuple(tracker.regions()))


class _Tracker:
    """Follows nodes from graph to graph."""

    def __init__(self, before: Graph) -> None:
        self._before = before
        self.graph = before
        self.stayed: dict[Node, Node] = {node: node for node in before.nodes}
        self._owner: dict[Node, int] = {}
        """The step that brought a node of the graph."""
        self._removed: dict[Node, int] = {}
        """The step that a node of the first graph went with."""
        self._steps: nx.Graph[int] = nx.Graph()

    def step(self, match: Match, after: Graph) -> None:
        """Follows one substitution."""
        number = len(self._steps)
        self._steps.add_node(number)
        self._steps.add_edges_from((number, self._owner[node]) for node in match.nodes if node in self._owner)
        moved = _moved(self.graph, match)
        alive = set(after.nodes)
        for node, new in moved.items():
            if new not in alive and node in self.stayed and not isinstance(node.op, LEAVES):
                self._removed[self.stayed[node]] = number
        kept = {node: new for node, new in moved.items() if new in alive}
        self.stayed = {new: self.stayed[node] for node, new in kept.items() if node in self.stayed}
        self._owner = {new: self._owner[node] for node, new in kept.items() if node in self._owner}
        for node in after.nodes:
            if node not in self.stayed and not isinstance(node.op, LEAVES):
                self._owner.setdefault(node, number)
        self.graph = after

    def regions(self) -> list[Region]:
        """Steps that built on one another, together; those that cancelled out are none."""
        found: list[Region] = []
        for steps in nx.connected_components(self._steps):
            removed = tuple(node for node in self._before.nodes if self._removed.get(node) in steps)
            added = tuple(node for node in self.graph.nodes if self._owner.get(node) in steps)
            if removed or added:
                found.append(Region(removed, added))
        place = {node: number for number, node in enumerate(self._before.nodes)}
        return sorted(found, key=lambda region: min((place[node] for node in region.removed), default=len(place)))


def _moved(graph: Graph, match: Match) -> dict[Node, Node]:
    """What each node of a graph becomes where the match is applied."""
    replaced = replacements(match, GraphIndex(graph))
    if replaced is None:
        raise InvariantError(f"the substitution {match.rule.id} does not apply; take the steps from a replay")
    moved: dict[Node, Node] = {}

    def rebuild(node: Node, inputs: tuple[Value, ...]) -> Node:
        moved[node] = node if inputs == node.inputs else make(node.op, inputs, node.token)
        return moved[node]

    graph.map(rebuild, replaced)
    return moved
