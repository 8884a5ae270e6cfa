"""Import of matrix products and convolutions.

Invariant: only forms that mean the same as our operators are taken; products with vectors stay opaque. A
one-dimensional convolution becomes one of images of height one, as in PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from taso_py.frontend.call import AtenCall, Result, apply
from taso_py.ops.contraction import Baddbmm, Conv2d, Conv3d, ConvTranspose2d, Linear, Matmul
from taso_py.ops.movement import Contiguous, Permute, Reshape


def _matmul(second: str) -> Callable[[AtenCall], Result]:
    def row(call: AtenCall) -> Result:
        a, b = call.value("self"), call.value(second)
        call.require(a.type.rank >= 2 and b.type.rank >= 2)
        return apply(Matmul(), a, b)

    return row


def _linear(call: AtenCall) -> Result:
    return apply(Linear(), call.value("input"), call.value("weight"), *call.optional("bias"))


def _addmm(call: AtenCall) -> Result:
    bias, x, weight = call.value("self"), call.value("mat1"), call.value("mat2")
    if call["alpha"] == call["beta"] == 1 and bias.type.rank == 1:
        return apply(Linear(), x, apply(Permute((-1, -2)), weight), bias)
    return _baddbmm("mat1", "mat2")(call)


def _baddbmm(left: str, right: str) -> Callable[[AtenCall], Result]:
    def row(call: AtenCall) -> Result:
        op = Baddbmm(call.number("beta"), call.number("alpha"))
        return apply(op, call.value("self"), call.value(left), call.value(right))

    return row


def _conv2d(call: AtenCall) -> Result:
    x, weight = call.value("input"), call.value("weight")
    call.require(x.type.rank == 4)
    windows = (call.pair("stride"), call.pair("padding"), call.pair("dilation"))
    return apply(Conv2d(*windows, call["groups"]), x, weight, *call.optional("bias"))


def _conv3d(call: AtenCall) -> Result:
    x, weight = call.value("input"), call.value("weight")
    call.require(x.type.rank == 5)
    windows = (call.triple("stride"), call.triple("padding"), call.triple("dilation"))
    return apply(Conv3d(*windows, call["groups"]), x, weight, *call.optional("bias"))


def _conv_transpose2d(call: AtenCall) -> Result:
    x, weight = call.value("input"), call.value("weight")
    call.require(x.type.rank == 4)
    windows = (call.pair("stride"), call.pair("padding"), call.pair("output_padding"), call.pair("dilation"))
    return apply(ConvTranspose2d(*windows, call["groups"]), x, weight, *call.optional("bias"))


def _convolution(call: AtenCall) -> Result:
    if call["transposed"]:
        return _conv_transpose2d(call)
    call.require(not any(call["output_padding"]))
    return _conv3d(call) if call.value("input").type.rank == 5 else _conv2d(call)


def _named_padding(call: AtenCall, dilation: Sequence[int]) -> list[int]:
    """Return the padding that a name stands for; ``same`` only where it is symmetric: odd extents of the kernel."""
    if call["padding"] == "valid":
        return [0] * len(dilation)
    extents = call.value("weight").type.sizes[-len(dilation) :]
    reach = [d * (k - 1) for d, k in zip(dilation, extents, strict=True)]
    call.require(all(extent % 2 == 0 for extent in reach))
    return [extent // 2 for extent in reach]


def _conv2d_named_padding(call: AtenCall) -> Result:
    padding = _named_padding(call, call.pair("dilation"))
    return _conv2d(replace(call, arguments={**call.arguments, "padding": padding}))


def _conv1d(call: AtenCall) -> Result:
    x, weight = call.value("input"), call.value("weight")
    call.require(x.type.rank == 3)
    (stride, _), (padding, _), (dilation, _) = (call.pair(name) for name in ("stride", "padding", "dilation"))
    op = Conv2d((1, stride), (0, padding), (1, dilation), call["groups"])
    if not call.layouts[x].is_contiguous():
        x = apply(Contiguous(), x)
    image, kernel = (apply(Reshape((*v.type.dims[:2], 1, v.type.dims[2])), v) for v in (x, weight))
    return apply(Reshape(call.types[0].dims), apply(op, image, kernel, *call.optional("bias")))


def _conv1d_named_padding(call: AtenCall) -> Result:
    padding = _named_padding(call, call.pair("dilation")[:1])
    return _conv1d(replace(call, arguments={**call.arguments, "padding": padding}))


ROWS: Mapping[str, Callable[[AtenCall], Result]] = {
    "aten.mm.default": _matmul("mat2"),
    "aten.bmm.default": _matmul("mat2"),
    "aten.matmul.default": _matmul("other"),
    "aten.linear.default": _linear,
    "aten.addmm.default": _addmm,
    "aten.baddbmm.default": _baddbmm("batch1", "batch2"),
    "aten.conv1d.default": _conv1d,
    "aten.conv1d.padding": _conv1d_named_padding,
    "aten.conv2d.default": _conv2d,
    "aten.conv2d.padding": _conv2d_named_padding,
    "aten.conv3d.default": _conv3d,
    "aten.conv_transpose2d.input": _conv_transpose2d,
    "aten.convolution.default": _convolution,
}
"""One row per ATen overload."""
