"""Rows of calls that fill tensors, as those of open sizes; what does not depend on arguments is folded."""

from __future__ import annotations

from collections.abc import Mapping

from taso_py.backend.onnx.aten.elementwise import operand_as
from taso_py.backend.onnx.row import OpaqueCall, OpaqueRow
from taso_py.backend.onnx.writer import OnnxValue, Writer
from taso_py.ir.types import DType


def _arange(w: Writer, call: OpaqueCall) -> OnnxValue:
    bounds = [call.arguments.get("start", 0), call.arguments["end"], call.arguments.get("step", 1)]
    dtype = call.types[0].dtype
    if any(isinstance(bound, float) for bound in bounds):
        raise call.refuse("counts in steps that are no integers")
    counted = w.op("Range", *map(w.scalar, bounds))
    return counted if dtype is DType.I64 else w.cast(counted, dtype)


def _full(value: float | None = None, argument: str = "fill_value") -> OpaqueRow:
    def row(w: Writer, call: OpaqueCall) -> OnnxValue:
        dtype = call.types[0].dtype
        content = call.arguments[argument] if value is None else value
        number, dims = operand_as(w, content, dtype), call.types[0].dims
        return w.op("Expand", number, w.dims(dims)) if dims else number  # OpenVINO expands to at least one axis

    return row


ROWS: Mapping[str, OpaqueRow] = {
    **{f"aten.arange.{form}": _arange for form in ("default", "start", "start_step")},
    **{f"aten.{name}.default": _full() for name in ("full", "full_like", "new_full")},
    **{f"aten.fill.{form}": _full(argument="value") for form in ("Scalar", "Tensor")},
    **{f"aten.{name}.default": _full(0) for name in ("zeros", "zeros_like", "new_zeros", "zero")},
    **{f"aten.{name}.default": _full(1) for name in ("ones", "ones_like", "new_ones")},
}
"""The rows, by the name of the overload."""
