"""The vocabulary ``signs``: laws of what is positive, or at least not negative.

Functions that undo each other, and functions that leave such elements as they are. A rule is applied where an analysis
shows the sign, or where an input is declared to have it. The sum of two logarithms is not made that of a product, nor
the product of roots a root: those are written because the product may be out of range.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from taso_py.generate.sets.common import family, number, yields
from taso_py.generate.vocabulary import DATA, FUSED, Family, Production, Variables
from taso_py.ir.sign import Sign
from taso_py.ops.elementwise import (
    Abs,
    Add,
    Celu,
    Div,
    Elu,
    Exp,
    LeakyRelu,
    Log,
    Log1p,
    Maximum,
    Mul,
    Relu,
    Rsqrt,
    Sqrt,
    Sub,
)
from taso_py.ops.evaluate import Domain

_OTHER = "y"
"""Role of a second variable."""
_X, _Y = (Variables(role, (4,), role, 1, sign=Sign.POSITIVE) for role in (DATA, _OTHER))
_Z = Variables("z", (4,), "z", 1)
_NONNEGATIVE = Variables(DATA, (4,), DATA, 1, sign=Sign.NONNEGATIVE)
_ZERO, _ONE = number("o", 0.0), number("u", 1.0)
_FACTORS = [number(role, value) for role, value in {"i": -1.0, "t": 2.0, "h": 0.5, "k": -0.5}.items()]
_ROOT, _LOG = "rl"
"""Roles of roots and logarithms."""
_MULTIPLES = [_LOG + factor.role for factor in _FACTORS]
_RESULT = "e"


def _shrinking(name: str, variables: Iterable[Variables], productions: Iterable[Production], operators: int) -> Family:
    """Return a family of rules to fewer operators."""
    return Family(name, tuple(variables), tuple(productions), operators, shrinks=True, domain=Domain.REAL, repeats=True)


def _roots_and_quotients() -> Iterator[Family]:
    yield _shrinking(
        "functions of what is not negative",
        (_NONNEGATIVE, _ZERO),
        (
            *yields(_RESULT, [DATA], Relu(), Abs(), LeakyRelu(0.25), Elu(), Celu(0.5)),
            *yields(_RESULT, [DATA + _ZERO.role], Maximum()),
        ),
        1,
    )
    yield _shrinking(
        "quotients and roots",
        (_X, _ONE),
        (
            *yields(_ROOT, [DATA], Sqrt(), Rsqrt()),
            *yields("q", [DATA * 2], Mul()),
            *yields(_RESULT, [DATA + _ROOT, _ROOT * 2], Mul(), Div()),
            *yields(_RESULT, [_ROOT + DATA, "q" + DATA, _ONE.role + DATA], Div()),
            *yields(_RESULT, ["q"], Sqrt(), Rsqrt()),
        ),
        3,
    )
    yield _shrinking(
        "factors that cancel",
        (_X, _Z),
        (
            *yields("p", [_Z.role + DATA], Mul()),
            *yields("q", [_Z.role + DATA], Div()),
            *yields(_RESULT, ["p" + DATA], Div()),
            *yields(_RESULT, ["q" + DATA], Mul()),
        ),
        2,
    )


def _of_any_sign() -> Iterator[Family]:
    """Yield the families of what holds wherever it is defined, which only positive samples show."""
    yield _shrinking(
        "a logarithm of one and a value",
        (_X, _ONE),
        (
            *yields("p", [DATA + _ONE.role], Add()),
            *yields(_RESULT, ["p"], Log()),
            *yields(_RESULT, [DATA], Log1p()),
        ),
        2,
    )
    yield family(
        "quotients by reciprocal roots",
        (_X, _Z),
        (
            *yields(_ROOT, [DATA], Rsqrt()),
            *yields(_RESULT, [_Z.role + _ROOT], Div()),
            *yields("f", [DATA], Sqrt()),
            *yields(FUSED, [_Z.role + "f"], Mul()),
        ),
        2,
        domain=Domain.REAL,
    )


def _logarithms() -> Iterator[Family]:
    yield _shrinking(
        "exponentials of logarithms",
        (_X, _Y, _ONE, *_FACTORS),
        (
            *yields(_LOG, [DATA, _OTHER], Log()),
            *yields("m", _MULTIPLES, Mul()),
            *yields("m", [_LOG * 2], Add(), Sub()),
            *yields(_RESULT, [_LOG, "m"], Exp()),
            *yields(_RESULT, [DATA + _OTHER, DATA * 2], Mul()),
            *yields(_RESULT, [DATA + _OTHER, _OTHER + DATA, _ONE.role + DATA], Div()),
            *yields(_RESULT, [DATA], Sqrt(), Rsqrt()),
        ),
        4,
    )
    yield family(
        "logarithms of powers",
        (_X, _ONE, *_FACTORS),
        (
            *yields("p", [DATA], Sqrt(), Rsqrt()),
            *yields("p", [DATA * 2], Mul()),
            *yields("p", [_ONE.role + DATA], Div()),
            *yields(_RESULT, ["p"], Log()),
            *yields(_LOG, [DATA], Log()),
            *yields(FUSED, _MULTIPLES, Mul()),
        ),
        2,
        domain=Domain.REAL,
        repeats=True,
    )


SIGNS = (*_roots_and_quotients(), *_of_any_sign(), *_logarithms())
