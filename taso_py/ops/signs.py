"""The sign of what a graph computes, as far as the operators' definitions show it.

Inputs have the signs that they are declared with. From there the definitions are followed as in interval arithmetic
(Moore 1966), with the three intervals of :class:`~taso_py.ir.sign.Sign`: an exponential is positive, a square is not
negative, nor is a sum of what is not.

Invariant: over the real numbers every element has the sign that is found, wherever it is defined.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from weakref import WeakKeyDictionary

from taso_py.ir.node import Node, Value
from taso_py.ir.operator import Constant, Input
from taso_py.ir.sign import Sign
from taso_py.ir.size import Dim, Poly, is_never_negative, least, symbol, symbols
from taso_py.ir.traits import Rounding
from taso_py.ir.types import DType
from taso_py.ops.base import TensorOperator
from taso_py.ops.elementwise import define_constant
from taso_py.ops.functions import CAST, IRRATIONALS, types_of_cast
from taso_py.ops.scalar import (
    Apply,
    At,
    Binder,
    Choose,
    Compare,
    Condition,
    Guard,
    Irrational,
    Number,
    Operand,
    Plus,
    Reduce,
    Scalar,
    SizeOf,
    Times,
)

_ALWAYS = {
    **dict.fromkeys(("exp", "sigmoid"), Sign.POSITIVE),
    **dict.fromkeys(("relu", "sqrt"), Sign.NONNEGATIVE),
}
"""The least sign of a function's values."""
_KEEPS = frozenset({"relu", "sqrt", "tanh", "erf"})
"""Functions whose values have the sign of their argument."""
_BITS: Mapping[DType, int] = {DType.U8: 8, DType.I8: 7, DType.I16: 15, DType.I32: 31, DType.I64: 63}
"""Bits for the integers of each type that are not negative."""
_MINUS_ONE = Number(Fraction(-1))
_known: WeakKeyDictionary[Node, Sign] = WeakKeyDictionary()


@dataclass(frozen=True)
class _Element(Scalar):
    """An element of a value."""

    value: Value
    index: tuple[Dim, ...]


class _Unknown(Exception):
    """A value whose sign has to be found first."""

    def __init__(self, node: Node) -> None:
        super().__init__()
        self.node = node


def sign_of(value: Value) -> Sign:
    """Return the sign of a value, as far as it is evident; only what may decide it is looked at."""
    waiting = [value.node]
    while waiting:
        try:
            _known[waiting[-1]] = _sign_of_node(waiting[-1])
        except _Unknown as missing:
            waiting.append(missing.node)
        else:
            waiting.pop()
    return _known[value.node]


def _sign_of_node(node: Node) -> Sign:
    """Return the sign of a node; raise if it depends on that of an operand which is not known yet."""
    match node.op:
        case Input(sign=sign):
            return sign
        case Constant(value):
            if isinstance(value, Poly) or value != value:
                return Sign.ANY
            return _sign(define_constant(node.op)) if math.isfinite(value) else _of_number(value)
        case TensorOperator(is_movement=True, fills=False):
            moved = [value for value in node.inputs if value.type.dtype is node.types[0].dtype]
            return min(map(_read, moved), default=Sign.ANY)
        case TensorOperator() if _may_wrap(node):
            return Sign.ANY
        case TensorOperator():
            operands = [_operand(value) for value in node.inputs]
            return _sign(node.op.define(operands, tuple(symbol(f"i{axis}") for axis in range(node.types[0].rank))))
        case _:
            return Sign.ANY


def _may_wrap(node: Node) -> bool:
    """Return whether a node computes integers that may wrap around, or complex numbers: squares may be negative."""
    dtype = node.types[0].dtype
    is_real = dtype.is_floating or dtype is DType.BOOL
    return not is_real and node.op.rounding is not Rounding.NEVER


def _operand(value: Value) -> Operand:
    return Operand(value.type, lambda index: _Element(value, index))


def _read(value: Value) -> Sign:
    if value.type.dtype is DType.BOOL:
        return Sign.NONNEGATIVE
    known = _known.get(value.node)
    if known is None:
        raise _Unknown(value.node)
    return known


def _sign(scalar: Scalar) -> Sign:
    match scalar:
        case _Element(value):
            return _read(value)
        case Number(value):
            return _of_number(value)
        case Irrational(name):
            return _of_number(IRRATIONALS[name])
        case SizeOf(value):
            # Symbols of rules may be numbers that are no sizes.
            return Sign.ANY if symbols(value) else _of_number(least(value) or 0)
        case Plus(left, right):
            one = _sign(left)
            other = _sign(right) if one else Sign.ANY
            return max(one, other) if other else Sign.ANY
        case Times():
            return _of_product(scalar)
        case Guard(_, body):
            return min(Sign.NONNEGATIVE, _sign(body))
        case Reduce():
            return _of_reduction(scalar)
        case Apply(function, argument):
            return _of_function(function, argument)
        case Compare():
            return Sign.NONNEGATIVE
        case Choose(_, chosen, other):
            one = _sign(chosen)
            return min(one, _sign(other)) if one else one
        case At(body=body):
            return _sign(body)
        case _:
            return Sign.ANY


def _of_number(value: float | Fraction) -> Sign:
    return Sign.POSITIVE if value > 0 else Sign.NONNEGATIVE if value == 0 else Sign.ANY


def _factors(scalar: Scalar) -> list[Scalar]:
    return [*_factors(scalar.left), *_factors(scalar.right)] if isinstance(scalar, Times) else [scalar]


def _of_product(product: Times) -> Sign:
    """Return the sign of a product, the least of its factors' signs; an even power is not negative."""
    pair = _pair(product.right) if product.left == _MINUS_ONE else None
    if pair and (opposite := [_opposite(scalar) for scalar in pair]) and None not in opposite:
        # The lesser of two is written as the opposite of the greater of their opposites.
        return min(_sign(scalar) for scalar in opposite if scalar is not None)
    found = Sign.POSITIVE
    for factor, count in Counter(_factors(product)).items():
        sign = _sign(factor)
        found = min(found, sign if count % 2 else max(sign, Sign.NONNEGATIVE))
        if not found:
            break
    return found


def _pair(scalar: Scalar) -> tuple[Scalar, Scalar] | None:
    """Return the two numbers of which an expression is the greater; None if it is something else."""
    match scalar:
        case Reduce(True, (Binder(name, 2),), (), Plus(Guard(first, one), Guard(second, other))) if first == (
            Condition(symbol(name), True),
        ) and second == (Condition(symbol(name) - 1, True),):
            return one, other
        case _:
            return None


def _opposite(scalar: Scalar) -> Scalar | None:
    """Return the number whose opposite an expression is written as, if any."""
    return scalar.right if isinstance(scalar, Times) and scalar.left == _MINUS_ONE else None


def _of_reduction(reduction: Reduce) -> Sign:
    """Return the sign of a sum or a maximum; that of no values is zero, or is not defined."""
    if pair := _pair(reduction):
        # The greater of two has the sign of either; that of a number and its opposite is not negative.
        least = Sign.NONNEGATIVE if _opposite(pair[1]) == pair[0] else Sign.ANY
        return max(least, *(_sign(scalar) for scalar in pair))
    sign = _sign(reduction.body)
    is_filled = not reduction.conditions and all(is_never_negative(b.extent - 1) for b in reduction.binders)
    return sign if reduction.is_max or is_filled else min(sign, Sign.NONNEGATIVE)


def _of_function(function: str, argument: Scalar) -> Sign:
    """Return the sign of a function's value."""
    least = _ALWAYS.get(function, Sign.ANY)
    if function in _KEEPS:
        return max(least, _sign(argument))
    if function in ("reciprocal", "rsqrt"):
        # One over minus zero, which counts as not negative, is minus infinity in floating point.
        return Sign.POSITIVE if _sign(argument) is Sign.POSITIVE else Sign.ANY
    if function.startswith(CAST):
        return _of_conversion(*types_of_cast(function), _sign(argument))
    return least


def _of_conversion(before: DType, after: DType, sign: Sign) -> Sign:
    """Return the sign of a number of a sign after a conversion between element types."""
    if after.is_floating or after is DType.BOOL:
        # What is small becomes zero in a type that does not hold it.
        return sign if after.holds(before) else min(sign, Sign.NONNEGATIVE)
    # Integers that do not fit wrap around, and what becomes of other numbers is the processor's choice.
    if before is DType.BOOL or _BITS.get(before, math.inf) <= _BITS.get(after, 0):
        return sign
    return Sign.NONNEGATIVE if after is DType.U8 else Sign.ANY
