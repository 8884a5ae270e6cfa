"""Writes to buffers and inputs, and the values that might show them.

Invariant: ``may_show_writes`` is conservative: it is False only if the value certainly has storage of its own, or
shares that of something that is never written to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from taso_py.backend.schema import may_alias, overload_named
from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, Value
from taso_py.ir.operator import Input, Ref, Weight
from taso_py.ops.elementwise import Cast
from taso_py.ops.movement import Contiguous
from taso_py.ops.opaque import Opaque

WRITE = "aten.copy_.default"
_MAY_RETURN_OPERAND = (Contiguous, Cast)
"""Operators that return their operand itself if it already has the wanted form."""


@dataclass(frozen=True)
class Writes:
    """The leaves that a graph writes to, in the order of the writes."""

    inputs: tuple[str, ...] = ()
    """Keys of inputs."""
    buffers: tuple[str, ...] = ()
    """Keys of buffers."""

    @classmethod
    def of(cls, graph: Graph) -> Self:
        """Return the writes of a graph."""
        leaves = [node.inputs[0].node.op for node in graph.effects if is_write(node)]
        inputs, buffers = ([leaf.key for leaf in leaves if isinstance(leaf, kind)] for kind in (Input, Weight))
        return cls(tuple(inputs), tuple(buffers))

    def __bool__(self) -> bool:
        return bool(self.inputs or self.buffers)


NO_WRITES = Writes()


def write(leaf: Value, content: Value) -> tuple[Opaque, tuple[Value, Value]]:
    """Return operator and inputs of the effect that writes to a leaf; like every effect it takes a token."""
    return Opaque(WRITE, (Ref(0), Ref(1)), (leaf.type,), is_pure=False), (leaf, content)


def state_of(graph: Graph) -> dict[str, Node]:
    """Return the leaves of the buffers that the model, or another entry point of it, writes to, by key."""
    return {node.op.key: node for node in graph.nodes if isinstance(node.op, Weight) and node.op.mutable}


def is_state(value: Value) -> bool:
    """Return whether a value is a buffer or an input that the model, or another entry point of it, writes to."""
    return isinstance(value.node.op, Input | Weight) and value.node.op.mutable


def is_write(node: Node) -> bool:
    """Return whether a node writes to a buffer or an input."""
    return isinstance(node.op, Opaque) and node.op.target == WRITE


def ordered_writes(graph: Graph) -> list[Node]:
    """Return the writes in an order that saving and loading the program does not change: that of the leaves' keys."""

    def place(write: Node) -> tuple[bool, str]:
        leaf = write.inputs[0].node.op
        return isinstance(leaf, Weight), leaf.key if isinstance(leaf, Input | Weight) else ""

    return sorted(filter(is_write, graph.effects), key=place)


def may_show_writes(value: Value) -> bool:
    """Return whether the value may be a view of a buffer or an input that the model writes to."""
    stack, seen = [value.node], {value.node}
    while stack:
        node = stack.pop()
        if node.types and is_state(node.outputs[0]):
            return True
        is_alias = isinstance(node.op, Opaque) and may_alias(overload_named(node.op.target))
        if is_alias or node.op.is_view or isinstance(node.op, _MAY_RETURN_OPERAND):
            new = {operand.node for operand in node.inputs} - seen
            seen |= new
            stack += new
    return False
