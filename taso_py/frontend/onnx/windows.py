"""Rows of ONNX operators that slide a window over their operand: convolution and pooling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from taso_py.frontend.onnx.call import OnnxCall, Row

_CONV = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
_CONV_TRANSPOSE: Mapping[int, Any] = {
    1: functional.conv_transpose1d,
    2: functional.conv_transpose2d,
    3: functional.conv_transpose3d,
}
_MAX_POOL: Mapping[int, Any] = {1: functional.max_pool1d, 2: functional.max_pool2d, 3: functional.max_pool3d}
_AVERAGE_POOL: Mapping[int, Any] = {1: functional.avg_pool1d, 2: functional.avg_pool2d, 3: functional.avg_pool3d}


class Window:
    """The attributes of a window, with one entry per axis."""

    def __init__(self, call: OnnxCall, kernel: Sequence[int]) -> None:
        """Read the attributes; ``kernel`` is the size of the window."""
        self.axes = len(kernel)
        if self.axes not in _CONV:
            raise call.refuse(f"over {self.axes} axes")
        self.kernel = tuple(kernel)
        self.strides = tuple(call.get("strides", (1,) * self.axes))
        self.dilations = tuple(call.get("dilations", (1,) * self.axes))
        self.pads = self._pads(call)

    def _pads(self, call: OnnxCall) -> Sequence[tuple[int, int]]:
        """Return the padding before and after, by axis."""
        kind = call.get("auto_pad", "NOTSET")
        if kind == "NOTSET":
            pads = call.get("pads", (0,) * (2 * self.axes))
            return list(zip(pads[: self.axes], pads[self.axes :], strict=True))
        if kind == "VALID":
            return [(0, 0)] * self.axes
        pairs: list[tuple[int, int]] = []
        for size, kernel, stride, dilation in zip(
            call.tensor().shape[2:], self.kernel, self.strides, self.dilations, strict=True
        ):
            covered = (-(-size // stride) - 1) * stride + (kernel - 1) * dilation + 1
            total = max(covered - size, 0)
            pairs.append((total // 2, total - total // 2) if kind == "SAME_UPPER" else (total - total // 2, total // 2))
        return pairs

    @property
    def is_even(self) -> bool:
        """True if padding is equal on both sides of each axis."""
        return all(before == after for before, after in self.pads)

    @property
    def even(self) -> tuple[int, ...]:
        """Padding on either side, where it is equal."""
        return tuple(before for before, _ in self.pads)

    def padded(self, x: Tensor, value: float) -> Tensor:
        """Return an operand with the padding written out."""
        return functional.pad(x, list(chain(*reversed(self.pads))), value=value)


def _conv(call: OnnxCall) -> Tensor:
    x, weight = call.tensor(0), call.tensor(1)
    window = Window(call, weight.shape[2:])
    padding = window.even if window.is_even else (0,) * window.axes
    operand = x if window.is_even else window.padded(x, 0.0)
    function: Any = _CONV[window.axes]
    return function(
        operand,
        weight,
        call.optional(2),
        stride=window.strides,
        padding=padding,
        dilation=window.dilations,
        groups=int(call.get("group", 1)),
    )


def _conv_transpose(call: OnnxCall) -> Tensor:
    x, weight = call.tensor(0), call.tensor(1)
    window = Window(call, weight.shape[2:])
    if call.get("output_shape") is not None or call.get("auto_pad", "NOTSET") != "NOTSET" or not window.is_even:
        raise call.refuse("with uneven or automatic padding")
    more = tuple(call.get("output_padding", (0,) * window.axes))
    return _CONV_TRANSPOSE[window.axes](
        x,
        weight,
        call.optional(2),
        stride=window.strides,
        padding=window.even,
        output_padding=more,
        groups=int(call.get("group", 1)),
        dilation=window.dilations,
    )


def _max_pool(call: OnnxCall) -> Tensor:
    if call.results > 1:
        raise call.refuse("with indices")
    window, x = Window(call, call.get("kernel_shape")), call.tensor()
    fits = window.is_even and all(2 * pad <= kernel for pad, kernel in zip(window.even, window.kernel, strict=True))
    ceil = bool(call.get("ceil_mode", 0))
    if not fits and ceil:
        raise call.refuse("with uneven padding and sizes rounded up")
    operand, padding = (x, window.even) if fits else (window.padded(x, -torch.inf), 0)
    return _MAX_POOL[window.axes](
        operand, window.kernel, window.strides, padding, dilation=window.dilations, ceil_mode=ceil
    )


def _average_pool(call: OnnxCall) -> Tensor:
    window, x = Window(call, call.get("kernel_shape")), call.tensor()
    counts, ceil = bool(call.get("count_include_pad", 0)), bool(call.get("ceil_mode", 0))
    fits = window.is_even and all(2 * pad <= kernel for pad, kernel in zip(window.even, window.kernel, strict=True))
    if any(dilation != 1 for dilation in window.dilations) or (not fits and (ceil or not counts)):
        raise call.refuse("with dilation or uneven padding")
    operand, padding = (x, window.even) if fits else (window.padded(x, 0.0), 0)
    return _AVERAGE_POOL[window.axes](
        operand, window.kernel, window.strides, padding, ceil_mode=ceil, count_include_pad=counts
    )


def _spatial(call: OnnxCall) -> tuple[int, ...]:
    return tuple(range(2, call.tensor().ndim))


ROWS: Mapping[str, Row] = {
    "AveragePool": _average_pool,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "GlobalAveragePool": lambda call: call.tensor().mean(_spatial(call), keepdim=True),
    "GlobalMaxPool": lambda call: call.tensor().amax(_spatial(call), keepdim=True),
    "MaxPool": _max_pool,
}
"""Rows by the name of the ONNX operator."""
