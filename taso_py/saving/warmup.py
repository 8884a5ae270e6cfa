"""Warm-up calls of a result with open sizes, so that no user's call is the first one at its size.

At the first call with a new size, oneDNN and MKL generate kernels, a compiler may compile, and memory is allocated; all
of that lasts for the process. The result itself prepares nothing by size.

Invariant: all sizes are checked before any call, and calls change neither the module's state nor the random generators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from typing import Any, TypeAlias

import torch
from torch import nn

from taso_py.backend.generators import random_state_kept
from taso_py.checking.preserve import preserve_buffers
from taso_py.checking.resize import OpenInputs
from taso_py.ir.errors import in_a_line
from taso_py.ir.size import Open
from taso_py.saving.folder import WarmupError

Sizes: TypeAlias = int | Mapping[str, int]
"""A value for the only open size, or values by name as in the report; sizes left out are those of the example."""


def warm_up(runner: Callable[..., Any], inputs: OpenInputs, sizes: Iterable[Sizes]) -> None:
    """Call a result once at each of some sizes.

    Args:
        runner: the result.
        inputs: makes its inputs at any size.
        sizes: the sizes.

    Raises:
        WarmupError: the result does not have these sizes.
    """
    chosen = [_chosen(inputs.open, one) for one in sizes]
    if inputs.has_state and not isinstance(runner, nn.Module):
        raise WarmupError("this result writes to buffers that cannot be restored; call it yourself before it is in use")
    state = preserve_buffers([runner]) if inputs.has_state and isinstance(runner, nn.Module) else nullcontext()
    with torch.no_grad(), random_state_kept(), state:
        for one in chosen:
            args, kwargs = inputs.at(one, seed=0)
            runner(*args, **kwargs)


def _chosen(known: tuple[Open, ...], sizes: Sizes) -> dict[Open, int]:
    """Return a value for each open size."""
    if not known:
        raise WarmupError("this result has no open sizes, so that there is nothing to warm up; leave out the sizes")
    first, *more = known
    names = ", ".join(f"{size.name} ({size.range})" for size in known)
    values: list[Any] = [*sizes.values()] if isinstance(sizes, Mapping) else [sizes]
    if not all(isinstance(value, int) for value in values):
        raise WarmupError(f"sizes must be a number, or a dict of numbers by name, not {in_a_line(sizes)}")
    if isinstance(sizes, int):
        if more:
            raise WarmupError(f"{sizes} could be any of {names}; give a dict by name")
        sizes = {first.name: sizes}
    unknown = sizes.keys() - {size.name for size in known}
    if unknown:
        raise WarmupError(f"there is no open size {min(map(str, unknown))}; there are {names}")
    chosen = {size: sizes.get(size.name, size.example) for size in known}
    for size, value in chosen.items():
        if value < size.least or (size.most is not None and value > size.most):
            raise WarmupError(f"{size.name} must be {size.range} in this result, not {value}")
    return chosen
