"""What matching asks of a graph: who reads a node, where it is, which nodes have an operator.

Invariant: an index says nothing that the graph does not determine; it holds what would be slow to ask again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
        """The distinct nodes that read a node, in the order of the graph."""

    @cached_property
    def returned(self) -> frozenset[Node]:
        """The nodes of which a value is an output of the graph."""
        return frozenset([node for node, _ in self.graph.outputs])

    @cached_property
    def by_operator(self) -> Mapping[type[Operator], Sequence[Node]]:
        """The nodes by the class of their operator, in the order of the graph."""
        found: dict[type[Operator], list[Node]] = {}
        for node in self.graph.nodes:
            found.setdefault(type(node.op), []).append(node)
        return found
