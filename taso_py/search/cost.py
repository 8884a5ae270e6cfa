"""What the search asks of a cost, and what a substitution changes about it.

Invariant: a difference is computed from the nodes that come and go, never from whole graphs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Protocol

from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, Value
from taso_py.ir.operator import Constant
from taso_py.rules.index import GraphIndex


class Appraisal(Protocol):
    """What a cost knows of a graph."""

    @property
    def seconds(self) -> float:
        """The latency of the graph."""
        ...


class Cost(Protocol):
    """Latencies of graphs and of the nodes in them, in seconds, and the memory that their weights take."""

    def graph_cost(self, graph: Graph) -> float:
        """The latency of a graph."""
        ...

    def appraise(self, graph: Graph) -> Appraisal:
        """The latency of a graph, with what makes it cheap to tell that of graphs made from it."""
        ...

    def revise(self, before: Any, graph: Graph, images: Mapping[Node, Node], touched: Set[Node]) -> Appraisal:
        """The appraisal of a graph that was made from another.

        Args:
            before: the appraisal of the other, by this cost.
            graph: the graph now.
            images: what nodes became that are the same but for what their operands became.
            touched: the nodes that are new, that read something else than before, or that lost or won readers.
        """
        ...

    def within(self, whole: Any, inputs: Mapping[Value, Value], outputs: Sequence[Value]) -> Cost:
        """The cost of graphs that stand for a part of another.

        Args:
            whole: the appraisal of the other, by this cost.
            inputs: what the inputs of the part stand for there.
            outputs: what its outputs stand for.
        """
        ...

    def node_cost(self, node: Node) -> float:
        """What a node adds to the latency of a graph; 0 for leaves and for what is computed at build time."""
        ...

    def value_bytes(self, value: Value) -> int:
        """The memory that a value takes."""
        ...


@dataclass(frozen=True, slots=True)
class Difference:
    """What replacing values changes about a graph."""

    seconds: float
    """Estimated latency after, less the latency before."""
    static_bytes: int
    """What is stored for static values after, less what is stored before."""


def created_nodes(index: GraphIndex, replaced: Mapping[Value, Value]) -> list[Node]:
    """The nodes of the replacing values that are not in the graph."""
    stack, created = [value.node for value in replaced.values()], dict[Node, None]()
    while stack:
        node = stack.pop()
        if node not in index.place and node not in created:
            created[node] = None
            stack.extend(operand for operand, _ in node.inputs)
    return list(created)


def difference(cost: Cost, index: GraphIndex, replaced: Mapping[Value, Value]) -> Difference:
    """What replacing values changes; nodes downstream keep their types and so their costs.

    Args:
        cost: says what nodes cost.
        index: the graph.
        replaced: what each replaced value becomes.
    """
    created = created_nodes(index, replaced)
    read = {operand for node in created for operand, _ in node.inputs} | {value.node for value in replaced.values()}
    dead = _dead_nodes(index, replaced, read)
    seconds = sum(map(cost.node_cost, created)) - sum(map(cost.node_cost, dead))
    return Difference(seconds, _stored(cost, created, index, dead) - _stored(cost, dead, index, dead))


def _dead_nodes(index: GraphIndex, replaced: Mapping[Value, Value], read: set[Node]) -> dict[Node, None]:
    """The nodes that nothing reads any more once the values are replaced and ``read`` is read by what replaces them."""
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
    """The memory of those static operands of nodes that no living node of the graph reads at run time."""
    operands = {value for node in nodes if not node.is_static for value in node.inputs if is_stored(value)}
    alone = (v for v in operands if all(user.is_static or user in dead for user in index.users.get(v.node, ())))
    return sum(map(cost.value_bytes, alone))


def static_bytes(cost: Cost, graph: Graph) -> int:
    """What a graph stores: the static values that nodes which run read, or that are outputs, each once."""
    read = {value for node in graph.nodes if not node.is_static for value in node.inputs if value[0].is_static}
    return sum([cost.value_bytes(value) for value in read.union(graph.outputs) if is_stored(value)])


def is_stored(value: Value) -> bool:
    """Whether a value is a weight, or computed from weights when a module is built."""
    node = value[0]
    return node.is_static and not isinstance(node.op, Constant)
