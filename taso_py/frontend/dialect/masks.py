"""Import of attention whose mask is known while a model is imported: the mask is dropped, or becomes ``causal``.

Exporters write out masks that the model itself never makes: transformers hands PyTorch no mask, or asks for causal
attention, unless it is traced. Kernels without a mask are faster, and rules know causal attention.

Invariant: a mask is what it is computed to be; one that depends on inputs or weights is left alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor

from taso_py.backend.fold import evaluate
from taso_py.frontend.call import AtenCall, Result, apply
from taso_py.frontend.dialect.normalization import attention
from taso_py.ir.graph import topological
from taso_py.ir.node import Value
from taso_py.ir.operator import Weight
from taso_py.ops.movement import Contiguous
from taso_py.ops.normalization import Attention

MOST_SCORES = 2**24
"""The largest mask that is computed."""


def _attention(call: AtenCall) -> Value:
    """Import attention without the mask that its call has.

    A mask of numbers is recognized where it is 0 or minus infinity, which say what true and false do.
    """
    masked = attention(call).node
    call.require(len(masked.inputs) == 4)
    mask = masked.inputs[3]
    call.require(not mask.type.open and math.prod(mask.type.sizes) <= MOST_SCORES and _is_known(mask))
    found = _values(mask, call.layouts[mask].device)
    is_seen, is_hidden = (found, ~found) if found.dtype is torch.bool else (found == 0, found == -math.inf)
    assert isinstance(masked.op, Attention)
    if bool(is_seen.all()):
        return apply(masked.op, *masked.inputs[:3])
    rows, keys = masked.inputs[0].type.shape[-2], masked.inputs[1].type.shape[-2]
    call.require(rows == keys and found.shape[-2:] == (rows, keys) and _is_triangle(is_seen, is_hidden))
    return apply(replace(masked.op, causal=True), *masked.inputs[:3])


@lru_cache(maxsize=1)  # the layers of a model share a mask
def _values(mask: Value, device: torch.device) -> Tensor:
    return evaluate(mask, {}, device)


def _is_known(value: Value) -> bool:
    return value.node.is_static and not any(isinstance(node.op, Weight) for node in topological([value.node]))


def _is_triangle(is_seen: Tensor, is_hidden: Tensor) -> bool:
    """Return whether every row sees the keys up to its own, and no others."""
    below = torch.ones(is_seen.shape[-2:], dtype=torch.bool, device=is_seen.device).tril()
    return bool(torch.where(below, is_seen, is_hidden).all())


def _dense_attention(call: AtenCall) -> Value:
    """Import attention without its mask where PyTorch's kernel for the mask lays its result out densely."""
    return apply(Contiguous(), _attention(call))


ROWS: Mapping[str, Sequence[Callable[[AtenCall], Result]]] = {
    "aten.scaled_dot_product_attention.default": (_attention, _dense_attention)
}
"""Rows that are tried before the others, in order."""
