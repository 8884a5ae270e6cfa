"""The vocabulary ``formulas``: numbers, powers and functions of elements, and the forms of them that compute less.

Numbers are collected, squares of sums recognized, whole powers computed by products, functions cancelled. Rules lead in
one direction, towards less work.
"""

from __future__ import annotations

from collections.abc import Iterator

from taso_py.generate.sets.common import family, number
from taso_py.generate.vocabulary import CONSTANT, DATA, FUSED, WEIGHT, Family, Production, Variables
from taso_py.ops.elementwise import Abs, Add, Div, Exp, Log, Maximum, Minimum, Mul, Pow, Relu, Sqrt, Sub
from taso_py.ops.evaluate import Domain

_OTHER = "y"
"""Role of the second of two variables that are data."""
_FIRST, _SECOND, _THIRD = "abe"
"""Roles of values on the way to what is replaced."""
_BEFORE, _AFTER = "lr"
"""Roles of values on the way to what replaces it."""
_ONE, _TWO = "u", "2"
"""Roles of numbers."""

_X, _Y = Variables("x", (4,), DATA, 1), Variables("y", (4,), _OTHER, 1)
_SCALE = Variables("c", (), CONSTANT, 1)


def _multiples() -> Iterator[Family]:
    """Yield the families of multiples that are added, of sums and differences, and of interpolation."""
    yield family(
        "multiples",
        (_X, _SCALE, number(_ONE, 1.0), number(_TWO, 2.0)),
        (
            Production(Mul(), DATA + CONSTANT, _FIRST),
            Production(Add(), DATA + DATA, _SECOND),
            *(Production(op, roles, "o") for op in (Add(), Sub()) for roles in (_FIRST + DATA, _FIRST + _SECOND)),
            *(Production(Sub(), roles, "o") for roles in (DATA + _FIRST, _SECOND + _FIRST)),
            *(Production(op, CONSTANT + one, _AFTER) for op in (Add(), Sub()) for one in (_ONE, _TWO)),
            *(Production(Sub(), one + CONSTANT, _AFTER) for one in (_ONE, _TWO)),
            Production(Mul(), DATA + _AFTER, FUSED),
        ),
        3,
    )
    yield family(
        "sums and differences",
        (_X, _Y, number(_TWO, 2.0)),
        (
            Production(Add(), DATA + _OTHER, _FIRST),
            Production(Sub(), DATA + _OTHER, _SECOND),
            Production(Add(), _FIRST + _SECOND, "o"),
            Production(Sub(), _FIRST + _SECOND, "o"),
            Production(Mul(), DATA + _TWO, FUSED),
            Production(Mul(), _OTHER + _TWO, FUSED),
        ),
        3,
    )
    for shape in ((3, 4), (4,), ()):
        yield family(
            f"interpolation by {len(shape)} axes",
            (
                Variables("x", (3, 4), DATA, 1),
                Variables("y", (3, 4), _OTHER, 1),
                Variables("v", shape, WEIGHT, 1),
                number(_ONE, 1.0),
            ),
            (
                Production(Sub(), _ONE + WEIGHT, _FIRST),
                Production(Mul(), DATA + _FIRST, _SECOND),
                Production(Mul(), _OTHER + WEIGHT, _THIRD),
                Production(Add(), _SECOND + _THIRD, "o"),
                Production(Sub(), _OTHER + DATA, _BEFORE),
                Production(Mul(), _BEFORE + WEIGHT, _AFTER),
                Production(Add(), DATA + _AFTER, FUSED),
            ),
            4,
            repeats=True,
        )


def _squares() -> Family:
    """Return the family of squares of sums and differences that are written out."""
    return family(
        "squares",
        (_X, _Y, number(_TWO, 2.0)),
        (
            Production(Mul(), DATA + DATA, _FIRST),
            Production(Mul(), _OTHER + _OTHER, _SECOND),
            *(Production(Mul(), one + _TWO, other) for one, other in ((DATA, "i"), ("k", _THIRD))),
            Production(Mul(), DATA + _OTHER, "k"),
            Production(Mul(), "i" + _OTHER, _THIRD),
            *(Production(op, _FIRST + _THIRD, "p") for op in (Add(), Sub())),
            Production(Add(), _FIRST + _SECOND, "q"),
            Production(Add(), "p" + _SECOND, "o"),
            *(Production(op, "q" + _THIRD, "o") for op in (Add(), Sub())),
            *(Production(op, DATA + _OTHER, _AFTER) for op in (Add(), Sub())),
            Production(Mul(), _AFTER + _AFTER, FUSED),
        ),
        6,
        repeats=True,
    )


def _powers() -> Iterator[Family]:
    """Yield the families of whole powers, which products of squares and cubes compute."""
    square, cube, fourth = "qkp"
    for exponent in range(4, 9):
        last = {4: square * 2, 5: fourth + DATA, 6: cube * 2, 7: fourth + cube, 8: fourth * 2}[exponent]
        yield family(
            f"powers of {exponent}",
            (_X,),
            (
                Production(Pow(exponent), DATA, "o"),
                Production(Mul(), DATA * 2, square),
                *((Production(Mul(), square + DATA, cube),) if cube in last else ()),
                *((Production(Mul(), square * 2, fourth),) if fourth in last else ()),
                Production(Mul(), last, FUSED),
            ),
            4 if exponent == 7 else 3,
        )


def _exponentials() -> Family:
    """Return the family of products and quotients of exponentials."""
    return family(
        "exponentials",
        (_X, _Y),
        (
            Production(Exp(), DATA, _FIRST),
            Production(Exp(), _OTHER, _SECOND),
            *(Production(op, _FIRST + _SECOND, "o") for op in (Mul(), Div())),
            *(Production(op, DATA + _OTHER, _AFTER) for op in (Add(), Sub())),
            Production(Exp(), _AFTER, FUSED),
        ),
        3,
        domain=Domain.REAL,
    )


def _cancelling() -> Iterator[Family]:
    """Yield the families of functions that cancel, or leave a simpler one."""
    yield Family(
        "logarithms of exponentials",
        (_X,),
        (Production(Exp(), DATA, _FIRST), Production(Log(), _FIRST, "o")),
        operators=2,
        shrinks=True,
        domain=Domain.REAL,
    )
    yield family(
        "roots of squares",
        (_X,),
        (Production(Mul(), DATA * 2, _FIRST), Production(Sqrt(), _FIRST, "o"), Production(Abs(), DATA, FUSED)),
        2,
        domain=Domain.REAL,
    )
    yield Family(
        "two rectifiers",
        (_X, number(_ONE, -1.0)),
        (
            Production(Mul(), DATA + _ONE, _FIRST),
            Production(Relu(), DATA, _SECOND),
            Production(Relu(), _FIRST, _THIRD),
            Production(Sub(), _SECOND + _THIRD, "o"),
        ),
        operators=4,
        every=True,
        shrinks=True,
    )
    yield family(
        "greater and lesser",
        (_X, _Y),
        (
            Production(Maximum(), DATA + _OTHER, _FIRST),
            Production(Minimum(), DATA + _OTHER, _SECOND),
            *(Production(op, _FIRST + _SECOND, "o") for op in (Add(), Mul())),
            *(Production(op, DATA + _OTHER, FUSED) for op in (Add(), Mul())),
        ),
        3,
    )


FORMULAS = (*_multiples(), _squares(), _exponentials(), *_cancelling(), *_powers())
