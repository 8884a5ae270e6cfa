"""Graphs: output values, inputs in order, and effects in order.

Invariant: a graph holds no state of its own: its nodes are those that outputs and effects reach. So dead code
cannot exist, and two graphs are equal exactly when inputs, outputs and effects are the same nodes. Every traversal is
iterative, since real models are deeper than the recursion limit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

from taso_py.ir.errors import InvariantError
from taso_py.ir.node import Node, Value, make, remake
from taso_py.ir.operator import Input, Operator

if TYPE_CHECKING:
    import networkx as nx

Record: TypeAlias = tuple[Operator, tuple[tuple[int, int], ...], int | None]


def topological(roots: Iterable[Node]) -> list[Node]:
    """Return the nodes that ``roots`` reach, operands first, by a depth-first traversal from left to right."""
    order: list[Node] = []
    seen: set[Node] = set()
    # None stands for the last node that was opened, its operands being done.
    stack: list[Node | None] = [*reversed([*roots])]
    opened: list[Node] = []
    while stack:
        node = stack.pop()
        if node is None:
            order.append(opened.pop())
        elif node not in seen:
            seen.add(node)
            operands = [operand for operand, _ in node.inputs if operand not in seen]
            if operands:
                opened.append(node)
                stack.append(None)
                stack += operands[::-1]
            else:
                order.append(node)
    return order


def to_records(roots: Sequence[Node]) -> tuple[Record, ...]:
    """Return a flat, picklable form of the nodes that ``roots`` reach; a single root comes last."""
    order = topological(roots)
    place = {node: position for position, node in enumerate(order)}
    return tuple((n.op, tuple((place[v.node], v.output) for v in n.inputs), n.token) for n in order)


def from_records(records: Sequence[Record]) -> list[Node]:
    """Return the interned nodes that :func:`to_records` described."""
    nodes: list[Node] = []
    for op, inputs, token in records:
        nodes.append(make(op, [Value(nodes[position], index) for position, index in inputs], token))
    return nodes


def node_from_records(records: Sequence[Record]) -> Node:
    """Return the last node of :func:`from_records`."""
    return from_records(records)[-1]


@dataclass(frozen=True)
class Graph:
    """A computation from ``inputs`` to ``outputs``, with ``effects`` that happen in order whatever the outputs need."""

    inputs: tuple[Node, ...]
    """The arguments, in the order of the signature; some may be unused."""
    outputs: tuple[Value, ...]
    effects: tuple[Node, ...] = ()
    """Impure nodes in program order: assertions, random draws, writes to buffers."""

    def __post_init__(self) -> None:
        if any(not isinstance(node.op, Input) for node in self.inputs):
            raise InvariantError("a graph's inputs must be input nodes")

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """Every node, operands first, effects in their order."""
        return tuple(topological([*self.inputs, *self.effects, *(value.node for value in self.outputs)]))

    @cached_property
    def users(self) -> Mapping[Node, Sequence[Node]]:
        """The distinct nodes that read a node, in the order of the graph."""
        users: dict[Node, list[Node]] = {node: [] for node in self.nodes}
        for node in self.nodes:
            for operand, _ in node.inputs:
                readers = users[operand]
                if not readers or readers[-1] is not node:
                    readers.append(node)
        return users

    @cached_property
    def key(self) -> tuple[tuple[str, int], ...]:
        """Digests of outputs and effects, equal in every process; graphs of one model with equal keys are equal."""
        return tuple(value.key for value in self.outputs) + tuple((node.digest, -1) for node in self.effects)

    @cached_property
    def digest(self) -> str:
        """The key, hashed to 32 hexadecimal digits."""
        return hashlib.blake2b(repr(self.key).encode(), digest_size=16).hexdigest()

    @cached_property
    def at_example(self) -> Graph:
        """The graph with every open size set to its value in the example inputs."""
        return self.map(lambda node, inputs: make(node.op.at_example, inputs, node.token))

    def replace(self, replacements: Mapping[Value, Value]) -> Graph:
        """Return this graph with values replaced wherever they are read or returned.

        Only the nodes downstream of a replaced value are made anew. Replacements are read as simultaneous: a
        replacing value is taken as it stands, its own operands are not replaced.
        """

        def final(node: Node, inputs: tuple[Value, ...]) -> Node:
            return node if inputs == node.inputs else remake(node, inputs)

        return self.map(final, replacements)

    def map(
        self,
        rebuild: Callable[[Node, tuple[Value, ...]], Node],
        replacements: Mapping[Value, Value] | None = None,
    ) -> Graph:
        """Return the graph in which ``rebuild(node, new_inputs)`` stands for each node, operands first."""
        replacements = replacements or {}
        new: dict[Node, Node] = {}

        def moved(value: Value) -> Value:
            replacing = replacements.get(value)
            return replacing if replacing is not None else Value(new[value.node], value.output)

        for node in self.nodes:
            new[node] = rebuild(node, tuple(moved(value) for value in node.inputs))
        return Graph(
            tuple(new[node] for node in self.inputs),
            tuple(moved(value) for value in self.outputs),
            tuple(new[node] for node in self.effects),
        )

    def to_networkx(self) -> nx.MultiDiGraph[Node]:
        """Return a networkx view: an edge from operand to reader per use, keyed by operand position."""
        import networkx as nx  # imported here: loading a saved result does without

        view: nx.MultiDiGraph[Node] = nx.MultiDiGraph()
        view.add_nodes_from(self.nodes)
        for node in self.nodes:
            for position, value in enumerate(node.inputs):
                view.add_edge(value.node, node, position)
        return view

    def __reduce__(self) -> tuple[object, ...]:
        roots = [*self.inputs, *self.effects, *(value.node for value in self.outputs)]
        place = {node: position for position, node in enumerate(topological(roots))}
        return _graph_from_records, (
            to_records(roots),
            tuple(place[node] for node in self.inputs),
            tuple((place[value.node], value.output) for value in self.outputs),
            tuple(place[node] for node in self.effects),
        )


def _graph_from_records(
    records: Sequence[Record],
    inputs: Sequence[int],
    outputs: Sequence[tuple[int, int]],
    effects: Sequence[int],
) -> Graph:
    nodes = from_records(records)
    return Graph(
        tuple(nodes[position] for position in inputs),
        tuple(Value(nodes[position], index) for position, index in outputs),
        tuple(nodes[position] for position in effects),
    )
