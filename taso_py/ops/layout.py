"""Values fixed to a layout in memory, whatever the nodes before them become.

Invariant: what fixes the layout is an opaque call, which no rule removes and which costs nothing where the value lies
in memory that way already.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from taso_py.ir.node import Value, make
from taso_py.ir.operator import Ref
from taso_py.ops.movement import Permute
from taso_py.ops.opaque import Opaque

Order: TypeAlias = tuple[int, ...] | None
"""A value's axes from outermost to innermost in memory; None if it is not dense there."""


def contiguous(value: Value) -> Value:
    """Return a value in row-major order."""
    return make(Opaque("aten.contiguous.default", (Ref(0),), (value.type,)), [value]).value


def in_order(value: Value, order: Order) -> Value:
    """Return a value laid out with these axes from outermost to innermost; as it is where there is no such order."""
    if order is None:
        return value
    rank = len(order)
    dense = contiguous(permuted(value, [axis - rank for axis in order]))
    return permuted(dense, [order.index(axis) - rank for axis in range(rank)])


def permuted(value: Value, order: Sequence[int]) -> Value:
    """Return a value permuted by axes counted from the end; leading axes that stay in place are omitted."""
    kept = list(order)
    while kept and kept[0] == -len(kept):
        kept.pop(0)
    return make(Permute(tuple(kept)), [value]).value if kept else value
