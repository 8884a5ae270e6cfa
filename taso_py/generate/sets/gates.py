"""The vocabulary ``gates``: factors of rows, features and channels, collected before they meet what is larger.

A gate is computed from averages or norms, so that it has few elements: ``x * gate * weight`` is ``x * (gate * weight)``,
``x + x * gate`` is ``x * (gate + 1)``. What scales the rows of a product of matrices may do so before or after it,
whichever has fewer columns.
"""

from __future__ import annotations

from collections.abc import Iterator

from taso_py.generate.sets.common import each, family, number, yields
from taso_py.generate.vocabulary import CONSTANT, DATA, FUSED, WEIGHT, Family, Production, Variables
from taso_py.ops.contraction import Matmul
from taso_py.ops.elementwise import Add, Div, Mul, Sub
from taso_py.ops.movement import Permute

_GATE, _OTHER = "nk"
"""Roles of a gate, and of the other matrix of a product."""
_GATED, _SCALED, _TURNED = "pst"
"""Roles of values on the way."""
_COLLECTED = "m"
"""Role of factors that are collected."""

_SHAPES = (
    ((2, 3, 5), (2, 1, 5), (5,)),
    ((2, 3, 4, 5), (2, 1, 1, 5), (5,)),
    ((2, 3, 4, 5), (2, 3, 1, 1), (3, 1, 1)),
)
"""Shapes of values, of gates of them, and of parameters of their features or channels."""


def _gates() -> Iterator[Family]:
    """Yield the families of values that are multiplied by a gate and a parameter, and that are added to a gated form."""
    for full, gate, parameter in _SHAPES:
        yield family(
            f"two factors of {gate} and {parameter}",
            each(d=full, n=gate, w=parameter),
            (
                Production(Mul(), DATA + _GATE, _GATED),
                Production(Mul(), DATA + WEIGHT, _SCALED),
                *yields("o", [_GATED + WEIGHT, _SCALED + _GATE], Mul()),
                Production(Mul(), _GATE + WEIGHT, _COLLECTED),
                Production(Mul(), DATA + _COLLECTED, FUSED),
            ),
            3,
        )
        for shape in (gate, parameter):
            yield family(
                f"values of {full} and the same by a factor of {shape}",
                (Variables("d", full, DATA, 1), Variables("n", shape, _GATE, 1), number(CONSTANT, 1.0)),
                (
                    Production(Mul(), DATA + _GATE, _GATED),
                    *(Production(op, DATA + _GATED, "o") for op in (Add(), Sub())),
                    Production(Sub(), _GATED + DATA, "o"),
                    *(Production(op, _GATE + CONSTANT, _COLLECTED) for op in (Add(), Sub())),
                    Production(Sub(), CONSTANT + _GATE, _COLLECTED),
                    Production(Mul(), DATA + _COLLECTED, FUSED),
                ),
                3,
                repeats=True,
            )


def _rows() -> Iterator[Family]:
    """Yield the families of products of matrices whose rows or columns are scaled, before the product or after it."""
    for op in (Mul(), Div()):
        yield family(
            f"rows of a product, by {op.name}",
            each(d=(2, 4, 7), k=(2, 7, 3), n=(2, 4, 1)),
            (
                Production(op, DATA + _GATE, _GATED),
                Production(Matmul(), _GATED + _OTHER, "o"),
                Production(Matmul(), DATA + _OTHER, _SCALED),
                Production(op, _SCALED + _GATE, "o"),
            ),
            2,
        )
        yield family(
            f"columns of a product, by {op.name}",
            each(d=(2, 4, 7), k=(2, 7, 3), n=(2, 1, 3)),
            (
                Production(op, _OTHER + _GATE, _GATED),
                Production(Matmul(), DATA + _GATED, "o"),
                Production(Matmul(), DATA + _OTHER, _SCALED),
                Production(op, _SCALED + _GATE, "o"),
            ),
            2,
        )
        yield family(
            f"columns of a product with a transpose, by {op.name}",
            each(d=(2, 4, 7), k=(2, 3, 7), n=(2, 3, 1)),
            (
                Production(op, _OTHER + _GATE, _GATED),
                Production(Permute((-1, -2)), _GATED, _TURNED),
                Production(Matmul(), DATA + _TURNED, "o"),
                Production(Permute((-1, -2)), _OTHER, "u"),
                Production(Matmul(), DATA + "u", _SCALED),
                Production(Permute((-1, -2)), _GATE, _COLLECTED),
                Production(op, _SCALED + _COLLECTED, FUSED),
            ),
            4,
        )


GATES = (*_gates(), *_rows())
