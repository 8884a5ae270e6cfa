"""Import of comparisons, logic and choices.

``a < b`` is imported as ``b > a``, which says the same of every two numbers, NaN included.

Invariant: comparisons are of operands of one type, or with a number that this type represents, so that nothing is
converted before it is compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from taso_py.frontend.call import AtenCall, Result, apply
from taso_py.frontend.dialect.creation import fill_of
from taso_py.frontend.dialect.elementwise import promoted
from taso_py.ir.node import Value
from taso_py.ir.operator import Operator
from taso_py.ir.types import DType, TensorType
from taso_py.ops.choice import Equal, Greater, GreaterEqual, LogicalAnd, LogicalNot, LogicalOr, NotEqual, Where


def _number_of(operand: Any, beside: Any, shape: TensorType) -> Any:
    """Return the number that a tensor is filled with, if one of the result's shape is beside it; else the operand."""
    if isinstance(operand, Value) and isinstance(beside, Value) and beside.type.shape == shape.shape:
        number = fill_of(operand)
        if number is not None and math.isfinite(number) and operand.type.dtype is beside.type.dtype:
            return number
    return operand


def _comparing(op: Operator, *, exchanged: bool = False) -> Callable[[AtenCall], Result]:
    """Return the row of a comparison; ``exchanged`` says that the operator has the operands the other way round."""

    def row(call: AtenCall) -> Result:
        left, right = call.value("self"), _number_of(call["other"], call["self"], call.types[0])
        call.require(not isinstance(right, Value) or right.type.dtype is left.type.dtype)
        other = promoted(right, left.type.dtype)
        return apply(op, other, left) if exchanged else apply(op, left, other)

    return row


def _where(call: AtenCall) -> Result:
    return _chosen(call, "condition", chosen="self", other="other")


def _masked_fill(call: AtenCall) -> Result:
    return _chosen(call, "mask", chosen="value", other="self")


def _chosen(call: AtenCall, condition: str, chosen: str, other: str) -> Result:
    """Import a choice; a tensor of one number beside one of the result's shape is that number."""
    truth, type_ = call.value(condition), call.types[0]
    call.require(not type_.dtype.is_complex)
    left = _number_of(call[chosen], call[other], type_)
    right = _number_of(call[other], left, type_)
    return apply(Where(), truth, promoted(left, type_.dtype), promoted(right, type_.dtype))


def _logical(op: Operator) -> Callable[[AtenCall], Result]:
    def row(call: AtenCall) -> Result:
        operands = [call.value(name) for name in ("self", "other") if name in call.arguments]
        call.require(all(operand.type.dtype is DType.BOOL for operand in operands))
        return apply(op, *operands)

    return row


_COMPARISONS: Mapping[str, Callable[[AtenCall], Result]] = {
    "gt": _comparing(Greater()),
    "ge": _comparing(GreaterEqual()),
    "lt": _comparing(Greater(), exchanged=True),
    "le": _comparing(GreaterEqual(), exchanged=True),
    "eq": _comparing(Equal()),
    "ne": _comparing(NotEqual()),
}

ROWS: Mapping[str, Callable[[AtenCall], Result]] = {
    **{f"aten.{name}.{form}": row for name, row in _COMPARISONS.items() for form in ("Tensor", "Scalar")},
    **{f"aten.where.{form}": _where for form in ("self", "ScalarSelf", "ScalarOther", "Scalar")},
    **{f"aten.masked_fill.{form}": _masked_fill for form in ("Tensor", "Scalar")},
    "aten.logical_and.default": _logical(LogicalAnd()),
    "aten.logical_or.default": _logical(LogicalOr()),
    "aten.logical_not.default": _logical(LogicalNot()),
    **{f"aten.{name}.Tensor": _logical(LogicalAnd()) for name in ("bitwise_and", "__and__")},
    **{f"aten.{name}.Tensor": _logical(LogicalOr()) for name in ("bitwise_or", "__or__")},
    "aten.bitwise_not.default": _logical(LogicalNot()),
}
"""One row per ATen overload."""
