"""Tiles of oneDNN on the CPU: convolutions and linear layers with packed weights and fused epilogues.

PyTorch registers them for its own compiler, without a promise that their schemas stay (namespace ``mkldnn``, see
aten/src/ATen/native/mkldnn/{Conv,Linear}.cpp); so each is probed once per element type, and is not used where a small
example fails or differs from the plain operators.

Invariant: results of rank 4 are channels last, whatever the format of the operands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from functools import cache, partial
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional

from taso_py.backend.plan import BoundKernel, Format, Packs
from taso_py.backend.tensors import TORCH_DTYPES
from taso_py.ir.node import Node, Value
from taso_py.ir.size import least
from taso_py.ir.types import Dim, DType
from taso_py.kernels.chain import Chain, chains
from taso_py.kernels.probe import agrees, example, works_on
from taso_py.kernels.tile import CHANNELS_LAST, Cover, Formats, Tile
from taso_py.ops.contraction import Conv2d, Linear, Matmul
from taso_py.ops.elementwise import Gelu, Mul

_CONV_FORMATS: tuple[Formats, ...] = ((Format.DENSE, Format.CHANNELS_LAST), CHANNELS_LAST)
_LINEAR_FORMATS: tuple[Formats, ...] = ((Format.DENSE, Format.DENSE),)
_CPU = torch.device("cpu")


def _conv_covers(node: Node, device: torch.device) -> Iterator[Cover]:
    for chain in chains(node):
        op = chain.product.op
        if isinstance(op, Conv2d) and _is_packed_right(op, chain) and _takes(chain, device, convolution_works):
            yield chain.cover("onednn.conv", _CONV_FORMATS, _bind_conv, _conv_text(chain))


def _linear_covers(node: Node, device: torch.device) -> Iterator[Cover]:
    for chain in chains(node):
        # The sum of the linear kernel takes no activation.
        is_simple = chain.other is None or chain.activation is None
        if isinstance(chain.product.op, Linear | Matmul) and is_simple and _takes(chain, device, linear_works):
            yield chain.cover("onednn.linear", _LINEAR_FORMATS, _bind_linear)


def _gated_covers(node: Node, device: torch.device) -> Iterator[Cover]:
    """Yield the covers of a linear layer times a value, as in gated networks (https://arxiv.org/abs/2002.05202)."""
    if not isinstance(node.op, Mul) or node.inputs[0] == node.inputs[1] or node.inputs[0].type != node.inputs[1].type:
        return
    for value, factor in (node.inputs, node.inputs[::-1]):
        for chain in chains(value.node):
            is_linear = isinstance(chain.product.op, Linear | Matmul) and len(chain.nodes) == 1
            if is_linear and _takes(chain, device, gated_works):
                yield _gated(chain, factor, node)


def _gated(chain: Chain, factor: Value, root: Node) -> Cover:
    return Cover(
        "onednn.gated",
        (chain.product, root),
        (*chain.operands, factor),
        formats=_LINEAR_FORMATS,
        statics=chain.statics,
        packed=chain.weight,
        binder=partial(_bind_gated, chain),
        text=f"{chain.text} {root.op.text}",
        bare=lambda: chain.bare.cover("onednn.linear", _LINEAR_FORMATS, _bind_linear),
    )


def _conv_text(chain: Chain) -> str:
    """Return the latency key of a chain; it says whether the summand is overwritten if nothing else reads it."""
    overwrites = chain.other is not None and _works(overwriting_works, chain.other.type.dtype)
    return f"{chain.text} in place" if overwrites else chain.text


def _takes(chain: Chain, device: torch.device, works: Callable[[torch.dtype], bool]) -> bool:
    dtypes = {value.type.dtype for value in (*chain.operands, *chain.statics)}
    return device.type == "cpu" and len(dtypes) == 1 and _works(works, dtypes.pop()) and _is_fusible(chain)


def _works(works: Callable[[torch.dtype], bool], dtype: DType) -> bool:
    return works_on(_CPU, lambda: works(TORCH_DTYPES[dtype]))


def _is_packed_right(op: Conv2d, chain: Chain) -> bool:
    """Return whether the packed convolution computes the right result; PyTorch 2.13 has three kinds that do not.

    Of images of one channel it is wrong if the vertical stride is one, the horizontal stride is larger, and the result
    has one column: 206 of 31,213 random convolutions of one channel, all of that kind. An open width may come to that.

    In bf16 any convolution may be wrong whose horizontal stride is larger than one and whose result has one column:
    116 of 25,000 random ones, all of that kind. PyTorch's own call is wrong there too, so nothing is learned from it.

    With dilated columns and a filter no column of which ever meets the image, it ends the process: 295 of 676 such
    convolutions out of 30,000 random ones, and no others.
    """
    x, weight = (value.type for value in chain.product.inputs[:2])
    if x.dims[1] == 1 and op.stride[0] == 1 and op.stride[1] != 1:
        return False
    result = chain.product.types[0]
    if result.dtype is DType.BF16 and op.stride[1] != 1 and (least(result.dims[3]) or 0) <= 1:
        return False
    return op.dilation[1] == 1 or not _may_miss_columns(op, x.dims[3], weight.sizes[3])


def _may_miss_columns(op: Conv2d, width: Dim, kernel: int) -> bool:
    """Return whether a convolution reads only padding along its rows, at this width or, if it is open, at any width."""
    # A model's convolution with attributes that are open is an opaque operator.
    stride, padding, dilation = cast(tuple[int, int, int], (op.stride[1], op.padding[1], op.dilation[1]))
    span = dilation * (kernel - 1)

    def misses(size: int) -> bool:
        starts = range(-padding, size + padding - span, stride)
        return not any(0 <= start + reach < size for start in starts for reach in range(0, span + 1, dilation))

    # An image as wide as a step and the filter is met wherever it begins.
    return any(misses(size) for size in ([width] if isinstance(width, int) else range(1, stride + span + 1)))


def _is_fusible(chain: Chain) -> bool:
    """Return whether a kernel exists for the epilogue; a sum allows no groups, and only relu after it."""
    if chain.other is None:
        return True
    name, _, _ = _activation(chain.activation)
    return name in ("none", "relu") and getattr(chain.product.op, "groups", 1) == 1


def _activation(node: Node | None) -> tuple[str, list[float], str]:
    """Return oneDNN's name of an activation, its numeric parameters, and its algorithm."""
    if node is None or node.op.epilogue is None:
        return "none", [], ""
    numbers = [value for field in fields(node.op) if isinstance(value := getattr(node.op, field.name), float)]
    return node.op.epilogue, numbers, node.op.approximate if isinstance(node.op, Gelu) else ""


def _bind_conv(chain: Chain, statics: Sequence[Tensor], packs: Packs) -> BoundKernel:
    op = chain.product.op
    assert isinstance(op, Conv2d)
    windows: list[Any] = [list(op.padding), list(op.stride), list(op.dilation), op.groups]
    shape = list(chain.product.inputs[0].type.sizes)
    reorder = torch.ops.mkldnn._reorder_convolution_weight
    packed, bias = chain.packed(statics, packs, reorder, *windows, shape)
    name, numbers, algorithm = _activation(chain.activation)
    if chain.other is None:
        call: Any = torch.ops.mkldnn._convolution_pointwise.default
        return BoundKernel("onednn_conv", call, (packed, bias, *windows, name, numbers, algorithm))
    call = torch.ops.mkldnn._convolution_pointwise.binary
    unary = None if name == "none" else name
    rest = (packed, bias, *windows, "add", 1.0, unary, numbers, algorithm)
    return BoundKernel(
        "onednn_conv_add", call, rest, overwriting=_add_into if overwriting_works(packed.dtype) else None
    )


def _add_into(x: Tensor, other: Tensor, *rest: Any) -> Tensor:
    """Add a convolution to ``other`` in place; return it."""
    return torch.ops.mkldnn._convolution_pointwise_.binary(other, x, *rest)


def _bind_linear(chain: Chain, statics: Sequence[Tensor], packs: Packs) -> BoundKernel:
    packed, bias = chain.packed(statics, packs, _reordered, chain.rows)
    name, numbers, algorithm = _activation(chain.activation)
    if chain.other is None:
        call: Any = torch.ops.mkldnn._linear_pointwise.default
        return BoundKernel("onednn_linear", call, (packed, bias, name, numbers, algorithm))
    return BoundKernel("onednn_linear_add", torch.ops.mkldnn._linear_pointwise.binary, (packed, bias, "add"))


def _bind_gated(chain: Chain, statics: Sequence[Tensor], packs: Packs) -> BoundKernel:
    packed, bias = chain.packed(statics, packs, _reordered, chain.rows)
    return BoundKernel("onednn_gated", torch.ops.mkldnn._linear_pointwise.binary, (packed, bias, "mul"))


def _reordered(weight: Tensor, rows: int) -> Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), rows)


@cache
def convolution_works(dtype: torch.dtype) -> bool:
    """Return whether the convolution computes a small example correctly, in its unary and in its binary form."""
    x, weight, bias = (example(shape, dtype, _CPU) for shape in ((2, 4, 5, 5), (4, 4, 3, 3), (4,)))
    windows: tuple[Any, ...] = ([1, 1], [1, 1], [1, 1], 1)

    def fused() -> list[Tensor]:
        ops = torch.ops.mkldnn
        packed = ops._reorder_convolution_weight(weight, *windows, list(x.shape))
        unary = ops._convolution_pointwise.default(x, packed, bias, *windows, "relu", [], "")
        return [unary, ops._convolution_pointwise.binary(x, x, packed, bias, *windows, "add", 1.0, "relu", [], "")]

    product = functional.conv2d(x.float(), weight.float(), bias.float(), padding=1)
    return agrees(fused, [functional.relu(product), functional.relu(product + x.float())])


@cache
def overwriting_works(dtype: torch.dtype) -> bool:
    """Return whether the convolution that overwrites its summand computes a small example correctly, in that memory."""
    x, weight = (example(shape, dtype, _CPU) for shape in ((2, 4, 5, 5), (4, 4, 3, 3)))
    windows: tuple[Any, ...] = ([1, 1], [1, 1], [1, 1], 1)

    def fused() -> list[Tensor]:
        other = x.clone(memory_format=torch.channels_last)
        packed = torch.ops.mkldnn._reorder_convolution_weight(weight, *windows, list(x.shape))
        _add_into(x, other, packed, None, *windows, "add", 1.0, "relu", [], "")
        return [other]

    return agrees(fused, [functional.relu(functional.conv2d(x.float(), weight.float(), padding=1) + x.float())])


@cache
def linear_works(dtype: torch.dtype) -> bool:
    """Return whether the linear layer computes a small example correctly, in its unary and in its binary form."""
    x, weight, bias = (example(shape, dtype, _CPU) for shape in ((3, 4), (4, 4), (4,)))

    def fused() -> list[Tensor]:
        ops = torch.ops.mkldnn
        packed = ops._reorder_linear_weight(weight, 3)
        unary = ops._linear_pointwise.default(x, packed, bias, "gelu", [], "none")
        return [unary, ops._linear_pointwise.binary(x, x, packed, bias, "add")]

    product = functional.linear(x.float(), weight.float(), bias.float())
    return agrees(fused, [functional.gelu(product), product + x.float()])


@cache
def gated_works(dtype: torch.dtype) -> bool:
    """Return whether the linear layer times a value computes a small example correctly, with and without bias."""
    x, weight, bias, factor = (example(shape, dtype, _CPU) for shape in ((3, 4), (5, 4), (5,), (3, 5)))

    def fused() -> list[Tensor]:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, 3)
        call: Any = torch.ops.mkldnn._linear_pointwise.binary
        return [call(x, factor, packed, added, "mul") for added in (bias, None)]

    product = functional.linear(x.float(), weight.float())
    return agrees(fused, [(product + bias.float()) * factor.float(), product * factor.float()])


ONEDNN = (
    Tile("onednn.conv", _conv_covers),
    Tile("onednn.linear", _linear_covers),
    Tile("onednn.gated", _gated_covers),
)
"""The tiles of oneDNN."""
