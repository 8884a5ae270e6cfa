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


def check_tensor(value: Tensor, name: str, shape: Sequence[int], dtype: torch.dtype) -> None:
    """Raises unless the argument is a tensor of that shape and type."""
    if list(value.shape) != list(shape) or value.dtype != dtype:
        raise ArgumentError(
            f"this module was built for {name} of type {dtype} and shape {list(shape)}, not {value.dtype} "
            f"{list(value.shape)}; build it again with example inputs like these"
        )


def check_fixed(value: object, expected: Literal) -> None:
    """Raises unless the argument is the value that the module was built for."""
    if type(value) is not type(expected) or value != expected:
        raise ArgumentError(
            f"this module was built for the argument {expected!r}, not {value!r}; build it again with that"
        )
