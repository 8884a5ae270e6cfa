"""Elements chosen by integers: rows, as in an embedding and in indexing with one tensor; and elements of each row.

Invariant: every output element is an element of the table, whatever the integers are; which one depends on the integers
only. An integer that stands for no place is an error of the model: so a rule keeps which integers are looked up among
how many places.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from taso_py.ir.errors import ShapeError
from taso_py.ir.node import Value
from taso_py.ir.size import Dim
from taso_py.ir.traits import Rounding
from taso_py.ir.types import Group, TensorType
from taso_py.ir.unify import STRICT, Unifier
from taso_py.ops.base import TensorOperator, plain_axis, require
from taso_py.ops.movement import Concat, Contiguous, Expand, Flip, Permute, Reshape
from taso_py.ops.scalar import Index, Operand, Scalar, looked_up

_KEEPS_ALL = (Concat, Contiguous, Expand, Flip, Permute, Reshape)
"""Movements whose results have all elements of their operands, and no others."""


@dataclass(frozen=True)
class Take(TensorOperator):
    """The rows along an axis of a table that integers choose: ``out[.., *i, ..] = table[.., index[*i], ..]``.

    The operands are the table and the integers, whose axes take the place of the table's.
    """

    name = "take"
    arity = (2, 2)
    is_movement = True
    reads_index = True
    rounding = Rounding.NEVER
    axis: int
    wraps: Dim = 0
    """1 if negative integers count from the end, as in PyTorch's indexing; 0 if they are errors, as in an embedding."""

    def __post_init__(self) -> None:
        if isinstance(self.wraps, int) and self.wraps not in (0, 1):
            raise ValueError(f"wraps is 0 or 1, not {self.wraps}")

    def infer(self, inputs: Sequence[TensorType], unifier: Unifier = STRICT) -> tuple[TensorType, ...]:
        require(len(inputs) == 2, f"take takes a table and integers, not {len(inputs)} operands")
        table, index = inputs
        require(index.dtype.is_index, f"take chooses by integers of type {index}")
        plain_axis(table, self.axis)
        at = table.rank + self.axis
        shape = (*table.shape[:at], *index.shape, *table.shape[at + 1 :])
        if any(isinstance(axis, Group) for axis in shape[1:]):
            raise ShapeError(f"take of {table} by {index} has an axis group behind another axis")
        return (TensorType(table.dtype, shape),)

    def define(self, operands: Sequence[Operand], out: Index) -> Scalar:
        table, index = operands
        at = len(table.shape) + self.axis
        end = at + len(index.shape)
        extent = plain_axis(table.type, self.axis)
        return looked_up(index(*out[at:end]), extent, self.wraps, lambda row: table(*out[:at], row, *out[end:]))

    def legal(self) -> Iterator[Dim]:
        yield from (self.wraps, 1 - self.wraps)


@dataclass(frozen=True)
class Gather(TensorOperator):
    """The elements of each row that integers choose: ``out[*i, k, *j] = x[*i, index[*i, k, *j], *j]`` along an axis.

    The operands are the elements and the integers, of the same sizes along the other axes; no integer is negative.
    """

    name = "gather"
    arity = (2, 2)
    is_movement = True
    reads_index = True
    rounding = Rounding.NEVER
    wraps: ClassVar[Dim] = 0
    """As that of :class:`Take`."""
    axis: int

    def infer(self, inputs: Sequence[TensorType], unifier: Unifier = STRICT) -> tuple[TensorType, ...]:
        require(len(inputs) == 2, f"gather takes elements and integers, not {len(inputs)} operands")
        x, index = inputs
        require(index.dtype.is_index, f"gather chooses by integers of type {index}")
        require(x.rank == index.rank, f"gather of {x} by {index}, which differ in rank")
        plain_axis(x, self.axis)
        plain_axis(index, self.axis)
        for axis in range(-x.rank, 0):
            if axis != self.axis:
                unifier.equal(x.shape[axis], index.shape[axis], "gather")
        return (TensorType(x.dtype, index.shape),)

    def define(self, operands: Sequence[Operand], out: Index) -> Scalar:
        x, index = operands
        at = len(out) + self.axis
        extent = plain_axis(x.type, self.axis)
        return looked_up(index(*out), extent, self.wraps, lambda place: x(*out[:at], place, *out[at + 1 :]))


def origins(index: Value) -> frozenset[Value]:
    """Return values that together have the elements of a tensor of integers and no others, before it was rearranged."""
    if isinstance(index.node.op, _KEEPS_ALL):
        return frozenset[Value]().union(*map(origins, index.node.inputs))
    return frozenset({index})
