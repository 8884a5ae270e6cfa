"""The interface of costs as the search uses them, and the cost effect of a substitution.

Invariant: a cost delta is computed from the added and removed nodes, never from whole graphs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Protocol

from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, Value
from taso_py.ir.operator import Constant
from taso_py.rules.index import GraphIndex


class CostEstimate(Protocol):
    """The cost estimate of a graph."""

    @property
    def seconds(self) -> float:
        """The latency of the graph."""
        ...


class Cost(Protocol):
    """Latencies of graphs and of the nodes in them, in seconds, and the memory that their weights take."""

    def graph_cost(self, graph: Graph) -> float:
        """Return the latency of a graph."""
        ...

    def estimate(self, graph: Graph) -> CostEstimate:
        """Return the estimate of a graph, from which those of graphs made from it can be revised cheaply."""
        ...

    def revise(self, before: Any, graph: Graph, images: Mapping[Node, Node], touched: Set[Node]) -> CostEstimate:
        """Return the estimate of a graph that was made from another.

        Args:
            before: the estimate of the other graph, by this cost.
            graph: the new graph.
            images: maps nodes to the new nodes that differ from them in their operands only.
            touched: the nodes that are new, read something else than before, or lost or gained readers.
        """
        ...

    def for_part(self, whole: Any, inputs: Mapping[Value, Value], outputs: Sequence[Value]) -> Cost:
        """Return the cost of graphs that replace a part of another.

        Args:
            whole: the estimate of the other graph, by this cost.
            inputs: maps the part's inputs to values of the other graph.
            outputs: the values of the other graph that the part's outputs replace.
        """
        ...

    def node_cost(self, node: Node) -> float:
        """Return the latency of a node; 0 for leaves and for values computed at build time."""
        ...

    def value_bytes(self, value: Value) -> int:
        """Return the bytes of a value."""
        ...


@dataclass(frozen=True, slots=True)
class CostDelta:
    """The effect of replacing values in a graph on latency and memory."""

    seconds: float
    """Estimated latency after, minus the latency before."""
    static_bytes: int
    """Bytes stored for static values after, minus those before."""


def created_nodes(index: GraphIndex, replaced: Mapping[Value, Value]) -> list[Node]:
    """Return the nodes of the replacing values that are not in the graph."""
    stack, created = [value.node for value in replaced.values()], dict[Node, None]()
    while stack:
        node = stack.pop()
        if node not in index.place and node not in created:
            created[node] = None
            stack.extend(operand for operand, _ in node.inputs)
    return list(created)


def cost_delta(cost: Cost, index: GraphIndex, replaced: Mapping[Value, Value]) -> CostDelta:
    """Return the cost effect of replacing values; nodes downstream keep their types and so their costs.

    Args:
        cost: gives the costs of nodes.
        index: the graph.
        replaced: maps each replaced value to its replacement.
    """
    created = created_nodes(index, replaced)
    read = {operand for node in created for operand, _ in node.inputs} | {value.node for value in replaced.values()}
    dead = _dead_nodes(index, replaced, read)
    seconds = sum(map(cost.node_cost, created)) - sum(map(cost.node_cost, dead))
    return CostDelta(seconds, _stored(cost, created, index, dead) - _stored(cost, dead, index, dead))


def _dead_nodes(index: GraphIndex, replaced: Mapping[Value, Value], read: set[Node]) -> dict[Node, None]:
    """Return the nodes that become dead when values are replaced; the nodes in ``read`` are read by the replacement."""
    dead, outputs = dict[Node, None](), index.graph.outputs
    stack = [value.node for value in replaced]
    roots = set(stack)
    while stack:
        node = stack.pop()
        if node in dead or node in read:
            continue
        if node in index.returned and any(value in outputs and value not in replaced for value in node.outputs):
            continue
        if node in roots or all(user in dead for user in index.users[node]):
            dead[node] = None
            stack.extend(operand for operand, _ in node.inputs)
    return dead


def _stored(cost: Cost, nodes: Iterable[Node], index: GraphIndex, dead: Mapping[Node, None]) -> int:
    """Return the bytes of those static operands of nodes that no living node of the graph reads at run time."""
    operands = {value for node in nodes if not node.is_static for value in node.inputs if is_stored(value)}
    alone = (v for v in operands if all(user.is_static or user in dead for user in index.users.get(v.node, ())))
    return sum(map(cost.value_bytes, alone))


def static_bytes(cost: Cost, graph: Graph) -> int:
    """Return the bytes that a graph stores: static values that running nodes read, or that are outputs, each once."""
    read = {value for node in graph.nodes if not node.is_static for value in node.inputs if value[0].is_static}
    return sum([cost.value_bytes(value) for value in read.union(graph.outputs) if is_stored(value)])


def is_stored(value: Value) -> bool:
    """Return whether a value is a weight, or computed from weights at build time."""
    node = value[0]
    return node.is_static and not isinstance(node.op, Constant)
