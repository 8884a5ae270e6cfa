"""Custom operators that write to their arguments, registered for random models to call.

Invariant: none reads memory through one argument that it writes to through another one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

NAMESPACE = "taso_fuzz"


@torch.library.custom_op(f"{NAMESPACE}::scale", mutates_args=("x",))
def scale(x: Tensor, factor: float) -> None:
    """Multiply in place."""
    x.mul_(factor)


@torch.library.custom_op(f"{NAMESPACE}::put", mutates_args=("out",))
def put(x: Tensor, out: Tensor) -> None:
    """Write the mean of a tensor to all of another one."""
    out.copy_(x.double().mean().to(out.dtype).expand_as(out))


@torch.library.custom_op(f"{NAMESPACE}::spread", mutates_args=("xs",))
def spread(xs: Sequence[Tensor], by: float) -> None:
    """Add to several tensors."""
    for place, x in enumerate(xs):
        x.add_(by + place)


@torch.library.custom_op(f"{NAMESPACE}::exchange", mutates_args=("x", "y"))
def exchange(x: Tensor, y: Tensor) -> None:
    """Halve one tensor and negate another one."""
    x.mul_(0.5)
    y.neg_()


@torch.library.custom_op(f"{NAMESPACE}::tally", mutates_args=("total",))
def tally(total: Tensor, x: Tensor) -> Tensor:
    """Add to one tensor; return the double of another one."""
    total.add_(1)
    return x * 2


@tally.register_fake
def _(total: Tensor, x: Tensor) -> Tensor:
    return torch.empty_like(x * 2)
