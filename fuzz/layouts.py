"""Memory layouts of arguments, and whether a model writes to memory that is not dense.

What an import writes is computed in dense memory first, so that sums over it may add in another order than the model
does in memory with gaps: they then differ by roundings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from taso_py.backend.schema import bind, is_mutable, written_arguments
from taso_py.backend.tracing import OperatorWatch


def writes_with_gaps(module: nn.Module, args: Sequence[Any]) -> bool:
    """Return whether a call writes to anything, and argument or written memory has gaps between its elements."""
    with _WatchedWrites() as watch:
        module(*args)
    return bool(watch.written) and any(map(_has_gaps, [*args, *watch.written]))


class _WatchedWrites(OperatorWatch):
    """Collects what operators write to; control flow, whose bodies write to nothing outside, is called as ever."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.written: list[Tensor] = []

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call an operator."""
        if isinstance(func, OpOverload) and is_mutable(func):
            given = bind(func, args, kwargs or {})
            leaves = pytree.tree_leaves([given[name] for name in written_arguments(func)])
            self.written += [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        return func(*args, **(kwargs or {}))


def _has_gaps(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and not torch.ops.aten.is_non_overlapping_and_dense(leaf)


def in_place_of(leaf: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """Return a tensor with changed elements in the same memory layout.

    Args:
        leaf: the tensor.
        change: makes a tensor of the changed elements of a dense one.
    """
    held = leaf.as_strided((leaf.untyped_storage().nbytes() // leaf.itemsize,), (1,), 0)
    return change(held).as_strided(leaf.shape, leaf.stride(), leaf.storage_offset())
