"""Tile of sums with a product: ``a + b * c`` in one call, which reads each operand once and stores no product.

Layer scales, gates, interpolations and rotary embeddings are of this form; ``a + b * number`` is a sum with a factor.

Invariant: the result is rounded once where the kernel's processor can, and no more often than by two calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from taso_py.backend.plan import BoundKernel
from taso_py.ir.node import Node, Value, make_as
from taso_py.ir.operator import Constant
from taso_py.kernels.aten import ATEN
from taso_py.kernels.tile import Cover, Tile
from taso_py.ops.elementwise import Add, Addcmul, Mul, Sub


def _covers(node: Node, device: torch.device) -> Iterator[Cover]:
    if device.type not in ("cpu", "cuda") or not node.types[0].dtype.is_floating:
        return
    if isinstance(node.op, Sub):
        yield from _cover(node, *node.inputs, device=device)
    elif isinstance(node.op, Add):
        one, other = node.inputs
        yield from _cover(node, one, other, device=device)
        yield from _cover(node, other, one, device=device)


def _cover(node: Node, summand: Value, product: Value, device: torch.device) -> Iterator[Cover]:
    """Yield the cover of a sum or difference with a product, if it is one."""
    inner, sign = product.node, -1 if isinstance(node.op, Sub) else 1
    # Twice a product reads it twice, so that it has to be stored.
    if not isinstance(inner.op, Mul) or inner.is_static or isinstance(summand.node.op, Constant) or summand == product:
        return
    numbers = [value.node.op.value for value in inner.inputs if isinstance(value.node.op, Constant)]
    factors = [value for value in inner.inputs if not isinstance(value.node.op, Constant)]
    if not factors or any(not isinstance(number, int | float) for number in numbers):
        return
    kernel, overwriting = (_multiple_added, _multiple_added_into) if numbers else (_product_added, _product_added_into)
    factor = sign * numbers[0] if numbers else sign
    (plain,) = ATEN.covers(make_as(Addcmul(), [summand, *inner.inputs], node.types), device)

    def binder(_: Sequence[Tensor], __: Any) -> BoundKernel:
        fits = summand.type == node.types[0]
        return BoundKernel("multiply_add", kernel, (factor,), overwriting=overwriting if fits else None)

    text = f"{'multiple' if numbers else 'product'} {sign}"
    yield Cover(
        "aten.multiply_add", (inner, node), (*factors, summand), formats=plain.formats, binder=binder, text=text
    )


def _product_added(left: Tensor, right: Tensor, summand: Tensor, factor: float) -> Tensor:
    return torch.addcmul(summand, left, right, value=factor)


def _product_added_into(left: Tensor, right: Tensor, summand: Tensor, factor: float) -> Tensor:
    return summand.addcmul_(left, right, value=factor)


def _multiple_added(x: Tensor, summand: Tensor, factor: float) -> Tensor:
    return torch.add(summand, x, alpha=factor)


def _multiple_added_into(x: Tensor, summand: Tensor, factor: float) -> Tensor:
    return summand.add_(x, alpha=factor)


MULTIPLY_ADD = Tile("aten.multiply_add", _covers)
"""The tile of sums with a product, or with a multiple."""
