"""Writes to buffers, and the values that might show them.

Invariant: ``may_show_writes`` is conservative: it is False only if the value certainly has storage of its own, or
shares that of something that is never written to.
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
"""Operators that return their operand itself if it already has the wanted form."""


def write(buffer: Value, content: Value) -> tuple[Opaque, tuple[Value, Value]]:
    """Return operator and inputs of the effect that writes to a buffer; like every effect it takes a token."""
    return Opaque(WRITE, (Ref(0), Ref(1)), (buffer.type,), is_pure=False), (buffer, content)


def is_write(node: Node) -> bool:
    """Return whether a node writes to a buffer."""
    return isinstance(node.op, Opaque) and node.op.target == WRITE


def may_show_writes(value: Value) -> bool:
    """Return whether the value may be a view of a buffer that the model writes to."""
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
