"""Tile of stand-alone normalisations, computed as one multiplication and one addition.

PyTorch's batch normalisation reads its four parameters for every image, and on the CPU, channels last, takes more than
twice as long as ``addcmul`` with the equivalent scale and shift. A normalisation directly after a convolution is folded
into that instead (:mod:`taso_py.kernels.chain`).

Invariant: the scale and the shift are computed in double precision, once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from taso_py.backend.plan import BoundKernel, Packs, is_formatted
from taso_py.ir.node import Node
from taso_py.ir.types import DType
from taso_py.kernels.chain import is_inference_norm, scale_and_shift
from taso_py.kernels.tile import CHANNELS_LAST, Cover, Tile


def _covers(node: Node, device: torch.device) -> Iterator[Cover]:
    is_known = device.type in ("cpu", "cuda")
    is_single = all(value.type.dtype is DType.F32 for value in node.inputs)
    if is_known and is_inference_norm(node) and is_formatted(node.inputs[0]) and is_single:

        def binder(statics: Sequence[Tensor], _: Packs) -> BoundKernel:
            return _bound(*scale_and_shift(node, statics))

        statics = node.inputs[1:]
        yield Cover(
            "aten.addcmul",
            (node,),
            node.inputs[:1],
            formats=(CHANNELS_LAST,),
            statics=statics,
            packed=statics[0].type,
            binder=binder,
        )


def _bound(scale: Tensor, shift: Tensor) -> BoundKernel:
    scale, shift = (tensor.float().reshape(-1, 1, 1) for tensor in (scale, shift))
    return BoundKernel("scaled_and_shifted", _scaled_and_shifted, (scale, shift))


def _scaled_and_shifted(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    return torch.addcmul(shift, x, scale)


AFFINE = Tile("aten.addcmul", _covers)
"""The tile of normalisations that do not follow a convolution."""
