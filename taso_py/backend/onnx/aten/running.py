"""Rows of running products and extremes, one operator after the other: ONNX has running sums only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from taso_py.backend.onnx.aten.elementwise import operand_as
from taso_py.backend.onnx.row import OpaqueCall, OpaqueRow
from taso_py.backend.onnx.writer import OnnxValue, Writer, as_number
from taso_py.ir.types import DType

_MOST_STEPS = 128
"""The most elements along an axis of which the running product is written."""


def _steps(w: Writer, call: OpaqueCall, value: OnnxValue) -> Sequence[OnnxValue]:
    """Return the slices along the axis of a call, each of one element."""
    x, axis = call.operand(), call.arguments["dim"]
    count = as_number(x.type.dims[axis]) if x.type.rank else 0
    if not 0 < count <= _MOST_STEPS:
        raise call.refuse(f"runs along no axis, or takes more than {_MOST_STEPS} steps")
    return w.ops("Split", count, value, axis=axis, num_outputs=count) if count > 1 else [value]


def _in_a_row(w: Writer, call: OpaqueCall, parts: Sequence[OnnxValue]) -> OnnxValue:
    return w.op("Concat", *parts, axis=call.arguments["dim"]) if len(parts) > 1 else parts[0]


def _products(w: Writer, call: OpaqueCall) -> OnnxValue:
    first, *others = _steps(w, call, operand_as(w, call.operand(), call.types[0].dtype))
    found = [first]
    for other in others:
        found.append(w.op("Mul", found[-1], other))
    return _in_a_row(w, call, found)


def _extremes(*, least: bool) -> OpaqueRow:
    """Return the row of running extremes and their places, the last ones of several; of NaN as soon as there is one."""

    def row(w: Writer, call: OpaqueCall) -> Sequence[OnnxValue | None]:
        x = call.operand()
        if x.type.dtype is DType.BOOL:
            raise call.refuse("compares booleans")
        first, *others = _steps(w, call, x.onnx)
        values = [first]
        has_places = not w.is_unread(call.node.outputs[1])
        places = [w.op("Expand", w.number(0, DType.I64), w.op("Shape", first))] if has_places else []
        for count, other in enumerate(others, start=1):
            known = values[-1]
            is_next = w.op("LessOrEqual", *((other, known) if least else (known, other)))
            if x.type.dtype.is_floating:
                is_next = w.op("Or", is_next, w.op("IsNaN", other))
            values.append(w.op("Where", is_next, other, known))
            if has_places:
                places.append(w.op("Where", is_next, w.number(count, DType.I64), places[-1]))
        return [_in_a_row(w, call, values), _in_a_row(w, call, places) if has_places else None]

    return row


ROWS: Mapping[str, OpaqueRow] = {
    "aten.cumprod.default": _products,
    "aten.cummax.default": _extremes(least=False),
    "aten.cummin.default": _extremes(least=True),
}
"""The rows, by the name of the overload."""
