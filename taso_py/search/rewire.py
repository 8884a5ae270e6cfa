"""Replacing values in a graph at the price of what lies downstream of them.

Invariant: the result is that of ``Graph.replace``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set

from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, Value, remake


def rewire(graph: Graph, replaced: Mapping[Value, Value], first: int = 0) -> tuple[Graph, dict[Node, Node]]:
    """The graph after values are replaced, and what the nodes became that read something else now.

    Args:
        graph: the graph before.
        replaced: what is read in place of values.
        first: the place of the first replaced value in the graph's order, or any before it.
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
    """The nodes that read one of the affected nodes, in the graph's order; what is added to the set meanwhile counts.

    Args:
        graph: the graph.
        affected: some of its nodes.
        first: the place of the first of them in the graph's order, or any before it.
    """
    for node in graph.nodes[first:]:
        for operand, _ in node.inputs:
            if operand in affected:
                yield node
                break
