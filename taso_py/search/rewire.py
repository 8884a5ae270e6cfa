"""Replacement of values in a graph, at a cost proportional to the nodes downstream.

Invariant: the result is that of ``Graph.replace``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set

from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, Value, remake


def rewire(graph: Graph, replaced: Mapping[Value, Value], first: int = 0) -> tuple[Graph, dict[Node, Node]]:
    """Replace values; return the graph, and the new nodes for those that read something else now.

    Args:
        graph: the graph before.
        replaced: maps values to their replacements.
        first: the position of the first replaced value in the graph's order, or any before it.
    """
    images: dict[Node, Node] = {}
    affected = {node for node, _ in replaced}

    def moved(value: Value) -> Value:
        if value.node not in affected:
            return value
        return replaced.get(value) or Value(images.get(value.node, value.node), value.output)

    for node in readers(graph, affected, first):
        new = remake(node, [moved(value) for value in node.inputs])
        if new is not node:
            images[node] = new
            affected.add(node)
    effects = tuple([images.get(node, node) for node in graph.effects])
    return Graph(graph.inputs, tuple(map(moved, graph.outputs)), effects), images


def readers(graph: Graph, affected: Set[Node], first: int = 0) -> Iterator[Node]:
    """Yield the nodes that read an affected node, in the graph's order; nodes added to the set meanwhile count.

    Args:
        graph: the graph.
        affected: some of its nodes.
        first: the position of the first of them in the graph's order, or any before it.
    """
    for node in graph.nodes[first:]:
        for operand, _ in node.inputs:
            if operand in affected:
                yield node
                break
