"""Import of calls that make tensors of known elements, or take one only for its shape, element type and device.

Invariant: the result does not depend on the tensor any more, so that everything computed from it alone is static:
models that build attention masks on every call (Swin) then build them once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from taso_py.backend.tensors import TORCH_DTYPES, encode
from taso_py.frontend.call import AtenCall, Result, apply
from taso_py.ir.node import Value
from taso_py.ir.operator import Constant
from taso_py.ir.types import TensorType
from taso_py.ops.movement import DiagonalMatrix, Expand
from taso_py.ops.opaque import Opaque

FULL = "aten.full.default"
_FILLS = {"aten.zeros.default": 0.0, "aten.ones.default": 1.0}


def fill_of(value: Value) -> float | None:
    """Return the number that all elements of a value are, as its element type holds it, if a call made it so."""
    op = value.node.op
    if not isinstance(op, Opaque):
        return None
    number: Any = op.arguments[1] if op.target == FULL else _FILLS.get(op.target)
    if not isinstance(number, int | float):
        return None
    return torch.tensor(number, dtype=TORCH_DTYPES[value.type.dtype]).item()


def _constant_fill(value: float | None = None) -> Callable[[AtenCall], Result]:
    """Return the row for a tensor of one value: the given one, or else the call's ``fill_value``."""

    def row(call: AtenCall) -> Result:
        (result,) = call.results
        call.require(result is not None and not call["pin_memory"])
        number: Any = call["fill_value"] if value is None else value
        call.require(isinstance(number, int | float))
        dtype, device = call.types[0].dtype, encode(result.device if result is not None else None)
        shape = call.types[0].dims
        return apply(Opaque(FULL, (shape, number), call.types, (("dtype", dtype), ("device", device))))

    return row


def filled(number: float, type_: TensorType) -> Value:
    """Return a floating-point value of a type whose elements are all one number that the type represents."""
    return apply(Expand(type_.dims), apply(Constant(number, type_.dtype)))


def _identity_matrix(call: AtenCall) -> Result:
    (type_,) = call.types
    rows, columns = type_.dims
    call.require(rows == columns and type_.dtype.is_floating and not call["pin_memory"])
    return apply(DiagonalMatrix(), filled(1.0, TensorType(type_.dtype, (rows,))))


ROWS: Mapping[str, Callable[[AtenCall], Result]] = {
    "aten.new_zeros.default": _constant_fill(0),
    "aten.new_ones.default": _constant_fill(1),
    "aten.new_full.default": _constant_fill(),
    "aten.zeros_like.default": _constant_fill(0),
    "aten.ones_like.default": _constant_fill(1),
    "aten.full_like.default": _constant_fill(),
    "aten.eye.default": _identity_matrix,
    "aten.eye.m": _identity_matrix,
}
"""One row per ATen overload."""
