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
    return adaptive_average(w, operands[0], node.inputs[0].type.dims[-2:], op.size)


def adaptive_average(w: Writer, x: OnnxValue, extents: Sequence[Dim], windows: Sequence[Dim]) -> OnnxValue:
    """Write the means over ``windows`` windows per axis that divide the last axes, which have the sizes ``extents``."""
    axes = range(-len(extents), 0)
    if all(count == 1 for count in windows):
        return w.op("ReduceMean", x, w.integers(axes)) if len(axes) != 2 else w.op("GlobalAveragePool", x)
    sizes, counts = _numbers(extents), _numbers(windows)
    if all(size % count == 0 for size, count in zip(sizes, counts, strict=True)):
        kernel = [size // count for size, count in zip(sizes, counts, strict=True)]
        return w.op("AveragePool", x, kernel_shape=kernel, strides=kernel)
    # A window is a rectangle, so the mean over it is that over its columns of those over its rows.
    for axis, size, count in zip(axes, sizes, counts, strict=True):
        along = w.integers([axis])
        parts: list[OnnxValue] = []
        for i in range(count):
            start, stop = w.integers([i * size // count]), w.integers([-(-(i + 1) * size // count)])
            parts.append(w.op("ReduceMean", w.op("Slice", x, start, stop, along), along))
        x = w.op("Concat", *parts, axis=axis)
    return x


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
"""The rows, by the class of the operator."""
