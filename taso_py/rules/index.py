"""Index of a graph for matching: readers and position of each node, and nodes by operator.

Invariant: an index contains nothing that the graph does not determine; it caches what would be slow to recompute.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from functools import cached_property

from taso_py.ir.graph import Graph
from taso_py.ir.node import Node
from taso_py.ir.operator import Operator

MOST_SIBLINGS = 8
"""The most operators of a kind that read one value of which rules match three or more: 30 have 27,405 sets of four."""


def crowds(readers: Collection[Node], most: int = MOST_SIBLINGS) -> Set[type[Operator]]:
    """Return the kinds of operators of which more than ``most`` are among the readers of a value."""
    if len(readers) <= most:
        return frozenset()
    counts = Counter(type(node.op) for node in readers)
    return {kind for kind, count in counts.items() if count > most}


def is_crowded(kind: type[Operator], readers: Iterable[Collection[Node]]) -> bool:
    """Return whether each of some values has too many readers of a kind: those are merged at once, by lemmas."""
    return all(kind in crowds(of_one) for of_one in readers)


class GraphIndex:
    """A graph with lookup tables."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.place: Mapping[Node, int] = {node: place for place, node in enumerate(graph.nodes)}
        self.users = graph.users
        """The distinct nodes that read a node, in the order of the graph."""

    @cached_property
    def returned(self) -> frozenset[Node]:
        """The nodes of which a value is an output of the graph."""
        return frozenset([node for node, _ in self.graph.outputs])

    @cached_property
    def _sources(self) -> Mapping[Node, int]:
        """A node and all that it is computed from, as an integer that has a bit set for the place of each."""
        found: dict[Node, int] = {}
        for node, place in self.place.items():
            sources = 1 << place
            for operand, _ in node.inputs:
                sources |= found[operand]
            found[node] = sources
        return found

    def is_apart(self, node: Node, other: Node) -> bool:
        """Return whether neither of two nodes is computed from the other, and they are not one node."""
        sources, place = self._sources, self.place
        return not (sources[node] >> place[other] | sources[other] >> place[node]) & 1

    @cached_property
    def kinds(self) -> Set[type[Operator]]:
        """The classes of the operators."""
        return {type(node.op) for node in self.graph.nodes}

    @cached_property
    def by_operator(self) -> Mapping[type[Operator], Sequence[Node]]:
        """The nodes by the class of their operator, in the order of the graph."""
        found: dict[type[Operator], list[Node]] = {}
        for node in self.graph.nodes:
            found.setdefault(type(node.op), []).append(node)
        return found
