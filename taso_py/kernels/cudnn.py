"""Tiles of NVIDIA's libraries: cuDNN's fused convolutions, and the epilogues of cuBLASLt's matrix product.

Each is probed once per device and element type, fused convolutions with groups apart from those without, since other
kernels compute them. Weights of channels-last convolutions are packed channels last.
(cuDNN: aten/src/ATen/native/cudnn/ConvShared.cpp; cuBLASLt: ``_addmm_activation``, aten/src/ATen/native/cuda/Blas.cpp.)

Invariant: these tiles cover nothing on other devices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from taso_py.backend.plan import BoundKernel, Packs
from taso_py.backend.tensors import TORCH_DTYPES
from taso_py.ir.node import Node
from taso_py.kernels.aten import convolves_channels_last
from taso_py.kernels.chain import Chain, chains
from taso_py.kernels.probe import agrees, example, works_on
from taso_py.kernels.tile import CHANNELS_LAST, DENSE, Cover, Tile
from taso_py.ops.contraction import Conv2d, Linear
from taso_py.ops.elementwise import Gelu, Relu

aten = torch.ops.aten


def _conv_covers(node: Node, device: torch.device) -> Iterator[Cover]:
    for chain in chains(node) if device.type == "cuda" else ():
        op = chain.product.op
        if not (isinstance(op, Conv2d) and convolves_channels_last(chain.product)):
            continue
        fused_works = partial(conv_relu_works, grouped=op.groups != 1)
        if chain.activation is None and chain.other is None:
            # The plain convolution, with its normalisation folded in and its weight packed channels last.
            yield chain.cover("cudnn.conv", (CHANNELS_LAST,), _bind_conv)
        elif isinstance(chain.activation and chain.activation.op, Relu) and _fuses(chain, device, fused_works):
            yield chain.cover("cudnn.conv_relu", (CHANNELS_LAST,), _bind_conv_relu, binds_bare=False)


def _linear_covers(node: Node, device: torch.device) -> Iterator[Cover]:
    for chain in chains(node) if device.type == "cuda" else ():
        op = chain.activation.op if chain.activation else None
        fuses = isinstance(op, Relu) or (isinstance(op, Gelu) and op.approximate == "tanh")
        is_biased_linear = isinstance(chain.product.op, Linear) and len(chain.product.inputs) == 3
        if fuses and is_biased_linear and chain.other is None and _takes(chain, device, linear_works):
            yield chain.cover("cublaslt.linear", (DENSE,), _bind_linear, binds_bare=False)


def _takes(chain: Chain, device: torch.device, works: Callable[[torch.dtype, torch.device], bool]) -> bool:
    dtypes = {value.type.dtype for value in (*chain.operands, *chain.statics)}
    return len(dtypes) == 1 and works_on(device, lambda: works(TORCH_DTYPES[dtypes.pop()], device))


def _fuses(chain: Chain, device: torch.device, works: Callable[[torch.dtype, torch.device], bool]) -> bool:
    """Return whether fused convolutions may be called: they let cuDNN choose any kernel, whatever its settings say."""
    cudnn = torch.backends.cudnn
    is_free = cudnn.enabled and not (cudnn.deterministic or torch.are_deterministic_algorithms_enabled())
    return is_free and _takes(chain, device, works)


def _packed(chain: Chain, statics: Sequence[Tensor], packs: Packs) -> tuple[Tensor, Tensor | None, list[Any]]:
    """Return the weight channels last, the bias, and the arguments in the order in which cuDNN's calls take them."""
    op = chain.product.op
    assert isinstance(op, Conv2d)
    weight, bias = chain.packed(statics, packs, _channels_last)
    windows = [list(op.stride), list(op.padding), list(op.dilation), op.groups]
    return weight, bias, windows


def _channels_last(weight: Tensor) -> Tensor:
    return weight.contiguous(memory_format=torch.channels_last)


def _bind_conv(chain: Chain, statics: Sequence[Tensor], packs: Packs) -> BoundKernel:
    weight, bias, windows = _packed(chain, statics, packs)
    return BoundKernel("cudnn_conv", aten.conv2d.default, (weight, bias, *windows))


def _bind_conv_relu(chain: Chain, statics: Sequence[Tensor], packs: Packs) -> BoundKernel:
    weight, bias, windows = _packed(chain, statics, packs)
    if chain.other is None:
        return BoundKernel("cudnn_conv_relu", aten.cudnn_convolution_relu.default, (weight, bias, *windows))
    return BoundKernel("cudnn_conv_add_relu", _conv_add_relu, (weight, bias, *windows))


def _conv_add_relu(x: Tensor, other: Tensor, weight: Tensor, bias: Tensor | None, *windows: Any) -> Tensor:
    return aten.cudnn_convolution_add_relu.default(x, weight, other, 1.0, bias, *windows)


def _bind_linear(chain: Chain, statics: Sequence[Tensor], packs: Packs) -> BoundKernel:
    columns, bias = chain.packed(statics, packs, _columns)
    uses_gelu = isinstance(chain.activation and chain.activation.op, Gelu)
    return BoundKernel("cublaslt_linear", _linear, (bias, columns, uses_gelu))


def _linear(x: Tensor, bias: Tensor, columns: Tensor, uses_gelu: bool) -> Tensor:
    rows = x.reshape(-1, x.shape[-1])
    return aten._addmm_activation.default(bias, rows, columns, use_gelu=uses_gelu).unflatten(0, x.shape[:-1])


def _columns(weight: Tensor) -> Tensor:
    return weight.contiguous().t()


@cache
def conv_relu_works(dtype: torch.dtype, device: torch.device, grouped: bool) -> bool:
    """Return whether the fused convolutions, grouped or not, compute a small example correctly, channels last.

    Where nothing is added, cuDNN is given the memory of the result to add, times zero, whatever is in there; so it is
    filled with what zero times it would not hide.
    """
    groups = 8 if grouped else 1
    x, weight, bias = (example(shape, dtype, device) for shape in ((2, 8, 5, 5), (8, 8 // groups, 3, 3), (8,)))

    def fused() -> list[Tensor]:
        image, kernel = (tensor.contiguous(memory_format=torch.channels_last) for tensor in (x, weight))
        windows: tuple[Any, ...] = ([1, 1], [1, 1], [1, 1], groups)
        _leave_nan(image)
        alone = aten.cudnn_convolution_relu.default(image, kernel, bias, *windows)
        _leave_nan(image)
        return [alone, aten.cudnn_convolution_add_relu.default(image, kernel, image, 1.0, bias, *windows)]

    product = functional.conv2d(x.float(), weight.float(), bias.float(), padding=1, groups=groups)
    return agrees(fused, [functional.relu(product), functional.relu(product + x.float())])


def _leave_nan(like: Tensor) -> None:
    """Fill memory with NaN and free it, so that the allocator hands it out for the next tensor of that size."""
    torch.full_like(like, torch.nan)


@cache
def linear_works(dtype: torch.dtype, device: torch.device) -> bool:
    """Return whether the fused linear layer computes a small example correctly, with both activations."""
    x, weight, bias = (example(shape, dtype, device) for shape in ((4, 8), (8, 8), (8,)))

    def fused() -> list[Tensor]:
        return [aten._addmm_activation.default(bias, x, weight.t(), use_gelu=uses) for uses in (False, True)]

    product = functional.linear(x.float(), weight.float(), bias.float())
    return agrees(fused, [functional.relu(product), functional.gelu(product, approximate="tanh")])


CUDNN = (Tile("cudnn.conv", _conv_covers), Tile("cublaslt.linear", _linear_covers))
"""The tiles of NVIDIA's libraries."""
