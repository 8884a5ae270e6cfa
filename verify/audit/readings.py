"""Operators whose readings differ: what an element is divided by, or is taken from it, may be read off by a rounding.

A kernel rounds the sums inside an operator, as a normalization its mean, so that not even a single element minus its
mean is zero. Put off alike, operand and mean do not show that.

Invariant: where both readings are the same the operator is itself, by its own definition.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from taso_py.ir.types import TensorType
from taso_py.ir.unify import STRICT, Unifier
from taso_py.ops.base import VARIADIC, TensorOperator
from taso_py.ops.evaluate import Domain, Floats, evaluate
from taso_py.ops.scalar import Index, Operand, Scalar


def read_twice(
    op: TensorOperator, here: Sequence[Floats], elsewhere: Sequence[Floats], types: Sequence[TensorType]
) -> Floats:
    """Return the output of an operator in double precision.

    Args:
        op: the operator, without symbols in its attributes.
        here: its operands, as they are read at the very place of each output element.
        elsewhere: its operands, as they are read at any other place that the definition speaks of.
        types: their types.
    """
    return evaluate(_ReadTwice(op), [*here, *elsewhere], [*types, *types], Domain.REAL)


@dataclass(frozen=True)
class _ReadTwice(TensorOperator):
    """An operator that is given its operands twice."""

    name = "read_twice"
    arity = (0, VARIADIC)
    op: TensorOperator

    def infer(self, inputs: Sequence[TensorType], unifier: Unifier = STRICT) -> tuple[TensorType, ...]:
        return self.op.infer(inputs[: len(inputs) // 2], unifier)

    def define(self, operands: Sequence[Operand], out: Index) -> Scalar:
        half = len(operands) // 2
        pairs = zip(operands[:half], operands[half:], strict=True)
        return self.op.define([_chosen(here, elsewhere, out) for here, elsewhere in pairs], out)


def _chosen(here: Operand, elsewhere: Operand, out: Index) -> Operand:
    """Return an operand that is read from one of two, by the place."""
    return Operand(here.type, lambda index: (here if index == out else elsewhere)(*index))
