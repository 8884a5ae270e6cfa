"""The vocabulary ``views``: elementwise operators and normalization of channels moved before a reshape or permutation.

A view between a product and the operators on its result keeps one kernel from computing both. One-dimensional
convolutions are those of images of height one, seen without that axis.
"""

from __future__ import annotations

from taso_py.generate.sets.common import each, family, yields
from taso_py.generate.vocabulary import DATA, FUSED, WEIGHT, Family, Production, Variables
from taso_py.ops.elementwise import Add, Gelu, Relu, Sigmoid, Silu
from taso_py.ops.evaluate import Domain
from taso_py.ops.movement import Permute, Reshape
from taso_py.ops.normalization import BatchNorm

_SEEN = "s"
"""Role of values under the other shape."""
_AFTER = "a"
"""Role of results computed after the view."""
_BEFORE = "b"
"""Role of results computed before it."""
_RETURNED = "r"
"""Role of the other operand under the shape before the view."""

_FUNCTIONS = (Relu(), Gelu(), Gelu("tanh"), Silu(), Sigmoid())
"""Functions that kernels of products can apply to their results."""
_SHAPES = (((6, 5), (2, 3, 5)), ((2, 3, 5), (6, 5)), ((2, 3, 1, 5), (2, 3, 5)))
"""Shapes of the same elements before and after a reshape."""
_EXCHANGE = Permute((-2, -3, -1))
"""An exchange of axes that is its own inverse."""


def _family(
    before: tuple[int, ...], after: tuple[int, ...], view: Reshape | Permute, back: Reshape | Permute
) -> Family:
    productions = (
        Production(view, DATA, _SEEN),
        *(Production(function, _SEEN, _AFTER) for function in _FUNCTIONS),
        *(Production(function, DATA, _BEFORE) for function in _FUNCTIONS),
        Production(Add(), _SEEN + WEIGHT, _AFTER),
        Production(back, WEIGHT, _RETURNED),
        Production(Add(), DATA + _RETURNED, _BEFORE),
        Production(view, _BEFORE, FUSED),
    )
    variables = Variables("x", before, DATA, 1), Variables("y", after, WEIGHT, 1)
    return Family(f"elements of {before} as {after}", variables, productions, operators=4, every=True)


VIEWS = (
    *(_family(before, after, Reshape(after), Reshape(before)) for before, after in _SHAPES),
    _family((2, 3, 5), (3, 2, 5), _EXCHANGE, _EXCHANGE),
    family(
        "normalized images of height one",
        each(d=(2, 3, 1, 5), h=(3,), k=(3,), q=(3,), t=(3,)),
        (
            *yields(_SEEN, [DATA], Reshape((2, 3, 5))),
            # With an epsilon that makes the samples of a variance, which may be negative, positive.
            *yields(_AFTER, [_SEEN + "hkqt"], BatchNorm(8.0)),
            *yields(_BEFORE, [DATA + "hkqt"], BatchNorm(8.0)),
            *yields(FUSED, [_BEFORE], Reshape((2, 3, 5))),
        ),
        2,
        domain=Domain.REAL,
    ),
)
