"""Rows of calls that list the windows of a tensor, or add windows up to an image."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from taso_py.backend.onnx.aten.image import each_axis
from taso_py.backend.onnx.movement import padded, reshaped
from taso_py.backend.onnx.row import OpaqueCall, OpaqueRow
from taso_py.backend.onnx.writer import OnnxValue, Writer, as_number
from taso_py.ir.types import TensorType


def _places(w: Writer, rows: int, columns: int, row_step: int, column_step: int) -> OnnxValue:
    """Return a matrix of indices, which grow by one step from row to row and by another from column to column."""
    numbers = (rows, columns, row_step, column_step)

    def make() -> torch.Tensor:
        down, right = torch.arange(rows, device="cpu"), torch.arange(columns, device="cpu")
        return down.unsqueeze(1) * row_step + right * column_step

    return w.tensor(("places", *numbers), "_".join(("places", *map(str, numbers))), make)


def _unfold(w: Writer, call: OpaqueCall) -> OnnxValue:
    """Write windows along an axis; the places in a window become the last axis."""
    x, rank = call.operand(), call.operand().type.rank
    if not rank:
        raise call.refuse("takes windows of a number")
    axis, size, step = call.arguments["dimension"] % rank, call.arguments["size"], call.arguments["step"]
    count = as_number(call.types[0].dims[axis])
    if size == step:
        used, dims = count * size, list(x.type.dims)
        along = x.onnx
        if used != dims[axis]:
            along = w.op("Slice", along, w.integers([0]), w.integers([used]), w.integers([axis]))
        dims[axis] = used
        apart = (*dims[:axis], count, size, *dims[axis + 1 :])
        found = reshaped(w, along, TensorType(x.type.dtype, tuple(dims)), apart)
    else:
        found = w.op("Gather", x.onnx, _places(w, count, size, step, 1), axis=axis)
    if axis == rank - 1:
        return found
    return w.op("Transpose", found, perm=[*range(axis + 1), *range(axis + 2, rank + 1), axis + 1])


def _im2col(w: Writer, call: OpaqueCall) -> OnnxValue:
    """Write the windows of an image as columns."""
    x, lead = call.operand(), call.operand().type.rank - 2
    kernel, dilation, padding, stride = (
        each_axis(call.arguments[name], 2) for name in ("kernel_size", "dilation", "padding", "stride")
    )
    found = padded(w, x.onnx, x.type, padding, padding, 0.0) if any(padding) else x.onnx
    counts = [
        (as_number(extent) + 2 * p - d * (k - 1) - 1) // s + 1
        for extent, k, d, p, s in zip(x.type.dims[-2:], kernel, dilation, padding, stride, strict=True)
    ]
    for place, (k, n, d, s) in enumerate(zip(kernel, counts, dilation, stride, strict=True)):
        found = w.op("Gather", found, _places(w, k, n, d, s), axis=lead + 2 * place)
    moved = w.op("Transpose", found, perm=[*range(lead), lead, lead + 2, lead + 1, lead + 3])
    apart = TensorType(x.type.dtype, (*x.type.dims[:lead], *kernel, *counts))
    return reshaped(w, moved, apart, call.types[0].dims)


def _col2im(w: Writer, call: OpaqueCall) -> OnnxValue:
    """Write the sum of windows that are given as columns."""
    x, arguments = call.operand(), call.arguments
    padding = each_axis(arguments["padding"], 2)
    is_batched = x.type.rank == 3
    result = w.op(
        "Col2Im",
        x.onnx if is_batched else w.op("Unsqueeze", x.onnx, w.integers([0])),
        w.integers(each_axis(arguments["output_size"], 2)),
        w.integers(each_axis(arguments["kernel_size"], 2)),
        dilations=each_axis(arguments["dilation"], 2),
        pads=[*padding, *padding],
        strides=each_axis(arguments["stride"], 2),
    )
    return result if is_batched else w.op("Squeeze", result, w.integers([0]))


ROWS: Mapping[str, OpaqueRow] = {
    "aten.unfold.default": _unfold,
    "aten.im2col.default": _im2col,
    "aten.col2im.default": _col2im,
}
"""The rows, by the name of the overload."""
