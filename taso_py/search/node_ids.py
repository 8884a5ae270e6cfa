"""Node ids: the identity of a node that persists while only the nodes it is computed from change.

A step rebuilds everything downstream of it, but node for node. A node's id is a number that passes on to its image, so
that facts stored by node id stay valid however many steps are taken elsewhere.

Invariant: in a graph every node has exactly one id; an id is never reused for a node that is not an image.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property

from taso_py.ir.node import Node
from taso_py.rules.index import GraphIndex


class NodeIds:
    """The ids of the nodes of one graph."""

    def __init__(self, number: Mapping[Node, int]) -> None:
        self.number = number

    @staticmethod
    def fresh(index: GraphIndex, numbers: Iterator[int]) -> NodeIds:
        """Return new ids for a whole graph."""
        return NodeIds(dict(zip(index.place, numbers, strict=False)))

    @cached_property
    def node(self) -> Mapping[int, Node]:
        """The nodes by id."""
        return dict(zip(self.number.values(), self.number, strict=True))


class IdPropagation:
    """Propagation of node ids from a graph to the graph after a step."""

    def __init__(self, before: NodeIds, index: GraphIndex, images: Mapping[Node, Node], numbers: Iterator[int]) -> None:
        """Propagate node ids to the rewritten graph.

        Args:
            before: the ids of the graph before.
            index: the graph after.
            images: maps nodes to the new nodes that differ from them in their operands only.
            numbers: yields the ids of new nodes.
        """
        self.dead: list[Node] = []
        """The nodes before that have no image."""
        self.merged: set[int] = set()
        """The ids of nodes that were merged into one node, which keeps the first of them."""
        place, number = index.place, dict[Node, int]()
        for node, node_id in before.number.items():
            now = images.get(node, node)
            if now not in place:
                self.dead.append(node)
            elif number.setdefault(now, node_id) != node_id:
                self.merged |= {number[now], node_id}
        self.fresh = {node for node in place if node not in number}
        """Nodes with a new id. Some may have been there before: a step may put ``f(x)`` in place of ``x``
        where there is an ``f(x)``, whose image is ``f(f(x))`` then."""
        number.update(zip((node for node in place if node in self.fresh), numbers, strict=False))
        self.node_ids = NodeIds(number)
