"""Random tensors for measuring and comparing.

Invariant: a generator's numbers are the same, and on its device, whatever element type and device PyTorch takes by
default.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Generator, Tensor


def uniform(shape: Sequence[int], generator: Generator, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return uniform numbers from 0 to 1."""
    return torch.rand(tuple(shape), generator=generator, dtype=dtype, device=generator.device)


def normal(shape: Sequence[int], generator: Generator) -> Tensor:
    """Return normally distributed numbers in double precision."""
    return torch.randn(tuple(shape), generator=generator, dtype=torch.float64, device=generator.device)


def integers(below: int, shape: Sequence[int], generator: Generator) -> Tensor:
    """Return random integers from 0 to ``below`` - 1."""
    return torch.randint(below, tuple(shape), generator=generator, device=generator.device)


def permutation(count: int, generator: Generator) -> Tensor:
    """Return a random permutation of the integers below a number."""
    return torch.randperm(count, generator=generator, device=generator.device)
