"""The vocabulary ``compounds``: operators that PyTorch computes in one call, and what they are written out.

A sum with a product, a product of matrices that is added to something, a norm of vectors: taken apart, their parts meet
the rules of sums, products and attention. Norms of vectors lead both ways, since which form is faster depends on the
axes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from taso_py.generate.sets.common import each, family, number
from taso_py.generate.vocabulary import CONSTANT, DATA, FUSED, WEIGHT, Family, Production, Variables
from taso_py.ops.contraction import Baddbmm, Matmul
from taso_py.ops.elementwise import Abs, Add, Addcmul, Mul, Sqrt
from taso_py.ops.evaluate import Domain
from taso_py.ops.movement import Permute
from taso_py.ops.normalization import Attention, Softmax
from taso_py.ops.reduction import Sum, VectorNorm

_PRODUCT, _SCALED, _SCORES, _WEIGHTS, _KEYS = "pqswt"
"""Roles of values on the way."""
_SUMMAND, _LEFT, _RIGHT = "mab"
"""Roles of what is added, and of the two factors of a product."""
_OTHER = "e"
"""Role of a second number."""

_SHAPES = (
    *(((3, 5), (5,)), ((3, 4, 5), (1, 1, 5)), ((2, 3, 4, 5), (1, 1, 1, 5))),
    *(((3, 4, 5), (3, 1, 1)), ((2, 3, 4, 5), (1, 3, 1, 1)), ((4,), ())),
)
"""Shapes of values, and of parameters of their features or channels, or of a number."""


def _sums_with_a_product() -> Iterator[Family]:
    """Yield the families of sums with a product, by which of the three operands are parameters."""
    orders = ("dwd", "ddw", "wdd", "wwd", "wdw")
    for full, small in _SHAPES:
        number = None if small else 0.25
        for roles in orders if small else orders[:2]:
            yield family(
                f"sums with a product, {roles} of {full} and {small}",
                (
                    Variables("x", full, DATA, roles.count(DATA)),
                    Variables("v", small, WEIGHT, roles.count(WEIGHT), number),
                ),
                (
                    Production(Addcmul(), roles, "o"),
                    Production(Mul(), roles[1:], _PRODUCT),
                    Production(Add(), roles[0] + _PRODUCT, FUSED),
                ),
                2,
            )
    yield family(
        "sums with a product",
        (Variables("x", (4,), DATA, 3),),
        (
            Production(Addcmul(), "ddd", "o"),
            Production(Mul(), "dd", _PRODUCT),
            Production(Add(), DATA + _PRODUCT, FUSED),
        ),
        2,
    )


def _added_products() -> Iterator[Family]:
    """Yield the families of products of matrices that are added to something, by its shape and by the numbers."""
    shapes = ((4, 6), (6,), (4, 1)), ((2, 4, 6), (1, 4, 6), (2, 1, 6), (1, 1, 6), (4, 6), (6,))
    for lead, summands in zip(((), (2,)), shapes, strict=True):
        for summand, op in itertools.product(summands, (Baddbmm(), Baddbmm(alpha=0.25), Baddbmm(0.5, 0.25))):
            product = _PRODUCT if op.alpha == 1 else _SCORES
            yield family(
                f"{op.text} of {len(lead) + 2} axes added to {summand}",
                (*each(m=summand, a=(*lead, 4, 5), b=(*lead, 5, 6)), number(CONSTANT, 0.25), number(_OTHER, 0.5)),
                (
                    Production(op, _SUMMAND + _LEFT + _RIGHT, "o"),
                    Production(Matmul(), _LEFT + _RIGHT, _PRODUCT),
                    *([Production(Mul(), _PRODUCT + CONSTANT, _SCORES)] if op.alpha != 1 else []),
                    *([Production(Mul(), _SUMMAND + _OTHER, _SCALED)] if op.beta != 1 else []),
                    Production(Add(), (_SUMMAND if op.beta == 1 else _SCALED) + product, FUSED),
                ),
                4,
            )


def _attention() -> Iterator[Family]:
    """Yield the families of attention whose scores are a product that is added to a mask, by the mask's shape."""
    for mask in ((2, 4, 6), (1, 4, 6), (2, 1, 6), (1, 1, 6), (4, 6)):
        yield family(
            f"attention to scores added to {mask}",
            each(m=mask, a=(2, 4, 5), b=(2, 6, 5), d=(2, 6, 7)),
            (
                Production(Permute((-1, -2)), _RIGHT, _KEYS),
                Production(Baddbmm(alpha=0.25), _SUMMAND + _LEFT + _KEYS, _SCORES),
                Production(Softmax(), _SCORES, _WEIGHTS),
                Production(Matmul(), _WEIGHTS + DATA, "o"),
                Production(Attention(0.25), _LEFT + _RIGHT + DATA + _SUMMAND, FUSED),
            ),
            4,
        )


def _norms() -> Iterator[Family]:
    """Yield the families of norms of vectors, which are taken apart and put together."""
    for axes in ((-1,), (-2,), (-3,), (-2, -1), (-3, -2)):
        for keeps in (False, True):
            yield family(
                f"norms over {axes}{', kept' * keeps}",
                each(d=(3, 4, 5)),
                (
                    Production(Mul(), DATA + DATA, _PRODUCT),
                    Production(Sum(axes, keeps), _PRODUCT, _SUMMAND),
                    Production(Sqrt(), _SUMMAND, "o"),
                    Production(Abs(), DATA, _SCALED),
                    Production(Sum(axes, keeps), _SCALED, "o"),
                    *(Production(VectorNorm(axes, keeps, order), DATA, "o") for order in (1, 2)),
                ),
                3,
                domain=Domain.REAL,
            )


COMPOUNDS = (*_sums_with_a_product(), *_added_products(), *_attention(), *_norms())
