"""Calls of a result of open sizes at sizes that are to come, so that no user's call is the first at a size.

At a size that is new to a process, oneDNN and MKL prepare their kernels, a compiler may compile, and memory is taken
from the system; all of that is kept while the process runs. Results have nothing of their own to prepare by size.

Invariant: all sizes are checked before anything is called, and calls leave no trace in the state of the module or in
the random generators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from typing import Any, TypeAlias

import torch
from torch import nn

from taso_py.backend.contract import random_state_kept
from taso_py.checking.preserve import preserve_buffers
from taso_py.checking.resize import OpenInputs
from taso_py.ir.errors import TasoError
from taso_py.ir.size import Open

Sizes: TypeAlias = int | Mapping[str, int]
"""A value for the one open size, or values for several by name, as the report names them; others are the example's."""


class WarmupError(TasoError):
    """Sizes at which a result cannot be warmed up."""


def warm(runner: Callable[..., Any], inputs: OpenInputs, sizes: Iterable[Sizes]) -> None:
    """Calls a result once at each of some sizes.

    Args:
        runner: the result.
        inputs: what it is called with.
        sizes: at which.

    Raises:
        WarmupError: the result does not have these sizes.
    """
    chosen = [_chosen(inputs.open, one) for one in sizes]
    if inputs.has_state and not isinstance(runner, nn.Module):
        raise WarmupError("this result writes to buffers that cannot be put back; call it before it is in use instead")
    state = preserve_buffers([runner]) if inputs.has_state and isinstance(runner, nn.Module) else nullcontext()
    with torch.no_grad(), random_state_kept(), state:
        for one in chosen:
            args, kwargs = inputs.at(one, seed=0)
            runner(*args, **kwargs)


def _chosen(known: tuple[Open, ...], sizes: Sizes) -> dict[Open, int]:
    """A value for each open size."""
    if not known:
        raise WarmupError("this result has no open sizes, so that there is nothing to warm up; export it with some")
    first, *more = known
    names = ", ".join(f"{size.name} ({size.range})" for size in known)
    if isinstance(sizes, int):
        if more:
            raise WarmupError(f"{sizes} may be any of {names}; give a dict by name")
        sizes = {first.name: sizes}
    unknown = sizes.keys() - {size.name for size in known}
    if unknown:
        raise WarmupError(f"there is no open size {min(unknown)}; there are {names}")
    chosen = {size: sizes.get(size.name, size.example) for size in known}
    for size, value in chosen.items():
        if value < size.least or (size.most is not None and value > size.most):
            raise WarmupError(f"{size.name} may be {size.range} in this result, not {value}")
    return chosen
