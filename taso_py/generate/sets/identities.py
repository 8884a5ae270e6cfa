"""The vocabulary ``identities``: quotients and signs that are collected, bounds that others imply.

``algebra`` and ``scalars`` have those of one number. Rules lead to fewer operators, or from quotients to products.
"""

from __future__ import annotations

from collections.abc import Iterator

from taso_py.generate.sets.common import family, number, yields
from taso_py.generate.vocabulary import CONSTANT, DATA, FUSED, Family, Variables
from taso_py.ops.base import TensorOperator
from taso_py.ops.choice import Equal, Greater, GreaterEqual, LogicalNot, LogicalOr
from taso_py.ops.elementwise import (
    Abs,
    Add,
    Cos,
    Div,
    Exp,
    Hardtanh,
    Maximum,
    Minimum,
    Mul,
    Relu,
    Sigmoid,
    Sub,
)
from taso_py.ops.evaluate import Domain

_OTHER, _THIRD = "yz"
"""Roles of the second and the third of several variables that are data."""
_MINUS_ONE, _ONE = "n", "u"
"""Roles of numbers."""
_FIRST, _SECOND = "ab"
"""Roles of values on the way to what is replaced."""
_BEFORE, _AFTER = "lr"
"""Roles of values on the way to what replaces it."""

_X, _Y, _Z = (Variables(role, (4,), role, 1) for role in (DATA, _OTHER, _THIRD))
_FACTOR = Variables("c", (), CONSTANT, 2)
_UNIT = number(_ONE, 1.0)
_MINUS = number(_MINUS_ONE, -1.0)


def _quotients() -> Iterator[Family]:
    """Yield the families of quotients of quotients, of reciprocals, by exponentials, and of common factors."""
    yield family(
        "quotients of quotients",
        (_X, _Y, _Z),
        (
            *yields(_FIRST, [DATA + _OTHER], Div()),
            *yields("o", [_FIRST + _THIRD, _THIRD + _FIRST], Div()),
            *yields(_BEFORE, [_OTHER + _THIRD], Mul()),
            *yields(FUSED, [DATA + _BEFORE], Div()),
            *yields(_AFTER, [_THIRD + _OTHER], Mul()),
            *yields(FUSED, [_AFTER + DATA], Div()),
        ),
        2,
        domain=Domain.REAL,
    )
    yield Family(
        "reciprocals of reciprocals",
        (_X, _UNIT),
        yields(DATA, [_ONE + DATA], Div()),
        operators=2,
        shrinks=True,
        domain=Domain.REAL,
    )
    yield family(
        "quotients by exponentials",
        (_X, _Y, _UNIT, _MINUS),
        (
            *yields(_FIRST, [_OTHER], Exp()),
            *yields("o", [DATA + _FIRST, _ONE + _FIRST], Div()),
            *yields(_BEFORE, [_OTHER + _MINUS_ONE], Mul()),
            *yields(_AFTER, [_BEFORE], Exp()),
            *yields(FUSED, [DATA + _AFTER], Mul()),
            *yields(FUSED, [_BEFORE], Exp()),
        ),
        3,
        domain=Domain.REAL,
    )
    yield _distributed("differences with a common factor", Mul(), Sub(), domain=Domain.REAL)


def _distributed(name: str, shared: TensorOperator, *ops: TensorOperator, domain: Domain = Domain.EXACT) -> Family:
    """Return the family of operators on two values that share an operand, which is applied to their result instead."""
    return family(
        name,
        (_X, _Y, _Z),
        (
            *yields(_FIRST, [DATA + _THIRD], shared),
            *yields(_SECOND, [_OTHER + _THIRD], shared),
            *yields("o", [_FIRST + _SECOND], *ops),
            *yields(_AFTER, [DATA + _OTHER], *ops),
            *yields(FUSED, [_AFTER + _THIRD], shared),
        ),
        3,
        domain=domain,
    )


def _numbers() -> Family:
    """Return the family of numbers that are added, multiplied or divided by one after the other."""
    return family(
        "numbers that follow each other",
        (_X, _FACTOR),
        (
            *yields(_FIRST, [DATA + CONSTANT], Add()),
            *yields(_SECOND, [DATA + CONSTANT], Mul()),
            *yields("o", [_FIRST + CONSTANT], Sub()),
            *yields("o", [_SECOND + CONSTANT], Div()),
            *yields(_BEFORE, [CONSTANT + DATA], Div()),
            *yields("o", [CONSTANT + _BEFORE], Div()),
            *yields(_AFTER, [CONSTANT * 2], Sub(), Div()),
            *yields(FUSED, [DATA + _AFTER], Add(), Mul()),
        ),
        2,
        domain=Domain.REAL,
    )


def _signs() -> Iterator[Family]:
    """Yield the families of negated values: in arithmetic, in functions, as the greater of two, compared."""
    negations = (*yields(_FIRST, [DATA + _MINUS_ONE], Mul()), *yields(_SECOND, [_OTHER + _MINUS_ONE], Mul()))
    yield family(
        "arithmetic of negations",
        (_X, _Y, _MINUS),
        (
            *negations,
            *yields("o", [_FIRST + _SECOND], Mul(), Div()),
            *yields(_AFTER, [DATA + _OTHER], Sub()),
            *yields("o", [_AFTER + _MINUS_ONE], Mul()),
            *yields(FUSED, [DATA + _OTHER], Mul(), Div()),
            *yields(FUSED, [_OTHER + DATA], Sub()),
        ),
        3,
        domain=Domain.REAL,
    )
    even = (Cos(), Abs())
    yield family(
        "even functions of negations",
        (_X, _MINUS),
        (*negations[:1], *yields("o", [_FIRST], *even), *yields(FUSED, [DATA], *even)),
        2,
        domain=Domain.REAL,
    )
    yield family(
        "the greater of negations",
        (_X, _Y, _MINUS),
        (
            *negations,
            *yields(_BEFORE, [_FIRST + _SECOND], Maximum(), Minimum()),
            *yields("o", [_BEFORE + _MINUS_ONE], Mul()),
            *yields(FUSED, [DATA + _OTHER], Maximum(), Minimum()),
        ),
        4,
    )
    yield family(
        "comparisons of negations",
        (_X, _Y, _MINUS),
        (
            *negations,
            *yields("o", [_FIRST + _SECOND], Greater(), GreaterEqual()),
            *yields(FUSED, [_OTHER + DATA], Greater(), GreaterEqual()),
        ),
        3,
    )


_NONNEGATIVE = (Abs(), Exp(), Sigmoid())


def _bounds() -> Iterator[Family]:
    """Yield the families of values that are bounded twice, and of those that are never negative."""
    yield Family(
        "the greater of the greater",
        (Variables("x", (4,), DATA, 2),),
        yields(DATA, [DATA * 2], Maximum(), Minimum()),
        operators=2,
        shrinks=True,
    )
    yield Family(
        "bounds of bounds",
        (_X,),
        yields(DATA, [DATA], Hardtanh()),
        operators=2,
        shrinks=True,
    )
    yield family(
        "what is never negative",
        (_X,),
        (
            *yields(_FIRST, [DATA], *_NONNEGATIVE),
            *yields(_FIRST, [DATA * 2], Mul()),
            *yields(_SECOND, [DATA], Relu()),
            *yields("o", [_FIRST], Abs(), Relu()),
            *yields("o", [_SECOND], Abs()),
            *yields(FUSED, [DATA], *_NONNEGATIVE, Relu()),
            *yields(FUSED, [DATA * 2], Mul()),
        ),
        2,
        repeats=True,
        domain=Domain.REAL,
    )
    yield _distributed("the greater of sums", Add(), Maximum(), Minimum())
    yield Family(
        "comparisons and their opposites",
        (Variables("x", (30,), DATA, 2),),  # so many that some are equal
        (
            *yields(_FIRST, [DATA * 2], Equal()),
            *yields(_SECOND, [DATA * 2], Greater()),
            *yields(_AFTER, [DATA * 2], GreaterEqual()),
            *yields("o", [_SECOND, _AFTER], LogicalNot()),
            *yields("o", [_FIRST + _SECOND], LogicalOr()),
        ),
        operators=3,
        shrinks=True,
    )


IDENTITIES = (*_quotients(), _numbers(), *_signs(), *_bounds())
