"""Checks that a built module makes of its arguments; calls of these functions are in its graph.

Invariant: sizes are written into a graph, so with others broadcasting could make something of it without an error;
after these checks it cannot.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from taso_py.backend.program import Literal
from taso_py.ir.errors import TasoError


class ArgumentError(TasoError):
    """An argument other than the module was built for."""


def check_tensor(value: Tensor, name: str, shape: Sequence[int | None], dtype: torch.dtype) -> None:
    """Raises unless the argument is a tensor of that shape and type; None stands for a size that is open."""
    fits = value.dim() == len(shape) and all(w is None or w == s for w, s in zip(shape, value.shape, strict=True))
    if not fits or value.dtype != dtype:
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise ArgumentError(
            f"this module was built for {name} of type {dtype} and shape [{wanted}], not {value.dtype} "
            f"{list(value.shape)}; build it again with example inputs like these"
        )


def check_range(size: int, name: str, least: int, most: int | None) -> None:
    """Raises unless an open size is in the range that the module was exported for."""
    if size < least or (most is not None and size > most):
        limit = f"{least} or more" if most is None else f"{least} to {most}"
        raise ArgumentError(f"dimension {name} may be {limit} in this module, not {size}")


def check_equal(size: int, wanted: int, name: str, formula: str) -> None:
    """Raises unless a dimension is what other dimensions say that it must be."""
    if size != wanted:
        raise ArgumentError(f"dimension {name} must be {wanted} ({formula}) beside the other arguments, not {size}")


def check_fixed(value: object, expected: Literal) -> None:
    """Raises unless the argument is the value that the module was built for."""
    if type(value) is not type(expected) or value != expected:
        raise ArgumentError(
            f"this module was built for the argument {expected!r}, not {value!r}; build it again with that"
        )
