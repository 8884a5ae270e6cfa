"""Rows of pooling and reductions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from taso_py.backend.onnx.row import Row
from taso_py.backend.onnx.writer import OnnxValue, Writer, as_number
from taso_py.ir.node import Node
from taso_py.ir.operator import Operator
from taso_py.ir.size import Dim
from taso_py.ops.pooling import AdaptiveAvgPool2d, AvgPool2d, MaxPool2d
from taso_py.ops.reduction import Max, Mean, Sum


def _numbers(dims: Sequence[Dim]) -> list[int]:
    return [as_number(dim) for dim in dims]


def _avg_pool2d(w: Writer, op: AvgPool2d, node: Node, operands: Sequence[OnnxValue]) -> OnnxValue:
    return w.op(
        "AveragePool",
        operands[0],
        kernel_shape=_numbers(op.kernel),
        strides=_numbers(op.stride),
        pads=_numbers((*op.padding, *op.padding)),
        count_include_pad=int(op.count_include_pad),
    )


def _max_pool2d(w: Writer, op: MaxPool2d, node: Node, operands: Sequence[OnnxValue]) -> OnnxValue:
    return w.op(
        "MaxPool",
        operands[0],
        kernel_shape=_numbers(op.kernel),
        strides=_numbers(op.stride),
        pads=_numbers((*op.padding, *op.padding)),
        dilations=_numbers(op.dilation),
    )


def _adaptive_avg_pool2d(w: Writer, op: AdaptiveAvgPool2d, node: Node, operands: Sequence[OnnxValue]) -> OnnxValue:
    if op.size == (1, 1):
        return w.op("GlobalAveragePool", operands[0])
    extents = _numbers(node.inputs[0].type.dims[-2:])
    windows = _numbers(op.size)
    if all(extent % count == 0 for extent, count in zip(extents, windows, strict=True)):
        kernel = [extent // count for extent, count in zip(extents, windows, strict=True)]
        return w.op("AveragePool", operands[0], kernel_shape=kernel, strides=kernel)
    result = operands[0]
    # A window is a rectangle, so the mean over it is that over its columns of those over its rows.
    for axis, extent, count in zip((-2, -1), extents, windows, strict=True):
        bounds = [(i * extent // count, -(-(i + 1) * extent // count)) for i in range(count)]
        along = w.integers([axis])
        parts = [
            w.op("ReduceMean", w.op("Slice", result, w.integers([start]), w.integers([stop]), along), along)
            for start, stop in bounds
        ]
        result = w.op("Concat", *parts, axis=axis)
    return result


def _reduction(name: str) -> Row:
    def row(w: Writer, op: Sum | Mean | Max, node: Node, operands: Sequence[OnnxValue]) -> OnnxValue:
        return w.op(name, operands[0], w.integers(op.axes), keepdims=int(op.keepdim))

    return row


ROWS: Mapping[type[Operator], Row] = {
    AvgPool2d: _avg_pool2d,
    MaxPool2d: _max_pool2d,
    AdaptiveAvgPool2d: _adaptive_avg_pool2d,
    Sum: _reduction("ReduceSum"),
    Mean: _reduction("ReduceMean"),
    Max: _reduction("ReduceMax"),
}
"""By the class of the operator."""
