"""The vocabulary ``scalars``: arithmetic with numbers, factors that move through linear operators, views that cancel.

An identity that is false somewhere is refused by the prover (``x / x = 1`` at zero), or has the numerics class that
says where it differs (``x + 0``, ``x - x`` at infinity).
"""

from __future__ import annotations

from taso_py.generate.vocabulary import CONSTANT, DATA, WEIGHT, Family, Variables, apply
from taso_py.ops.contraction import Linear, Matmul
from taso_py.ops.elementwise import Add, Div, Mul, Sub
from taso_py.ops.movement import Permute, Reshape
from taso_py.ops.reduction import Mean, Sum

_ONE = Variables("u", (), CONSTANT, 1, 1.0)
_ZERO = Variables("z", (), CONSTANT, 1, 0.0)
_FACTOR = Variables("c", (), CONSTANT, 1, 0.25)

SCALARS = (
    Family(
        "neutral numbers",
        (Variables("x", (4,), DATA, 2), _ONE, _ZERO),
        (*apply("dd", Add(), Sub(), Mul(), Div()), *apply("dc", Add(), Sub(), Mul(), Div()), *apply("cd", Sub())),
        operators=2,
    ),
    Family(
        "factors",
        (Variables("x", (3, 4), DATA, 2), Variables("w", (4, 4), WEIGHT, 1), _FACTOR),
        (
            *apply("dd", Add()),
            *apply("dc", Mul()),
            *apply("wc", Mul()),
            *apply("dw", Matmul(), Linear()),
            *apply("d", Mean((-1,), keepdim=True), Sum((-1,), keepdim=True)),
        ),
        operators=2,
    ),
    Family(
        "permutations",
        (Variables("x", (2, 3, 4), DATA, 1),),
        apply("d", Permute((-1, -2)), Permute((-2, -3, -1)), Permute((-1, -3, -2)), Permute((-2, -1, -3))),
        operators=2,
    ),
    Family(
        "reshapes",
        (Variables("x", (2, 3, 4), DATA, 1),),
        apply("d", *(Reshape(shape) for shape in ((6, 4), (2, 12), (24,), (2, 3, 4)))),
        operators=2,
    ),
)
