"""Difference between a graph and its rewritten form: the removed and added operators, grouped into changed regions.

A node's digest covers everything that it is computed from, so all nodes after a change have other digests although
their operators are unchanged. So nodes are tracked from step to step, by the replacements that each step made.

Invariant: every operator of the last graph either is kept and corresponds to exactly one of the first graph, or is
added; every operator of the first graph is kept or removed.
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
class ChangedRegion:
    """Operators that one substitution, or several dependent ones, removed and added."""

    removed: tuple[Node, ...]
    """Removed nodes of the first graph, operands first."""
    added: tuple[Node, ...]
    """Added nodes of the last graph."""

    @property
    def kind(self) -> tuple[tuple[str, ...], ...]:
        """Operators and types, which are equal for similar regions."""
        return tuple(
            tuple(sorted(f"{node.op.text} {node.types[0] if node.types else ''}" for node in side))
            for side in (self.removed, self.added)
        )


@dataclass(frozen=True)
class GraphDifference:
    """The difference between two graphs."""

    before: Graph
    after: Graph
    stayed: Mapping[Node, Node]
    """Kept nodes of ``after``, each with its node of ``before``."""
    regions: tuple[ChangedRegion, ...]
    """The changed regions, in the order of the first graph."""


def difference(before: Graph, steps: Iterable[tuple[Match, Graph]]) -> GraphDifference:
    """Return the difference that the steps of a trace make; each is a match and the graph after it."""
    tracker = _Tracker(before)
    for match, after in steps:
        tracker.step(match, after)
    return GraphDifference(before, tracker.graph, tracker.stayed, tuple(tracker.regions()))


class _Tracker:
    """Tracks nodes from graph to graph."""

    def __init__(self, before: Graph) -> None:
        self._before = before
        self.graph = before
        self.stayed: dict[Node, Node] = {node: node for node in before.nodes}
        self._owner: dict[Node, int] = {}
        """The step that added a node of the graph."""
        self._removed: dict[Node, int] = {}
        """The step that removed a node of the first graph."""
        self._steps: nx.Graph[int] = nx.Graph()

    def step(self, match: Match, after: Graph) -> None:
        """Apply one substitution."""
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

    def regions(self) -> list[ChangedRegion]:
        """Return the regions of connected steps, without those that cancelled out."""
        found: list[ChangedRegion] = []
        for steps in nx.connected_components(self._steps):
            removed = tuple(node for node in self._before.nodes if self._removed.get(node) in steps)
            added = tuple(node for node in self.graph.nodes if self._owner.get(node) in steps)
            if removed or added:
                found.append(ChangedRegion(removed, added))
        place = {node: number for number, node in enumerate(self._before.nodes)}
        return sorted(found, key=lambda region: min((place[node] for node in region.removed), default=len(place)))


def _moved(graph: Graph, match: Match) -> dict[Node, Node]:
    """Return the node that each node of a graph becomes when the match is applied."""
    replaced = replacements(match, GraphIndex(graph))
    if replaced is None:
        raise InvariantError(f"the substitution {match.rule.id} does not apply; take the steps from a replay")
    moved: dict[Node, Node] = {}

    def rebuild(node: Node, inputs: tuple[Value, ...]) -> Node:
        moved[node] = node if inputs == node.inputs else make(node.op, inputs, node.token)
        return moved[node]

    graph.map(rebuild, replaced)
    return moved
