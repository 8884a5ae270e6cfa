"""One ATen call of an exported program, as the rows of the import dialect receive it.

Invariant: arguments are bound to the names of the operator's schema with defaults filled in; tensors among them are
values of the graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import Tensor
from torch._ops import OpOverload

from taso_py.ir.node import Value, make
from taso_py.ir.operator import Operator
from taso_py.ir.size import Dim
from taso_py.ir.types import TensorType


class NotInDialectError(Exception):
    """Raised inside a row if this form of the call has no equivalent operator; the call stays opaque. Never escapes."""


Result: TypeAlias = "Value | Sequence[Value | None] | Iterator[Value]"
"""Return type of a dialect row: a value, or one value per result of the call, None for a result that nothing reads; or
an iterator of values, the first of which is taken that is laid out like the result."""


@dataclass(frozen=True)
class AtenCall:
    """An ATen call with its arguments bound to the names of the schema."""

    overload: OpOverload
    arguments: Mapping[str, Any]
    """Arguments by schema name, defaults included; a tensor is represented by its :class:`Value`."""
    results: tuple[Tensor | None, ...]
    """Fake tensors with the type and layout of the results; None for a result that is not a tensor."""
    types: tuple[TensorType, ...]
    """The types of the results."""
    layouts: Mapping[Value, Tensor]
    """Fake tensors with the layout of every value imported so far."""
    read: frozenset[int]
    """Indices of the results that are read."""
    strides: Callable[[Value], tuple[Dim, ...] | None]
    """Returns the strides of a value, or None if they cannot be expressed."""

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    def value(self, name: str) -> Value:
        """Return an argument that must be a tensor."""
        found = self.arguments[name]
        if not isinstance(found, Value):
            raise NotInDialectError
        return found

    def values(self, name: str) -> list[Value]:
        """Return an argument that must be a list of tensors."""
        found = self.arguments[name]
        if not all(isinstance(item, Value) for item in found):
            raise NotInDialectError
        return list(found)

    def optional(self, *names: str) -> list[Value]:
        """Return trailing optional tensors; an absent one may be followed by absent ones only."""
        found = [self.arguments[name] for name in names]
        while found and found[-1] is None:
            found.pop()
        if not all(isinstance(item, Value) for item in found):
            raise NotInDialectError
        return found

    def require(self, condition: bool) -> None:
        """Leave the call opaque unless the condition holds."""
        if not condition:
            raise NotInDialectError

    def pair(self, name: str) -> tuple[int, int]:
        """Return an argument for two spatial axes, given as one number or two."""
        found = self.arguments[name]
        items = [found] if isinstance(found, int) else list(found)
        self.require(len(items) in (1, 2) and all(type(item) is int for item in items))
        return items[0], items[-1]

    def triple(self, name: str) -> tuple[int, int, int]:
        """Return an argument for three spatial axes, given as one number or three."""
        found = self.arguments[name]
        items = [found] * 3 if isinstance(found, int) else list(found)
        items = items * 3 if len(items) == 1 else items
        self.require(len(items) == 3 and all(type(item) is int for item in items))
        return items[0], items[1], items[2]

    def number(self, name: str) -> float:
        """Return an argument that must be a finite number that a float represents exactly."""
        found = self.arguments[name]
        self.require(type(found) in (int, float) and math.isfinite(found) and float(found) == found)
        return float(found)

    def axis(self, name: str, value: Value) -> int:
        """Return an axis argument, counted from the end."""
        return negative(self.arguments[name], value.type.rank)


def negative(axis: int, rank: int) -> int:
    """Return an axis counted from the end."""
    if rank == 0:
        raise NotInDialectError
    return axis if axis < 0 else axis - rank


def apply(op: Operator, *inputs: Value) -> Value:
    """Return the output of an operator that has exactly one."""
    return make(op, inputs).value
