"""The vocabulary ``activations``: the hard and smooth gates of mobile networks, written out, and their operators."""

from __future__ import annotations

from taso_py.generate.vocabulary import DATA, Family, Production, Variables
from taso_py.ops.elementwise import Add, Div, Hardsigmoid, Hardswish, Hardtanh, Mish, Mul, Softplus, Tanh

_X = Variables("x", (4,), DATA, 1)
_THREE, _SIX = "t", "s"
_SHIFTED, _CLAMPED, _GATE, _SCALED, _GATED = "abehk"

ACTIVATIONS = (
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
)
