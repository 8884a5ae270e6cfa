"""The vocabulary ``algebra``: signs, quotients by fixed values, sums along several axes, joins along a batch.

``core``, ``merge`` and ``scalars`` have the same laws for other numbers and axes.
"""

from __future__ import annotations

from taso_py.generate.vocabulary import CONSTANT, DATA, FUSED, WEIGHT, Family, Production, Variables, Written, apply
from taso_py.ops.elementwise import Add, Div, Gelu, Mul, Relu, Sigmoid, Silu, Sub, Tanh
from taso_py.ops.movement import Concat
from taso_py.ops.reduction import Max, Sum

_MINUS_ONE = Variables("m", (), CONSTANT, count=1, number=-1.0)
_ONE = Variables("u", (), CONSTANT, count=1, number=1.0)
_NEGATED, _FACTOR = "n", "r"
_FUNCTIONS = (Relu(), Sigmoid(), Tanh(), Silu(), Gelu())
_X = Variables("x", (4, 3), DATA, 1)

ALGEBRA = (
    Family("signs", (_X, _MINUS_ONE), apply("dc", Mul()), operators=2, shrinks=True),
    Family(
        "differences",
        (_X, Variables("y", (4, 3), "y", 1), _MINUS_ONE),
        (
            Production(Mul(), "y" + CONSTANT, _NEGATED),
            Production(Add(), DATA + _NEGATED, "o"),
            Production(Sub(), DATA + _NEGATED, "o"),
            Production(Sub(), DATA + "y", FUSED),
            Production(Add(), DATA + "y", FUSED),
        ),
        operators=2,
        every=True,
    ),
    *(
        Family(
            f"quotients by {'x'.join(map(str, shape)) or 'a number'}",
            (Variables("x", (2, 3, 4), DATA, 1), Variables("v", shape, WEIGHT, 1), _ONE),
            (
                Production(Div(), DATA + WEIGHT, "o"),
                Production(Div(), CONSTANT + WEIGHT, _FACTOR),
                Production(Mul(), DATA + _FACTOR, FUSED),
            ),
            operators=2,
            every=True,
        )
        for shape in ((), (4,), (2, 1, 1))
    ),
    Family(
        "sums of sums",
        (Variables("x", (2, 3, 4), DATA, 1),),
        (
            Production(Sum((-1,)), DATA, "i"),
            Production(Max((-1,)), DATA, "j"),
            Production(Sum((-1,)), "i", "o"),
            Production(Max((-1,)), "j", "o"),
            Production(Sum((-1,), keepdim=True), DATA, "k"),
            Production(Sum((-2,), keepdim=True), "k", "o"),
            *(Production(op, DATA, FUSED) for op in (Sum((-2, -1)), Max((-2, -1)), Sum((-2, -1), keepdim=True))),
        ),
        operators=2,
        every=True,
    ),
    Family(
        "functions of batches",
        (Variables("x", (2, 3, 4, 5), DATA, 2),),
        (
            *(Production(function, DATA, "i") for function in _FUNCTIONS),
            Production(Concat(-4), "ii", "o"),
            Production(Concat(-4), "dd", "j"),
            *(Production(function, "j", FUSED) for function in _FUNCTIONS),
        ),
        operators=3,
        every=True,
    ),
    Written("gelu with the operand factored out", Gelu("tanh"), is_factored=True),
)
