"""One ATen call of an exported program, as the rows of the import dialect see it.

Invariant: arguments are bound to the names of the operator's schema with defaults filled in; tensors among them are
values of the graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import Tensor
from torch._ops import OpOverload

from taso_py.ir.node import Value, make
from taso_py.ir.operator import Operator
from taso_py.ir.size import Dim
from taso_py.ir.types import TensorType


class NotInDialectError(Exception):
    """Raised inside a row: this form of the call has no counterpart in the table, so it stays opaque. Never escapes."""


Result: TypeAlias = "Value | Sequence[Value | None]"
"""What a row returns: a value, or for a call with several results one per result; None where nobody reads it."""


@dataclass(frozen=True)
class Call:
    """A call with named arguments."""

    overload: OpOverload
    arguments: Mapping[str, Any]
    """By the names of the schema, defaults included; :class:`Value` stands for tensors."""
    results: tuple[Tensor | None, ...]
    """Fake tensors that show type and layout of the results; None for a result that is no tensor."""
    types: tuple[TensorType, ...]
    """The types of the results."""
    layouts: Mapping[Value, Tensor]
    """Fake tensors that show the layout of every value so far."""
    read: frozenset[int]
    """Which results are read."""
    strides: Callable[[Value], tuple[Dim, ...] | None]
    """The strides of a value, where there is a form for them."""

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    def value(self, name: str) -> Value:
        """An argument that must be a tensor."""
        found = self.arguments[name]
        if not isinstance(found, Value):
            raise NotInDialectError
        return found

    def values(self, name: str) -> list[Value]:
        """An argument that must be a list of tensors."""
        found = self.arguments[name]
        if not all(isinstance(item, Value) for item in found):
            raise NotInDialectError
        return list(found)

    def optional(self, *names: str) -> list[Value]:
        """Trailing tensor arguments; one that is absent may be followed by absent ones only."""
        found = [self.arguments[name] for name in names]
        while found and found[-1] is None:
            found.pop()
        if not all(isinstance(item, Value) for item in found):
            raise NotInDialectError
        return found

    def require(self, condition: bool) -> None:
        """Leaves the call opaque unless the condition holds."""
        if not condition:
            raise NotInDialectError

    def pair(self, name: str) -> tuple[int, int]:
        """An argument for two spatial axes, given once or twice."""
        found = self.arguments[name]
        items = [found] if isinstance(found, int) else list(found)
        self.require(len(items) in (1, 2) and all(type(item) is int for item in items))
        return items[0], items[-1]

    def number(self, name: str) -> float:
        """An argument that must be a number, neither infinite nor beyond what a float holds exactly."""
        found = self.arguments[name]
        self.require(type(found) in (int, float) and math.isfinite(found) and float(found) == found)
        return float(found)

    def axis(self, name: str, value: Value) -> int:
        """An axis argument, counted from the end."""
        return negative(self.arguments[name], value.type.rank)


def negative(axis: int, rank: int) -> int:
    """An axis counted from the end."""
    if rank == 0:
        raise NotInDialectError
    return axis if axis < 0 else axis - rank


def apply(op: Operator, *inputs: Value) -> Value:
    """The value of an operator with one output."""
    return make(op, inputs).value
