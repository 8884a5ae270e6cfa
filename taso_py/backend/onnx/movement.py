"""Rows of data movement, and of enlarging by interpolation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from taso_py.backend.onnx.row import Row
from taso_py.backend.onnx.writer import OnnxValue, Writer, as_number
from taso_py.ir.node import Node
from taso_py.ir.operator import Operator
from taso_py.ir.size import Dim
from taso_py.ir.types import TensorType
from taso_py.ops.contraction import Conv2d
from taso_py.ops.movement import (
    Concat,
    Contiguous,
    Diagonal,
    DiagonalMatrix,
    Enlarge,
    Expand,
    Flip,
    Pad,
    Permute,
    Reshape,
    Slice,
    UpsampleNearest2d,
)
from taso_py.ops.resizing import UpsampleBilinear2d


def _concat(w: Writer, op: Concat, node: Node, operands: Sequence[OnnxValue]) -> OnnxValue:
    # Counted from the front: ONNX Runtime keeps its own layout of images only across ``axis=1`` (1.31).
    return w.op("Concat", *operands, axis=node.types[0].rank + op.axis)


def _slice(w: Writer, op: Slice, node: Node, operands: Sequence[OnnxValue]) -> OnnxValue:
    steps = w.integers([op.step]) if op.step != 1 else None
    return w.op("Slice", operands[0], w.dims([op.start]), w.dims([op.stop]), w.integers([op.axis]), steps)


LAST = (1 << 63) - 1
"""As a bound of a slice, a place behind every axis; its opposite, one before every axis."""


def _flip(w: Writer, op: Flip, node: Node, operands: Sequence[OnnxValue]) -> OnnxValue:
    return flipped(w, operands[0], op.axes)


def flipped(w: Writer, value: OnnxValue, axes: Sequence[int]) -> OnnxValue:
    """Reverse the order of the elements along axes."""
    bounds = [[-1] * len(axes), [-LAST] * len(axes), axes, [-1] * len(axes)]
    return w.op("Slice", value, *map(w.integers, bounds))


def _diagonal(w: Writer, op: Diagonal, node: Node, operands: Sequence[OnnxValue]) -> OnnxValue:
    type_ = node.inputs[0].type
    *lead, size, _ = type_.dims
    rows = reshaped(w, operands[0], type_, (*lead, size * size))
    return w.op("Slice", rows, w.dims([0]), w.dims([size * size]), w.integers([-1]), w.dims([size + 1]))


def _diagonal_matrix(w: Writer, op: DiagonalMatrix, node: Node, operands: Sequence[OnnxValue]) -> OnnxValue:
    """Write rows of one element more than columns: in a dense matrix, each row's first element moves one further."""
    *lead, size = node.inputs[0].type.dims
    dtype = node.types[0].dtype
    column = reshaped(w, operands[0], node.inputs[0].type, (*lead, size, 1))
    rows = padded(w, column, TensorType(dtype, (*lead, size, size + 1)), before=[0], after=[size], filler=0.0)
    line = reshaped(w, rows, TensorType(dtype, (*lead, size, size + 1)), (*lead, size * (size + 1)))
    kept = w.op("Slice", line, w.dims([0]), w.dims([size * size]), w.integers([-1]))
    return reshaped(w, kept, TensorType(dtype, (*lead, size * size)), (*lead, size, size))


def _permute(w: Writer, op: Permute, node: Node, operands: Sequence[OnnxValue]) -> OnnxValue:
    rank = node.types[0].rank
    return w.op("Transpose", operands[0], perm=[*range(rank - len(op.order)), *(axis + rank for axis in op.order)])


def _reshape(w: Writer, op: Reshape, node: Node, operands: Sequence[OnnxValue]) -> OnnxValue:
    return reshaped(w, operands[0], node.inputs[0].type, op.shape)


def reshaped(w: Writer, value: OnnxValue, type_: TensorType, shape: Sequence[Dim]) -> OnnxValue:
    """Reshape a value; copied sizes (0) and one inferred size (-1) let engines infer the result's type best."""
    if TensorType(type_.dtype, tuple(shape)).may_be_empty or type_.may_be_empty:
        return w.op("Reshape", value, w.dims(shape), allowzero=1)
    kept = [
        0 if not isinstance(dim, int) and axis < type_.rank and dim == type_.shape[axis] else dim
        for axis, dim in enumerate(shape)
    ]
    if sum(not isinstance(dim, int) for dim in kept) == 1:
        kept = [dim if isinstance(dim, int) else -1 for dim in kept]
    return w.op("Reshape", value, w.dims(kept))


def _expand(w: Writer, op: Expand, node: Node, operands: Sequence[OnnxValue]) -> OnnxValue:
    return w.op("Expand", operands[0], w.dims(op.shape))


def _upsample_nearest2d(w: Writer, op: UpsampleNearest2d, node: Node, operands: Sequence[OnnxValue]) -> OnnxValue:
    return upsampled(w, operands[0], [float(as_number(factor)) for factor in op.factors])


def _upsample_bilinear2d(w: Writer, op: UpsampleBilinear2d, node: Node, operands: Sequence[OnnxValue]) -> OnnxValue:
    places = "align_corners" if op.align_corners else "half_pixel"
    scales = resize_scales(w, [float(as_number(factor)) for factor in op.factors])
    return w.op("Resize", operands[0], None, scales, mode="linear", coordinate_transformation_mode=places)


def upsampled(w: Writer, value: OnnxValue, factors: Sequence[float]) -> OnnxValue:
    """Enlarge an image by whole factors: every element becomes a rectangle of copies of it."""
    how = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return w.op("Resize", value, None, resize_scales(w, factors), **how)


def resize_scales(w: Writer, factors: Sequence[float]) -> OnnxValue:
    """Return the operand of a resizing that says by which factors: those of the axes behind batch and channels."""
    key = ("scales", *factors)
    name = "_".join(("scales", *map(str, factors)))
    return w.tensor(key, name, lambda: torch.tensor([1.0, 1.0, *factors], dtype=torch.float32, device="cpu"))


def _pad(w: Writer, op: Pad, node: Node, operands: Sequence[OnnxValue]) -> OnnxValue:
    before, after = ([pair[side] for pair in op.widths] for side in (0, 1))
    is_convolved = w.is_read_only_as(node.value, lambda reader: isinstance(reader.op, Conv2d))
    return padded(w, operands[0], node.types[0], before=before, after=after, filler=op.value, may_fuse=is_convolved)


def padded(
    w: Writer,
    value: OnnxValue,
    type_: TensorType,
    before: Sequence[Dim],
    after: Sequence[Dim],
    filler: float,
    *,
    may_fuse: bool = False,
) -> OnnxValue:
    """Pad the last axes of a value with a number.

    ONNX Runtime 1.31 fuses zero padding of an image into the pooling that follows, which is wrong for a maximum and
    fails if the padding is wider than the window. It does not if axes are listed, so that only convolutions may fuse.
    """
    number, count = w.number(filler, type_.dtype), len(before)
    if may_fuse:
        lead = [0] * (type_.rank - count)
        return w.op("Pad", value, w.dims([*lead, *before, *lead, *after]), number)
    return w.op("Pad", value, w.dims([*before, *after]), number, w.integers(range(-count, 0)))


def _enlarge(w: Writer, op: Enlarge, node: Node, operands: Sequence[OnnxValue]) -> OnnxValue:
    margins = [
        as_number(wanted - size) // 2 for wanted, size in zip(op.kernel, node.inputs[0].type.dims[-2:], strict=True)
    ]
    return w.op("Pad", operands[0], w.integers([0, 0, *margins, 0, 0, *margins]))


def _contiguous(w: Writer, op: Contiguous, node: Node, operands: Sequence[OnnxValue]) -> OnnxValue:
    return operands[0]


ROWS: Mapping[type[Operator], Row] = {
    Concat: _concat,
    Slice: _slice,
    Flip: _flip,
    Permute: _permute,
    Reshape: _reshape,
    Diagonal: _diagonal,
    DiagonalMatrix: _diagonal_matrix,
    Expand: _expand,
    UpsampleNearest2d: _upsample_nearest2d,
    UpsampleBilinear2d: _upsample_bilinear2d,
    Pad: _pad,
    Enlarge: _enlarge,
    Contiguous: _contiguous,
}
"""The rows, by the class of the operator."""
