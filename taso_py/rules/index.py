"""What matching asks of a graph: who reads a node, where it is, what depends on what.

Invariant: an index says nothing that the graph does not determine; it holds what would be slow to ask again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from taso_py.ir.graph import Graph
from taso_py.ir.node import Node
from taso_py.ir.operator import Operator


class GraphIndex:
    """A graph, with what can be looked up in it."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.place: Mapping[Node, int] = {node: place for place, node in enumerate(graph.nodes)}
        self.users = graph.users

    @cached_property
    def by_operator(self) -> Mapping[type[Operator], Sequence[Node]]:
        """The nodes by the class of their operator, in the order of the graph."""
        found: dict[type[Operator], list[Node]] = {}
        for node in self.graph.nodes:
            found.setdefault(type(node.op), []).append(node)
        return found

    @cached_property
    def _ancestors(self) -> list[int]:
        """For each node the set of nodes that it is computed from, itself included, as the bits of a number."""
        sets: list[int] = []
        for place, node in enumerate(self.graph.nodes):
            bits = 1 << place
            for operand, _ in node.inputs:
                bits |= sets[self.place[operand]]
            sets.append(bits)
        return sets

    def depends(self, nodes: Iterable[Node], on: Iterable[Node]) -> bool:
        """Whether any of some nodes is, or is computed from, any of some others; all are in the graph."""
        mask = 0
        for node in on:
            mask |= 1 << self.place[node]
        return any(self._ancestors[self.place[node]] & mask for node in nodes)
