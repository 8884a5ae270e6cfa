"""Tile of MKL on the CPU: linear layers in single precision with packed weights.

PyTorch registers it for its own compiler, without a promise that its schema stays (namespace ``mkl``, see
aten/src/ATen/native/mkldnn/Linear.cpp); so it is probed once, and is not used where a small example fails or differs
from the plain operator. It fuses nothing, but for some processors and shapes its product is faster than oneDNN's.

Invariant: a weight is packed for a number of rows, and never used with another.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from taso_py.backend.plan import BoundKernel, Packs
from taso_py.ir.node import Node
from taso_py.ir.types import DType
from taso_py.kernels.chain import Chain, chains
from taso_py.kernels.probe import agrees, example, works_on
from taso_py.kernels.tile import DENSE, Cover, Tile
from taso_py.ops.contraction import Linear, Matmul

_CPU = torch.device("cpu")


def _covers(node: Node, device: torch.device) -> Iterator[Cover]:
    if not isinstance(node.op, Linear | Matmul) or device.type != "cpu":
        return
    for chain in chains(node):
        values = (*chain.operands, *chain.statics)
        fits = all(value.type.dtype is DType.F32 and value.type.is_concrete for value in values)
        if fits and works_on(device, linear_works):
            yield chain.cover("mkl.linear", (DENSE,), _bind)


def _bind(chain: Chain, statics: Sequence[Tensor], packs: Packs) -> BoundKernel:
    # MKL's packed tensors span several MiB of addresses however small the weight is, most of which is never touched.
    packed, bias = chain.packed(statics, packs, _packed, chain.rows, tells_size=False)
    return _bound(packed, bias, chain.rows, chain.weight.sizes)


def _packed(weight: Tensor, rows: int) -> Tensor:
    return torch.ops.mkl._mkl_reorder_linear_weight(weight.contiguous(), rows)


def _bound(packed: Tensor, bias: Tensor | None, rows: int, sizes: Sequence[int]) -> BoundKernel:
    """Return a linear layer for a fixed number of rows."""
    call: Any = torch.ops.mkl._mkl_linear.default
    # The weight as it was is asked for its shape, and read for other numbers of rows only. It is not kept: if ever it
    # were read after all, every result would be NaN.
    return BoundKernel("mkl_linear", call, (packed, _unread(*sizes), bias, rows))


@cache
def _unread(*sizes: int) -> Tensor:
    """Return a weight of NaN without storage, one for all layers of these sizes, since a compiler may write it out."""
    return torch.full((1, 1), math.nan, dtype=torch.float32, device=_CPU).expand(*sizes)


@cache
def linear_works() -> bool:
    """Return whether the layer computes a small example correctly, with and without bias, from the packed weight."""
    x, weight, bias = (example(shape, torch.float32, _CPU) for shape in ((3, 5), (4, 5), (4,)))

    def bound(bias: Tensor | None) -> BoundKernel:
        return _bound(_packed(weight, 3), bias, 3, weight.shape)

    return agrees(
        lambda: [bound(bias).function(x), bound(None).function(x.reshape(1, 3, 5))],
        [functional.linear(x, weight, bias), functional.linear(x, weight).reshape(1, 3, 4)],
    )


MKL = Tile("mkl.linear", _covers)
"""The tile of MKL."""
