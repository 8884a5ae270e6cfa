"""The import dialect: which ATen calls become operators of the table, one row a form.

Invariant: a row either returns values with the elements of the call's results, bit for bit once lowered again, or
refuses by :class:`~taso_py.frontend.call.NotInDialectError`, ``ShapeError`` or ``ValueError``; the call is then opaque.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from taso_py.frontend.call import Call, Result
from taso_py.frontend.dialect import contraction, creation, elementwise, movement, normalization, pooling, strides

DIALECT: Mapping[str, Callable[[Call], Result]] = {
    **elementwise.ROWS,
    **contraction.ROWS,
    **normalization.ROWS,
    **pooling.ROWS,
    **movement.ROWS,
    **creation.ROWS,
    **strides.ROWS,
}
"""Rows by the name of the overload, as ``aten.add.Tensor``."""

NEEDS_ROW = strides.NEEDS_ROW
