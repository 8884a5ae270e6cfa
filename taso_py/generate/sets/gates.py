"""The vocabulary ``gates``: factors of rows, features and channels, collected before they meet what is larger.

A gate is computed from averages or norms, so that it has few elements: ``x * gate * weight`` is
``x * (gate * weight)``, and ``x + x * gate`` is ``x * (gate + 1)``. What scales the rows of a product of matrices may
do so before or after it, whichever has fewer columns.
"""

from __future__ import annotations

from collections.abc import Iterator

from taso_py.generate.sets.common import each, family, number, yields
from taso_py.generate.vocabulary import CONSTANT, DATA, FUSED, WEIGHT, Family, Production, Variables
from taso_py.ops.contraction import Matmul
from taso_py.ops.elementwise import Add, Addcmul, Div, Mul, Sub
from taso_py.ops.movement import Permute

_GATE, _ADDED = "nv"
"""Roles of a gate, and of what is added to a product."""
_MATRIX, _OTHER = "ak"
"""Roles of the two matrices of a product."""
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
    """Yield the families of values times a gate and a parameter, and of values that are added to a gated form."""
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


def _sums() -> Iterator[Family]:
    """Yield the families of sums with a product, in one call, of which one factor is gated."""
    for full, gate, parameter in _SHAPES:
        for shape, place in ((parameter, "a parameter"), (full, "another value")):
            yield family(
                f"two factors of {gate} and {parameter} in a sum with {place}",
                each(d=full, n=gate, w=parameter, v=shape),
                (
                    Production(Mul(), DATA + _GATE, _GATED),
                    *yields("o", [_ADDED + WEIGHT + _GATED, _ADDED + _GATED + WEIGHT], Addcmul()),
                    Production(Mul(), _GATE + WEIGHT, _COLLECTED),
                    Production(Addcmul(), _ADDED + DATA + _COLLECTED, FUSED),
                ),
                3,
            )
        yield family(
            f"values of {full} and their sum with the same by a factor of {gate}",
            (*each(d=full, n=gate, v=parameter), number(CONSTANT, 1.0)),
            (
                *yields(_GATED, [_ADDED + DATA + _GATE, _ADDED + _GATE + DATA], Addcmul()),
                Production(Add(), DATA + _GATED, "o"),
                Production(Add(), _GATE + CONSTANT, _COLLECTED),
                Production(Addcmul(), _ADDED + DATA + _COLLECTED, FUSED),
            ),
            3,
            repeats=True,
        )


def _rows() -> Iterator[Family]:
    """Yield the families of products of matrices whose rows or columns are scaled, before the product or after it."""
    for op in (Mul(), Div()):
        for what, gate, scaled, operands in (
            ("rows", (2, 4, 1), _MATRIX, _GATED + _OTHER),
            ("columns", (2, 1, 3), _OTHER, _MATRIX + _GATED),
        ):
            yield family(
                f"{what} of a product, by {op.name}",
                each(a=(2, 4, 7), k=(2, 7, 3), n=gate),
                (
                    Production(op, scaled + _GATE, _GATED),
                    Production(Matmul(), operands, "o"),
                    Production(Matmul(), _MATRIX + _OTHER, _SCALED),
                    Production(op, _SCALED + _GATE, "o"),
                ),
                2,
            )
        yield family(
            f"columns of a product with a transpose, by {op.name}",
            each(a=(2, 4, 7), k=(2, 3, 7), n=(2, 3, 1)),
            (
                Production(op, _OTHER + _GATE, _GATED),
                Production(Permute((-1, -2)), _GATED, _TURNED),
                Production(Matmul(), _MATRIX + _TURNED, "o"),
                Production(Permute((-1, -2)), _OTHER, "u"),
                Production(Matmul(), _MATRIX + "u", _SCALED),
                Production(Permute((-1, -2)), _GATE, _COLLECTED),
                Production(op, _SCALED + _COLLECTED, FUSED),
            ),
            4,
        )


GATES = (*_gates(), *_sums(), *_rows())
