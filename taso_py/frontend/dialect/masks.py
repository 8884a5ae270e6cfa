"""Import of attention whose mask is known while a model is imported: the mask is dropped, or becomes ``causal``.

Exporters write out masks that the model itself never makes: transformers hands PyTorch no mask, or asks for causal
attention, unless it is traced. Kernels without a mask are faster, and rules know causal attention.

Invariant: a mask is what it is computed to be; one that depends on inputs or weights is left alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor

from taso_py.backend.fold import evaluate
from taso_py.frontend.call import AtenCall, Result, apply
from taso_py.frontend.dialect.normalization import attention
from taso_py.ir.graph import topological
from taso_py.ir.node import Node, Value
from taso_py.ir.operator import Weight
from taso_py.ops.movement import Contiguous
from taso_py.ops.normalization import Attention

MOST_SCORES = 2**24
"""The largest mask that is computed."""


def _attention(call: AtenCall) -> Iterator[Value]:
    """Yield attention without its mask if that says nothing or what ``causal`` says, and attention as it is.

    PyTorch's kernel for a mask may lay its result out densely where the one without a mask does not.
    """
    masked = attention(call)
    simpler = _without_mask(masked.node, call)
    if simpler is not None:
        yield simpler
        yield apply(Contiguous(), simpler)
    yield masked


def _without_mask(masked: Node, call: AtenCall) -> Value | None:
    """Return attention without the mask that it has; None if it needs the mask, or has none.

    A mask of numbers is recognized where it is 0 or minus infinity, which say what true and false do.
    """
    *others, mask = masked.inputs
    if len(others) < 3 or mask.type.open or math.prod(mask.type.sizes) > MOST_SCORES or not _is_known(mask):
        return None
    found = _values(mask, call.layouts[mask].device)
    is_seen, is_hidden = (found, ~found) if found.dtype is torch.bool else (found == 0, found == -math.inf)
    assert isinstance(masked.op, Attention)
    if bool(is_seen.all()):
        return apply(masked.op, *others)
    rows, keys = others[0].type.shape[-2], others[1].type.shape[-2]
    if rows != keys or found.shape[-2:] != (rows, keys) or not _is_triangle(is_seen, is_hidden):
        return None
    return apply(replace(masked.op, causal=True), *others)


@lru_cache(maxsize=1)  # the layers of a model share a mask
def _values(mask: Value, device: torch.device) -> Tensor:
    return evaluate(mask, {}, device)


def _is_known(value: Value) -> bool:
    return value.node.is_static and not any(isinstance(node.op, Weight) for node in topological([value.node]))


def _is_triangle(is_seen: Tensor, is_hidden: Tensor) -> bool:
    """Return whether every row sees the keys up to its own, and no others."""
    below = torch.ones(is_seen.shape[-2:], dtype=torch.bool, device=is_seen.device).tril()
    return bool(torch.where(below, is_seen, is_hidden).all())


ROWS: Mapping[str, Callable[[AtenCall], Result]] = {"aten.scaled_dot_product_attention.default": _attention}
