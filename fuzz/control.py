"""Control flow for random models to call: plain Python where they run, PyTorch's operators where they are exported.

So what the operators compute is compared with what Python does. What loops carry on is in row-major order, as what
their bodies return is: PyTorch asks for equal strides.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._higher_order_ops import map as map_
from torch._higher_order_ops import scan, while_loop

_mapped: Any = map_


def branch(condition: Tensor, yes: Callable[..., Tensor], no: Callable[..., Tensor], *operands: Tensor) -> Tensor:
    """Return what one of two functions computes."""
    if torch.compiler.is_exporting():
        return torch.cond(condition, yes, no, operands)
    return (yes if bool(condition) else no)(*operands)


def repeat(goes_on: Callable[..., Tensor], body: Callable[..., Any], *carried: Tensor) -> tuple[Tensor, ...]:
    """Return what a function makes of tensors when it is called as long as a condition holds."""
    carried = tuple(map(fresh, carried))
    if torch.compiler.is_exporting():
        return while_loop(goes_on, body, carried)
    while bool(goes_on(*carried)):
        carried = body(*carried)
    return carried


def accumulate(step: Callable[..., Any], start: Tensor, slices: Tensor, *, reverse: bool) -> tuple[Tensor, Tensor]:
    """Return what a function makes of a tensor and each slice, the last one carried on, the others stacked."""
    start = fresh(start)
    if torch.compiler.is_exporting():
        return scan(step, start, slices, reverse=reverse)
    results: list[Tensor] = []
    for place in reversed(range(len(slices))) if reverse else range(len(slices)):
        start, result = step(start, slices[place])
        results.append(result)
    return start, torch.stack(results[::-1] if reverse else results)


def each(function: Callable[..., Tensor], slices: Tensor, other: Tensor) -> Tensor:
    """Return what a function computes of each slice and another tensor, stacked."""
    if torch.compiler.is_exporting():
        return _mapped(function, slices, other)
    return torch.stack([function(part, other) for part in slices])


def fresh(value: Tensor) -> Tensor:
    """Return a copy in row-major order."""
    return value.clone(memory_format=torch.contiguous_format)
