"""Writes to buffers, and which values would show them.

Invariant: ``may_show_writes`` errs on the side of yes: it is False only where the value is certainly in storage of its
own, or in that of something nobody writes to.
"""

from __future__ import annotations

from taso_py.backend.schema import may_alias, overload_named
from taso_py.ir.node import Node, Value
from taso_py.ir.operator import Ref, Weight
from taso_py.ops.elementwise import Cast
from taso_py.ops.movement import Contiguous
from taso_py.ops.opaque import Opaque

WRITE = "aten.copy_.default"
_MAY_RETURN_OPERAND = (Contiguous, Cast)
"""Operators that give their operand itself where it is as they want it."""


def write(buffer: Value, content: Value) -> tuple[Opaque, tuple[Value, Value]]:
    """The effect that writes to a buffer: operator and inputs; it takes a token like every effect."""
    return Opaque(WRITE, (Ref(0), Ref(1)), (buffer.type,), is_pure=False), (buffer, content)


def is_write(node: Node) -> bool:
    """Whether a node writes to a buffer."""
    return isinstance(node.op, Opaque) and node.op.target == WRITE


def may_show_writes(value: Value) -> bool:
    """Whether the value may be a view of a buffer that the model writes to."""
    stack, seen = [value.node], {value.node}
    while stack:
        node = stack.pop()
        if isinstance(node.op, Weight) and node.op.mutable:
            return True
        is_alias = isinstance(node.op, Opaque) and may_alias(overload_named(node.op.target))
        if is_alias or node.op.is_view or isinstance(node.op, _MAY_RETURN_OPERAND):
            new = {operand.node for operand in node.inputs} - seen
            seen |= new
            stack += new
    return False
