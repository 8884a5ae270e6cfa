"""Conjugate and negative bits: tensors read as the conjugate, or the negative, of their memory.

PyTorch's operators resolve them where they must, so a bit never changes a result; but calls that reinterpret memory
refuse it, and callers see it. A program's inputs and weights have none: they are resolved where they come in.

Invariant: the numbers of a tensor are the same whichever bits it has.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from taso_py.backend.schema import may_alias, overload_named
from taso_py.ir.node import Value
from taso_py.ops.elementwise import Cast
from taso_py.ops.opaque import Opaque

aten = torch.ops.aten

Bits: TypeAlias = tuple[bool, bool]
"""True or false for each bit: whether a tensor is a conjugate view, and whether it is a negative view."""
PLAIN: Bits = (False, False)
VIEWING = (("aten.conj_physical.default", "aten._conj.default"), ("aten.neg.default", "aten._neg_view.default"))
"""For each bit, two operators that, applied one after the other, set it without changing the numbers."""


def bits_of(tensor: Tensor) -> Bits:
    """Return the bits of a tensor, real or fake."""
    return tensor.is_conj(), tensor.is_neg()


def resolved(tensor: Tensor) -> Tensor:
    """Return the tensor itself, or a copy with the same numbers and no bits if it has any."""
    if tensor.is_conj() or tensor.is_neg():
        return tensor.resolve_conj().resolve_neg()
    return tensor


def content_of(tensor: Tensor) -> Tensor:
    """Return the numbers of a tensor in row-major order, as bytes on its device."""
    flat = resolved(tensor.detach()).contiguous().reshape(-1)
    # One element is contiguous with any stride, such as the 0 of an expanded one, but is not seen as bytes with it.
    return flat.as_strided(flat.shape, (1,)).view(torch.uint8)


def memory_of(tensor: Tensor) -> Tensor:
    """Return the memory of a tensor as a tensor without bits."""
    memory = tensor.conj() if tensor.is_conj() else tensor
    return aten._neg_view.default(memory) if memory.is_neg() else memory


def all_resolved(tree: Any) -> Any:
    """Return a tree of values with its strided tensors resolved."""
    return pytree.tree_map_only(Tensor, lambda leaf: resolved(leaf) if leaf.layout is torch.strided else leaf, tree)


def may_have_bits(value: Value) -> bool:
    """Return whether a value of a graph may have a bit, even after the operators before it are rewritten."""
    stack, seen = [value.node], {value.node}
    while stack:
        node = stack.pop()
        op = node.op
        if isinstance(op, Opaque) and any(op.target == setting for _, setting in VIEWING):
            return True
        is_alias = isinstance(op, Opaque) and may_alias(overload_named(op.target))
        # A movement or cast may pass on the bits of its operand, for some layouts or after a rewrite.
        if is_alias or op.is_movement or isinstance(op, Cast):
            new = {operand.node for operand in node.inputs} - seen
            seen |= new
            stack += new
    return False
