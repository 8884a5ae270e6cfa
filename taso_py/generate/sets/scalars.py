"""The vocabulary ``scalars``: neutral numbers, and views that cancel or compose to one view.

An identity that is false somewhere is refused by the prover (``x / x = 1`` at zero), or has the numerics class that
says where it differs (``x + 0``).
"""

from __future__ import annotations

from taso_py.generate.vocabulary import CONSTANT, DATA, EITHER, Family, Production, Variables, apply
from taso_py.ops.elementwise import Add, Div, Mul, Rsqrt, Sqrt, Sub
from taso_py.ops.movement import Permute, Reshape

_NUMBERS = (Variables("u", (), CONSTANT, count=1, number=1.0), Variables("z", (), CONSTANT, count=1, number=0.0))
_TRANSPOSED = "t"
"""Role of values with their last two axes exchanged: not to be exchanged again, which ``core`` finds to cancel."""

SCALARS = (
    Family(
        "neutral numbers",
        (Variables("x", (4,), DATA, 1), *_NUMBERS),
        apply("dc", Add(), Sub(), Mul(), Div()),
        operators=1,
        shrinks=True,
    ),
    Family(
        "roots",
        (Variables("x", (4,), DATA, 1), _NUMBERS[0]),
        (*apply("d", Sqrt(), Rsqrt()), *apply("cd", Div())),
        operators=2,
        shrinks=True,
    ),
    Family(
        "permutations",
        (Variables("x", (2, 3, 4), DATA, 1),),
        (
            Production(Permute((-1, -2)), DATA, _TRANSPOSED),
            *apply(EITHER, *(Permute(order) for order in ((-2, -3, -1), (-1, -3, -2), (-2, -1, -3), (-1, -2, -3)))),
        ),
        operators=2,
        shrinks=True,
    ),
    Family(
        "reshapes",
        (Variables("x", (2, 3, 4), DATA, 1), Variables("y", (6, 4), DATA, 1)),
        apply("d", *(Reshape(shape) for shape in ((6, 4), (2, 12), (24,), (2, 3, 4)))),
        operators=2,
        shrinks=True,
    ),
    Family(
        "axes of one",
        (Variables("y", (6, 4), DATA, 1),),
        apply("d", *(Reshape(shape) for shape in ((6, 1, 4), (1, 6, 4), (6, 4)))),
        operators=2,
        shrinks=True,
    ),
)
