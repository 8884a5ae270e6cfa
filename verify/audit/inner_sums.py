"""Sums inside operators: what a definition adds up before it applies a function to it, as attention its scores.

Such a sum may overflow in a kernel where operands and result are in range.

Invariant: the sums follow from the definition alone, so that no operator has to be listed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from taso_py.ir.types import TensorType
from taso_py.ir.unify import STRICT, Unifier
from taso_py.ops.base import VARIADIC, TensorOperator
from taso_py.ops.evaluate import Domain, Floats, definition, evaluate
from taso_py.ops.scalar import Apply, Guard, Index, Number, Operand, Plus, Read, Reduce, Scalar, Times, parts


def inner_sums(op: TensorOperator, arrays: Sequence[Floats], types: Sequence[TensorType]) -> list[Floats]:
    """Return the sums that an operator applies functions to, everything in absolute value, for each output element.

    Of sums that differ by what the function's values are added up over, it is the greatest.

    Args:
        op: the operator, without symbols in its attributes.
        arrays: its operands, in absolute value.
        types: their types.
    """
    return [evaluate(_InnerSum(op, place), arrays, types, Domain.REAL) for place in range(_count(op, tuple(types)))]


@dataclass(frozen=True)
class _InnerSum(TensorOperator):
    """One of the sums inside an operator, as an operator of its own."""

    name = "inner_sum"
    arity = (0, VARIADIC)
    op: TensorOperator
    place: int

    def infer(self, inputs: Sequence[TensorType], unifier: Unifier = STRICT) -> tuple[TensorType, ...]:
        return self.op.infer(inputs, unifier)

    def define(self, operands: Sequence[Operand], out: Index) -> Scalar:
        return list(_sums(self.op.define(operands, out), ()))[self.place]


@lru_cache(maxsize=1024)
def _count(op: TensorOperator, types: tuple[TensorType, ...]) -> int:
    out = [f"i{axis}" for axis in range(op.infer(types)[0].rank)]
    return len(list(_sums(definition(op, types, out), ())))


def _sums(scalar: Scalar, around: tuple[Reduce, ...]) -> Iterator[Scalar]:
    """Yield the sums that functions are applied to in an expression, and the arguments that they are part of.

    Args:
        scalar: the expression.
        around: the reductions that it is inside of, outermost first.
    """
    match scalar:
        case Apply(_, argument):
            found = list(_plain_sums(argument, around))
            if found and not _has_function(argument):
                yield _greatest(argument, around)
            yield from found
        case Reduce():
            around = (*around, scalar)
        case _:
            pass
    for part in parts(scalar):
        yield from _sums(part, around)


def _plain_sums(scalar: Scalar, around: tuple[Reduce, ...]) -> Iterator[Scalar]:
    """Yield the outermost sums of elements in an expression, without functions of elements in them."""
    is_sum = isinstance(scalar, Reduce) and not scalar.is_max
    if is_sum and _has_element(scalar) and not _has_function(scalar):
        yield _greatest(scalar, around)
    elif not isinstance(scalar, Apply):  # whose own argument is looked at in its turn
        inner = (*around, scalar) if isinstance(scalar, Reduce) else around
        for part in parts(scalar):
            yield from _plain_sums(part, inner)


def _greatest(scalar: Scalar, around: tuple[Reduce, ...]) -> Scalar:
    """Return the greatest absolute value of an expression over the bound indices around it."""
    scalar = _absolute(scalar)
    for reduce in reversed(around):
        scalar = replace(reduce, is_max=True, body=scalar)
    return scalar


def _absolute(scalar: Scalar) -> Scalar:
    """Return an expression with all numbers in it in absolute value; operands are given so."""
    match scalar:
        case Number(value):
            return Number(abs(value))
        case Plus(left, right):
            return Plus(_absolute(left), _absolute(right))
        case Times(left, right):
            return Times(_absolute(left), _absolute(right))
        case Guard(conditions, body):
            return Guard(conditions, _absolute(body))
        case Reduce(body=body):
            return replace(scalar, body=_absolute(body))
        case Apply(function, argument):
            return Apply(function, _absolute(argument))
        case _:
            return scalar


def _has_element(scalar: Scalar) -> bool:
    return isinstance(scalar, Read) or any(map(_has_element, parts(scalar)))


def _has_function(scalar: Scalar) -> bool:
    """Return whether an expression applies a function to elements."""
    return (isinstance(scalar, Apply) and _has_element(scalar)) or any(map(_has_function, parts(scalar)))
