"""Bodies of control flow as graphs of their own, and rewritten ones put back in their place.

A body takes all it reads as arguments. Those that are static in the outer graph become weights of the body's own graph:
what a rewritten body computes from them alone is computed outside, once, and given to it as another operand.

Invariant: only bodies that have no effects, but for control flow, are taken out. A node with a rewritten body has the
types, the effects and the order among effects that it had before. A rewritten result lies in memory as the original
does, if that is dense there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Self

from taso_py.ir.graph import Graph, topological
from taso_py.ir.node import Node, Value, make, remake
from taso_py.ir.operator import Constant, Input, Weight
from taso_py.ops.layout import contiguous, in_order
from taso_py.ops.nested import ControlFlow, Nested, surely_ends


@dataclass(frozen=True)
class NewBody:
    """A rewritten body: the node's bodies with it, and the operands that they take."""

    nested: Nested
    """The body as the operator takes it."""
    bodies: tuple[Nested, ...]
    """All bodies of the node."""
    kept: tuple[int, ...]
    """The shared operands that a body still reads."""
    hoisted: Mapping[str, Value]
    """Values that are computed from the body's weights outside, by the names that the body has for them."""
    added: tuple[Value, ...]
    """The new operands, as values of the outer graph; the others of these values are operands already."""


@dataclass(frozen=True)
class Body:
    """One of the bodies of a node of control flow."""

    flow: ControlFlow
    place: int
    """The number of the body among the node's."""
    graph: Graph
    """The body; operands that are static are weights, named as the body names them."""

    @classmethod
    def of(cls, node: Node, place: int) -> Self | None:
        """Return a body of a node; None if the node has none there, or it cannot be called alone.

        One that draws random numbers or has other effects cannot, but for control flow that surely ends: whether
        ``while_loop`` does depends on its operands.
        """
        flow = ControlFlow.of(node)
        if flow is None or not place < len(flow.bodies) or not _has_control_flow_only(flow.bodies[place].graph):
            return None
        graph = flow.bodies[place].graph
        leaves = flow.places(graph.inputs)
        static = {leaves[index].value: _weight(leaves[index]) for index in flow.shared if _is_given(node, index)}
        return cls(flow, place, graph.replace(static))

    @property
    def nested(self) -> Nested:
        """The body as the operator takes it."""
        return self.flow.bodies[self.place]

    def laid_out(self, graph: Graph) -> Graph:
        """Return a graph that replaces the body's own with results laid out in memory as the original's."""
        results = zip(self.graph.outputs, graph.outputs, self.nested.orders, strict=True)
        outputs = tuple(after if before == after else in_order(after, order) for before, after, order in results)
        return replace(graph, outputs=outputs)

    def rewritten(self, graph: Graph) -> NewBody:
        """Return what becomes of the body when a graph replaces its own."""
        leaves, (hoisted, added) = self.nested.graph.inputs, self._outside(graph)
        inner = {value: make(Input(name, value.type)).value for name, value in hoisted.items()}
        inner |= {node.value: make(Input(leaf_name(node), node.types[0])).value for node in _weights(graph)}
        made = self.laid_out(graph).replace(inner)
        bodies = [made if place == self.place else body.graph for place, body in enumerate(self.flow.bodies)]
        read = {key for body in bodies for key in _read(body, leaves)}
        at = self.flow.places(leaves)
        # Those that show an open size are read for it.
        kept = tuple(i for i in self.flow.shared if leaf_name(at[i]) in read or at[i].types[0].open)
        inputs = (
            *(at[index] for index in (*self.flow.varying, *kept)),
            *(make(Input(k, v.type)) for k, v in added.items()),
        )
        nested = tuple(
            replace(body, graph=Graph(inputs, new.outputs, new.effects))
            for body, new in zip(self.flow.bodies, bodies, strict=True)
        )
        return NewBody(nested[self.place], nested, kept, hoisted, tuple(added.values()))

    def _outside(self, graph: Graph) -> tuple[dict[str, Value], dict[str, Value]]:
        """Return the values to compute outside, by the names that the body gets for them, and the new operands."""
        node, names = self.flow.node, self.flow.places(self.nested.graph.inputs)
        outer = {_weight(names[index]): node.inputs[index] for index in self.flow.shared if _is_given(node, index)}
        taken = {node.inputs[index]: leaf_name(names[index]) for index in self.flow.shared}
        keys = set(map(leaf_name, names.values()))
        free = (name for number in count(len(names)) if (name := f"x{number}") not in keys)
        inner = _hoisted(graph)
        hoisted, added = dict[str, Value](), dict[str, Value]()
        for value, computed in zip(inner, Graph((), inner).replace(outer).outputs, strict=True):
            operand = contiguous(computed)
            if operand not in taken:
                taken[operand] = next(free)
                added[taken[operand]] = operand
            hoisted[taken[operand]] = value
        return hoisted, added

    def put_back(self, outer: Graph, graph: Graph) -> tuple[Graph, Node]:
        """Return the outer graph in which a graph replaces the body's, and the node that has it."""
        made, node = self.rewritten(graph), self.flow.node
        left = [v for i, v in enumerate(node.inputs) if i in made.kept or i not in self.flow.shared]
        op = self.flow.with_bodies(made.bodies, made.kept, len(made.added))
        new = make(op, [*left, *made.added], node.token)

        def rebuild(old: Node, inputs: tuple[Value, ...]) -> Node:
            return new if old is node else old if inputs == old.inputs else remake(old, inputs)

        return outer.map(rebuild), new


def _has_control_flow_only(graph: Graph) -> bool:
    """Return whether all effects of a graph are control flow without other effects, which surely ends."""
    flows = [ControlFlow.of(node) for node in graph.effects]
    return all(
        flow is not None and surely_ends(flow.op) and all(_has_control_flow_only(body.graph) for body in flow.bodies)
        for flow in flows
    )


def _is_given(node: Node, index: int) -> bool:
    """Return whether an operand of a node is the same in every call of the model."""
    return node.inputs[index].node.is_static


def leaf_name(node: Node) -> str:
    """Return the name of an input or weight."""
    assert isinstance(node.op, Input | Weight)
    return node.op.key


def _weight(leaf: Node) -> Value:
    return make(Weight(leaf_name(leaf), leaf.types[0])).value


def _weights(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if isinstance(node.op, Weight)]


def _read(graph: Graph, inputs: Sequence[Node]) -> set[str]:
    """Return the names of those inputs that a graph reads or returns."""
    roots = [*graph.effects, *(value.node for value in graph.outputs)]
    return {leaf_name(node) for node in set(inputs).intersection(topological(roots))}


def _hoisted(graph: Graph) -> tuple[Value, ...]:
    """Return the static values, but for leaves, that are returned or read by others."""
    read = [value for node in graph.nodes if not node.is_static for value in node.inputs]
    static = (v for v in (*read, *graph.outputs) if v.node.is_static and not isinstance(v.node.op, Weight | Constant))
    return tuple(dict.fromkeys(static))
