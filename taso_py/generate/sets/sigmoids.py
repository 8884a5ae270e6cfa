"""The vocabulary ``sigmoids``: GELU by a sigmoid, as a silu of a multiple.

``x * sigmoid(c * x)`` reads ``x`` twice; ``silu(c * x) / c`` reads it once, so that the layers before and behind it
take in both multiples (Hendrycks and Gimpel 2016, section 2, with ``c = 1.702``).
"""

from __future__ import annotations

from taso_py.generate.sets.common import number
from taso_py.generate.vocabulary import DATA, FUSED, Family, Production, Variables
from taso_py.ops.elementwise import Div, Mul, Sigmoid, Silu
from taso_py.ops.evaluate import Domain

_NUMBER, _SCALED, _GATE, _GATED = "caeh"
"""Roles of the number, and of values on the way."""

SIGMOIDS = (
    Family(
        "gelu by a sigmoid",
        (Variables("x", (4,), DATA, 1), number(_NUMBER, 1.702)),
        (
            Production(Mul(), DATA + _NUMBER, _SCALED),
            Production(Sigmoid(), _SCALED, _GATE),
            Production(Mul(), DATA + _GATE, "o"),
            Production(Silu(), _SCALED, _GATED),
            Production(Div(), _GATED + _NUMBER, FUSED),
        ),
        operators=3,
        every=True,
        domain=Domain.REAL,
    ),
)
