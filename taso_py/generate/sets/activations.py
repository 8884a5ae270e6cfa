"""The vocabulary ``activations``: activations that are written out with simpler operators, and their operators.

These are the hard and smooth gates of mobile networks, and rectifiers, limits and magnitudes by a maximum or minimum,
or by a choice.
"""

from __future__ import annotations

from taso_py.generate.sets.common import number
from taso_py.generate.vocabulary import DATA, FUSED, Family, Production, Variables
from taso_py.ops.base import TensorOperator
from taso_py.ops.choice import Greater, GreaterEqual, Where
from taso_py.ops.elementwise import (
    Abs,
    Add,
    Div,
    Elu,
    Exp,
    Hardsigmoid,
    Hardswish,
    Hardtanh,
    LeakyRelu,
    Log,
    Log1p,
    Maximum,
    Minimum,
    Mish,
    Mul,
    Relu,
    Softplus,
    Sub,
    Tanh,
)
from taso_py.ops.evaluate import Domain

_X = Variables("x", (4,), DATA, 1)
_THREE, _SIX = "t", "s"
_SHIFTED, _CLAMPED, _GATE, _SCALED, _GATED = "abehk"

_ZERO, _ONE, _MINUS_ONE, _LEAST, _MOST, _SLOPE = "zumlgc"
"""Roles of numbers."""
_POWER, _NEGATED, _RAISED, _LOWERED, _SLOPED, _MAGNITUDE = "pnrwva"
_SHIFTED_POWER, _LOGARITHM = "qi"
_IS_ABOVE, _IS_BELOW, _OTHER = "><y"


def _recognized(
    name: str,
    variables: tuple[Variables, ...],
    op: TensorOperator,
    *written: Production,
    operators: int = 4,
    domain: Domain = Domain.EXACT,
    other: str = "",
) -> Family:
    """Return the family of the ways to write an operator of ``x``, and perhaps of a number, with others."""
    productions = (*written, Production(op, DATA + other, FUSED))
    return Family(name, (_X, *variables), productions, operators=operators, every=True, domain=domain)


def _limits(least: float, most: float) -> Family:
    """Return the family of the ways to write a hardtanh by a maximum and a minimum."""
    return _recognized(
        f"limits {least:g} and {most:g}",
        (number(_LEAST, least), number(_MOST, most)),
        Hardtanh(least, most),
        Production(Maximum(), DATA + _LEAST, _RAISED),
        Production(Minimum(), _RAISED + _MOST, "o"),
        Production(Minimum(), DATA + _MOST, _LOWERED),
        Production(Maximum(), _LOWERED + _LEAST, "o"),
        *((Production(Relu(), DATA, _RAISED), Production(Relu(), _LOWERED, "o")) if least == 0 else ()),
    )


def _slope(slope: float) -> Family:
    """Return the family of a leaky relu by a maximum, which is true of slopes up to one only."""
    return _recognized(
        f"slope {slope:g}",
        (number(_SLOPE, slope),),
        LeakyRelu(slope),
        Production(Mul(), DATA + _SLOPE, _SLOPED),
        Production(Maximum(), DATA + _SLOPED, "o"),
        domain=Domain.REAL,
    )


def _compared(left: str, right: str, truth: str) -> tuple[Production, ...]:
    """Return the comparisons of two values, the one with the other and the other way round."""
    ops, roles = (Greater(), GreaterEqual()), (left + right, right + left)
    return tuple(Production(op, operands, truth) for op in ops for operands in roles)


def _chosen(truth: str, one: str, other: str, result: str = "o") -> tuple[Production, ...]:
    """Return the choices between two values."""
    return tuple(Production(Where(), truth + values, result) for values in (one + other, other + one))


def _limits_by_comparisons(least: float, most: float) -> Family:
    """Return the family of the ways to write a hardtanh by a maximum or minimum, and a choice for the other limit."""
    return _recognized(
        f"limits {least:g} and {most:g} by comparisons",
        (number(_LEAST, least), number(_MOST, most)),
        Hardtanh(least, most),
        Production(Maximum(), DATA + _LEAST, _RAISED),
        *((Production(Relu(), DATA, _RAISED),) if least == 0 else ()),
        Production(Minimum(), DATA + _MOST, _LOWERED),
        *_compared(DATA, _LEAST, _IS_BELOW),
        *_compared(DATA, _MOST, _IS_ABOVE),
        *_chosen(_IS_BELOW, _LEAST, _LOWERED),
        *_chosen(_IS_ABOVE, _MOST, _RAISED),
    )


BY_COMPARISON = (
    _recognized(
        "rectifiers by comparison",
        (number(_ZERO, 0.0),),
        Relu(),
        *_compared(DATA, _ZERO, _IS_ABOVE),
        *_chosen(_IS_ABOVE, DATA, _ZERO),
    ),
    *(
        _recognized(
            f"{op.name} with a number by comparison",
            (number(_LEAST, 2.0),),
            op,
            *_compared(DATA, _LEAST, _IS_ABOVE),
            *_chosen(_IS_ABOVE, DATA, _LEAST),
            other=_LEAST,
        )
        for op in (Maximum(), Minimum())
    ),
    *(
        Family(
            f"{op.name} by comparison",
            (_X, Variables("y", (4,), _OTHER, 1)),
            (
                *_compared(DATA, _OTHER, _IS_ABOVE),
                *_chosen(_IS_ABOVE, DATA, _OTHER),
                Production(op, DATA + _OTHER, FUSED),
            ),
            operators=2,
            every=True,
        )
        for op in (Maximum(), Minimum())
    ),
    *(_limits_by_comparisons(least, most) for least, most in ((0.0, 6.0), (-1.0, 1.0), (0.0, 1.0))),
    _recognized(
        "slopes by comparison",
        (number(_ZERO, 0.0), number(_SLOPE, 3.0)),
        LeakyRelu(3.0),
        Production(Mul(), DATA + _SLOPE, _SLOPED),
        *_compared(DATA, _ZERO, _IS_ABOVE),
        *_chosen(_IS_ABOVE, DATA, _SLOPED),
    ),
    _recognized(
        "magnitudes by comparison",
        (number(_ZERO, 0.0), number(_MINUS_ONE, -1.0)),
        Abs(),
        Production(Mul(), DATA + _MINUS_ONE, _NEGATED),
        *_compared(DATA, _ZERO, _IS_ABOVE),
        *_chosen(_IS_ABOVE, DATA, _NEGATED),
    ),
    _recognized(
        "elu by comparison",
        (number(_ZERO, 0.0), number(_ONE, 1.0)),
        Elu(),
        Production(Exp(), DATA, _POWER),
        Production(Sub(), _POWER + _ONE, _SHIFTED_POWER),
        *_compared(DATA, _ZERO, _IS_ABOVE),
        *_chosen(_IS_ABOVE, DATA, _SHIFTED_POWER),
        domain=Domain.REAL,
    ),
)
"""Activations that choose by a comparison."""

ACTIVATIONS = (
    *BY_COMPARISON,
    Family(
        "hard gates",
        (_X, Variables("t", (), _THREE, 1, number=3.0), Variables("s", (), _SIX, 1, number=6.0)),
        (
            Production(Add(), DATA + _THREE, _SHIFTED),
            Production(Hardtanh(0.0, 6.0), _SHIFTED, _CLAMPED),
            Production(Div(), _CLAMPED + _SIX, _GATE),
            Production(Hardsigmoid(), DATA, _GATE),
            Production(Div(), DATA + _SIX, _SCALED),
            Production(Mul(), DATA + _CLAMPED, _GATED),
            *(Production(Mul(), roles, "o") for roles in (DATA + _GATE, _SCALED + _CLAMPED)),
            Production(Div(), _GATED + _SIX, "o"),
            Production(Hardswish(), DATA, "o"),
        ),
        operators=4,
        every=True,
        shrinks=True,
    ),
    Family(
        "smooth gates",
        (_X,),
        (
            Production(Softplus(), DATA, _SCALED),
            Production(Tanh(), _SCALED, _GATE),
            Production(Mul(), DATA + _GATE, "o"),
            Production(Mish(), DATA, "o"),
        ),
        operators=3,
        every=True,
        shrinks=True,
    ),
    _recognized(
        "softplus",
        (number(_ONE, 1.0),),
        Softplus(),
        Production(Exp(), DATA, _POWER),
        Production(Add(), _POWER + _ONE, _SHIFTED_POWER),
        Production(Log(), _SHIFTED_POWER, "o"),
        Production(Log1p(), _POWER, "o"),
    ),
    _recognized(
        "softplus of the magnitude",
        (number(_ONE, 1.0), number(_MINUS_ONE, -1.0)),
        Softplus(),
        Production(Relu(), DATA, _RAISED),
        Production(Abs(), DATA, _MAGNITUDE),
        Production(Mul(), _MAGNITUDE + _MINUS_ONE, _NEGATED),
        Production(Exp(), _NEGATED, _POWER),
        Production(Add(), _POWER + _ONE, _SHIFTED_POWER),
        Production(Log(), _SHIFTED_POWER, _LOGARITHM),
        Production(Log1p(), _POWER, _LOGARITHM),
        Production(Add(), _RAISED + _LOGARITHM, "o"),
        operators=7,
        domain=Domain.REAL,
    ),
    _recognized("rectifiers", (number(_ZERO, 0.0),), Relu(), Production(Maximum(), DATA + _ZERO, "o")),
    *(_limits(least, most) for least, most in ((0.0, 6.0), (-1.0, 1.0), (0.0, 1.0))),
    *(_slope(slope) for slope in (0.01, 0.1, 0.2)),
    _recognized(
        "slopes in two parts",
        (number(_ZERO, 0.0), number(_MINUS_ONE, -1.0), number(_SLOPE, 3.0)),
        LeakyRelu(3.0),
        Production(Relu(), DATA, _RAISED),
        Production(Minimum(), DATA + _ZERO, _LOWERED),
        Production(Mul(), _LOWERED + _SLOPE, _SLOPED),
        Production(Add(), _RAISED + _SLOPED, "o"),
        Production(Mul(), DATA + _MINUS_ONE, _NEGATED),
        Production(Relu(), _NEGATED, _MAGNITUDE),
        Production(Mul(), _MAGNITUDE + _SLOPE, _POWER),
        Production(Sub(), _RAISED + _POWER, "o"),
        operators=5,
    ),
    _recognized(
        "magnitudes",
        (number(_MINUS_ONE, -1.0),),
        Abs(),
        Production(Mul(), DATA + _MINUS_ONE, _NEGATED),
        Production(Maximum(), DATA + _NEGATED, "o"),
        Production(Minimum(), DATA + _NEGATED, _LOWERED),
        Production(Mul(), _LOWERED + _MINUS_ONE, "o"),
        Production(Relu(), DATA, _RAISED),
        Production(Relu(), _NEGATED, _RAISED),
        Production(Add(), _RAISED * 2, "o"),
    ),
)
