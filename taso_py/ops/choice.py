"""Operators of truth values: comparisons, logic, and the choice between two values.

A truth value is 1 or 0 in a definition. There is no operator for ``<`` and ``<=``: these are ``>`` and ``>=`` with the
operands exchanged, also of NaN and infinities. But ``>=`` is an operator of its own, as the negation of ``<`` is true
of NaN.

Invariant: the output element at an index depends on the operands' elements at the same (broadcast) index only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from taso_py.ir.traits import Rounding
from taso_py.ir.types import DType, TensorType
from taso_py.ir.unify import STRICT, Unifier
from taso_py.ops.base import TensorOperator, broadcast, broadcast_read, check_operands, common_shape, require
from taso_py.ops.scalar import Choose, Compare, Index, Operand, Relation, Scalar, number


@dataclass(frozen=True)
class _Pointwise(TensorOperator):
    is_elementwise = True
    keeps_format = True
    rounding = Rounding.NEVER

    def define(self, operands: Sequence[Operand], out: Index) -> Scalar:
        shape = common_shape([operand.shape for operand in operands], STRICT, self.name)
        return self.scalar(*(broadcast_read(operand, shape, out) for operand in operands))

    def scalar(self, *operands: Scalar) -> Scalar:
        """Return the value at an element."""
        raise NotImplementedError


@dataclass(frozen=True)
class Where(_Pointwise):
    """``a`` where the condition is true, ``b`` elsewhere; operands are the condition, ``a`` and ``b``."""

    name = "where"
    arity = (3, 3)
    reads_truth = True

    def infer(self, inputs: Sequence[TensorType], unifier: Unifier = STRICT) -> tuple[TensorType, ...]:
        require(len(inputs) == 3, f"where takes a condition and two values, not {len(inputs)} operands")
        condition, chosen, other = inputs
        require(condition.dtype is DType.BOOL, f"the condition of where is of type {condition}")
        require(chosen.dtype is other.dtype and not chosen.dtype.is_complex, "where chooses between real values")
        return (TensorType(chosen.dtype, common_shape([type_.shape for type_ in inputs], unifier, self.name)),)

    def scalar(self, *operands: Scalar) -> Scalar:
        return Choose(*operands)


@dataclass(frozen=True)
class ComparisonOperator(_Pointwise):
    """An operator that compares two real numbers; the result is a truth value."""

    arity = (2, 2)
    relation: ClassVar[Relation]

    def infer(self, inputs: Sequence[TensorType], unifier: Unifier = STRICT) -> tuple[TensorType, ...]:
        dtype = check_operands(self, inputs)
        require(dtype is not DType.BOOL and not dtype.is_complex, f"{self.name} compares real numbers")
        return (TensorType(DType.BOOL, broadcast(inputs[0].shape, inputs[1].shape, unifier, self.name)),)

    def scalar(self, *operands: Scalar) -> Scalar:
        return Compare(type(self).relation, *operands)


@dataclass(frozen=True)
class Greater(ComparisonOperator):
    """Whether ``a > b``; false where either is NaN."""

    name = "gt"
    relation = Relation.GREATER


@dataclass(frozen=True)
class GreaterEqual(ComparisonOperator):
    """Whether ``a >= b``; false where either is NaN."""

    name = "ge"
    relation = Relation.GREATER_EQUAL


@dataclass(frozen=True)
class Equal(ComparisonOperator):
    """Whether ``a == b``; false where either is NaN."""

    name = "eq"
    commutative = True
    relation = Relation.EQUAL


@dataclass(frozen=True)
class NotEqual(ComparisonOperator):
    """Whether ``a != b``; true where either is NaN."""

    name = "ne"
    commutative = True
    relation = Relation.EQUAL

    def scalar(self, *operands: Scalar) -> Scalar:
        return _negated(super().scalar(*operands))


def _negated(truth: Scalar) -> Scalar:
    return Choose(truth, number(0), number(1))


@dataclass(frozen=True)
class _Logical(_Pointwise):
    arity = (2, 2)
    reads_truth = True

    def infer(self, inputs: Sequence[TensorType], unifier: Unifier = STRICT) -> tuple[TensorType, ...]:
        require(check_operands(self, inputs) is DType.BOOL, f"{self.name} is defined on truth values")
        return (TensorType(DType.BOOL, common_shape([type_.shape for type_ in inputs], unifier, self.name)),)


@dataclass(frozen=True)
class LogicalAnd(_Logical):
    """Whether both are true."""

    name = "logical_and"
    commutative = True

    def scalar(self, *operands: Scalar) -> Scalar:
        one, other = operands
        return Choose(one, other, number(0))


@dataclass(frozen=True)
class LogicalOr(_Logical):
    """Whether one is true, or both are."""

    name = "logical_or"
    commutative = True

    def scalar(self, *operands: Scalar) -> Scalar:
        one, other = operands
        return Choose(one, number(1), other)


@dataclass(frozen=True)
class LogicalNot(_Logical):
    """Whether it is false."""

    name = "logical_not"
    arity = (1, 1)

    def scalar(self, *operands: Scalar) -> Scalar:
        return _negated(*operands)
