"""Rows of pooling and reductions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from taso_py.backend.onnx.movement import padded
from taso_py.backend.onnx.row import Row
from taso_py.backend.onnx.writer import OnnxValue, Writer, as_number
from taso_py.backend.tensors import TORCH_DTYPES
from taso_py.ir.node import Node
from taso_py.ir.operator import Operator
from taso_py.ir.size import Dim
from taso_py.ir.types import DType, TensorType
from taso_py.ops.pooling import AdaptiveAvgPool2d, AvgPool2d, MaxPool2d
from taso_py.ops.reduction import Cumsum, Max, Mean, Sum, VectorNorm


def _numbers(dims: Sequence[Dim]) -> list[int]:
    return [as_number(dim) for dim in dims]


@dataclass(frozen=True)
class Windows:
    """The windows of pooling: one number per axis for each property, and the sizes before and after."""

    kernel: Sequence[int]
    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    extents: Sequence[Dim]
    counts: Sequence[Dim]

    @property
    def is_open(self) -> bool:
        """True if a size before or after is open."""
        return not all(isinstance(dim, int) for dim in (*self.extents, *self.counts))

    def end_padding(self) -> Sequence[int]:
        """Return the padding needed after the image, which exceeds what was asked for if the count is rounded up."""
        if self.is_open:
            return self.padding
        reach = [
            (as_number(n) - 1) * s + d * (k - 1) + 1 - as_number(extent) - p
            for n, s, d, k, p, extent in zip(
                self.counts, self.stride, self.dilation, self.kernel, self.padding, self.extents, strict=True
            )
        ]
        return [max(p, needed) for p, needed in zip(self.padding, reach, strict=True)]

    def counted_share(self) -> torch.Tensor:
        """Return, for each window, its size divided by the number of its elements in image and requested padding."""
        share = torch.ones((), dtype=torch.float64, device="cpu")
        parts = zip(self.extents, self.counts, self.kernel, self.stride, self.padding, strict=True)
        for extent, count, k, s, p in parts:
            starts = torch.arange(as_number(count), device="cpu") * s - p
            ends = (starts + k).clamp(max=as_number(extent) + p)
            share = share.unsqueeze(-1) * (k / (ends - starts).double())
        return share


def greatest(w: Writer, x: OnnxValue, type_: TensorType, windows: Windows) -> OnnxValue:
    """Write the greatest element of each window of an image; ``type_`` is the result's."""
    pads = [*windows.padding, *windows.end_padding()]
    if any(pad >= k for pad, k in zip(pads, [*windows.kernel, *windows.kernel], strict=True)):
        # With dilation, a window may reach farther than engines accept as padding.
        padding = windows.padding, windows.end_padding()
        x, pads = padded(w, x, type_, *padding, -math.inf), [0] * len(pads)
    shape = {"kernel_shape": list(windows.kernel), "strides": list(windows.stride), "dilations": list(windows.dilation)}
    return w.op("MaxPool", x, **shape, pads=pads)


def pooled_mean(w: Writer, x: OnnxValue, windows: Windows, count_include_pad: int) -> OnnxValue:
    """Write the mean of each window of an image, all of its padding counted, or none."""
    pads = [*windows.padding, *windows.end_padding()]
    shape = {"kernel_shape": list(windows.kernel), "strides": list(windows.stride)}
    return w.op("AveragePool", x, **shape, pads=pads, count_include_pad=count_include_pad)


def average(w: Writer, x: OnnxValue, dtype: DType, windows: Windows, *, includes: bool) -> OnnxValue:
    """Write the mean of each window of an image; ``includes`` says whether the padding that was asked for counts."""
    mean = pooled_mean(w, x, windows, int(includes))
    if not includes or list(windows.end_padding()) == list(windows.padding):
        return mean
    # PyTorch counts the padding that was asked for, not what rounding up adds behind it.
    share = windows.counted_share()
    sizes = "x".join(map(str, (*windows.kernel, *windows.stride, *windows.padding, *share.shape)))
    key = ("share", sizes, tuple(windows.extents), dtype)
    return w.op("Mul", mean, w.tensor(key, f"share_{sizes}", lambda: share.to(TORCH_DTYPES[dtype])))


def _windows(op: AvgPool2d | MaxPool2d, node: Node) -> Windows:
    extents, counts = node.inputs[0].type.dims[-2:], node.types[0].dims[-2:]
    if op.ceil:
        extents, counts = _numbers(extents), _numbers(counts)
    dilation = op.dilation if isinstance(op, MaxPool2d) else (1, 1)
    return Windows(*map(_numbers, (op.kernel, op.stride, op.padding, dilation)), extents=extents, counts=counts)


def _avg_pool2d(w: Writer, op: AvgPool2d, node: Node, operands: Sequence[OnnxValue]) -> OnnxValue:
    return average(w, operands[0], node.types[0].dtype, _windows(op, node), includes=op.count_include_pad)


def _max_pool2d(w: Writer, op: MaxPool2d, node: Node, operands: Sequence[OnnxValue]) -> OnnxValue:
    return greatest(w, operands[0], node.types[0], _windows(op, node))


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
    return of_rectangles(w, x, sizes, counts, lambda part, axis: w.op("ReduceMean", part, w.integers([axis])))


def of_rectangles(
    w: Writer,
    x: OnnxValue,
    extents: Sequence[int],
    windows: Sequence[int],
    reduced: Callable[[OnnxValue, int], OnnxValue],
) -> OnnxValue:
    """Write a reduction over windows that divide the last axes as evenly as they can.

    A window is a rectangle, so the mean over it is that over its columns of those over its rows; so are extremes.

    Args:
        w: the writer.
        x: the tensor.
        extents: the sizes of its last axes.
        windows: how many windows there are for each of them.
        reduced: writes the reduction of a part along an axis, which it keeps.
    """
    for axis, size, count in zip(range(-len(extents), 0), extents, windows, strict=True):
        along = w.integers([axis])
        parts: list[OnnxValue] = []
        for i in range(count):
            start, stop = w.integers([i * size // count]), w.integers([-(-(i + 1) * size // count)])
            parts.append(reduced(w.op("Slice", x, start, stop, along), axis))
        x = w.op("Concat", *parts, axis=axis)
    return x


EXTREMES = ("ReduceMax", "ReduceMin")
"""Reductions that PyTorch says are NaN where an element is."""


def extreme(w: Writer, name: str, x: OnnxValue, dtype: DType, axes: Sequence[int], *, keep: int) -> OnnxValue:
    """Write the extremes along axes, which are NaN where an element along them is: engines take them of the others.

    Args:
        w: the writer.
        name: ``ReduceMax`` or ``ReduceMin``.
        x: the tensor.
        dtype: its element type.
        axes: the axes.
        keep: 1 if they are kept, 0 if not.
    """
    return or_nan(w, w.op(name, x, w.integers(axes), keepdims=keep), x, dtype, axes, keep=keep)


def or_nan(w: Writer, found: OnnxValue, x: OnnxValue, dtype: DType, axes: Sequence[int], *, keep: int) -> OnnxValue:
    """Write a result of a reduction, or NaN where an element along the axes is; see :func:`extreme`."""
    if not dtype.is_floating:
        return found
    _, has_nan = nan_along(w, x, axes, keep=keep)
    return w.op("Where", has_nan, w.number(math.nan, dtype), found)


def nan_along(w: Writer, x: OnnxValue, axes: Sequence[int], *, keep: int) -> tuple[OnnxValue, OnnxValue]:
    """Write which elements are NaN, as integers, and whether one along the axes is."""
    is_nan = w.cast(w.op("IsNaN", x), DType.I32)
    return is_nan, w.cast(w.op("ReduceMax", is_nan, w.integers(axes), keepdims=keep), DType.BOOL)


def _reduction(name: str) -> Row:
    def row(w: Writer, op: Sum | Mean, node: Node, operands: Sequence[OnnxValue]) -> OnnxValue:
        return w.op(name, operands[0], w.integers(op.axes), keepdims=int(op.keepdim))

    return row


def _max(w: Writer, op: Max, node: Node, operands: Sequence[OnnxValue]) -> OnnxValue:
    return extreme(w, "ReduceMax", operands[0], node.types[0].dtype, op.axes, keep=int(op.keepdim))


def _vector_norm(w: Writer, op: VectorNorm, node: Node, operands: Sequence[OnnxValue]) -> OnnxValue:
    return w.op(f"ReduceL{op.order}", operands[0], w.integers(op.axes), keepdims=int(op.keepdim))


def _cumsum(w: Writer, op: Cumsum, node: Node, operands: Sequence[OnnxValue]) -> OnnxValue:
    return w.op("CumSum", operands[0], w.number(op.axis, DType.I64))


ROWS: Mapping[type[Operator], Row] = {
    AvgPool2d: _avg_pool2d,
    MaxPool2d: _max_pool2d,
    AdaptiveAvgPool2d: _adaptive_avg_pool2d,
    Sum: _reduction("ReduceSum"),
    Mean: _reduction("ReduceMean"),
    Max: _max,
    VectorNorm: _vector_norm,
    Cumsum: _cumsum,
}
"""The rows, by the class of the operator."""
