"""The import dialect: one row for each form of an ATen call that becomes operators of the table.

Invariant: a row either returns values with the elements of the call's results, bit for bit once lowered again, or
refuses by :class:`~taso_py.frontend.call.NotInDialectError`, ``ShapeError`` or ``ValueError``; the call is then opaque.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from taso_py.frontend.call import AtenCall, Result
from taso_py.frontend.dialect import (
    choice,
    contraction,
    creation,
    elementwise,
    masks,
    movement,
    normalization,
    pooling,
    selection,
    strides,
)

DIALECT: Mapping[str, Callable[[AtenCall], Result]] = {
    **elementwise.ROWS,
    **choice.ROWS,
    **contraction.ROWS,
    **normalization.ROWS,
    **masks.ROWS,
    **pooling.ROWS,
    **movement.ROWS,
    **selection.ROWS,
    **creation.ROWS,
    **strides.ROWS,
}
"""Rows by the name of the overload, such as ``aten.add.Tensor``."""

NEEDS_ROW = strides.NEEDS_ROW
