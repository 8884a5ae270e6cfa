"""Variables and productions that several vocabularies share."""

from __future__ import annotations

from collections.abc import Sequence

from taso_py.generate.vocabulary import DATA, WEIGHT, Family, Production, Variables, apply
from taso_py.ops.contraction import Conv2d
from taso_py.ops.elementwise import Add, Mul, Relu, Sigmoid, Sub, Tanh
from taso_py.ops.evaluate import Domain
from taso_py.ops.pooling import AvgPool2d, MaxPool2d

UNARY = apply("d", Relu(), Sigmoid(), Tanh())
ARITHMETIC = apply("..", Add(), Mul(), Sub())
POINTWISE = Conv2d()
SPATIAL = Conv2d(padding=(1, 1))
POOLS = apply("d", AvgPool2d((3, 3), (1, 1), (1, 1)), MaxPool2d((3, 3), (1, 1), (1, 1)))
STRIDED_POOLS = apply("d", AvgPool2d((2, 2), (2, 2)), MaxPool2d((2, 2), (2, 2)))

MATRICES = (Variables("x", (3, 2), DATA), Variables("w", (2, 2), WEIGHT))
VECTORS = Variables("v", (2,), WEIGHT)
SCALARS = Variables("s", (), WEIGHT, 2)
IMAGES = Variables("x", (3, 2, 4, 5), DATA)
KERNELS = Variables("k", (2, 2, 3, 3), WEIGHT)
POINTS = Variables("p", (2, 2, 1, 1), WEIGHT)


def number(role: str, value: float) -> Variables:
    """Return a number that has a role of its own."""
    return Variables(role, (), role, 1, number=value)


def family(
    name: str,
    variables: Sequence[Variables],
    productions: Sequence[Production],
    operators: int,
    *,
    domain: Domain = Domain.EXACT,
    narrow: bool = False,
    repeats: bool = False,
) -> Family:
    """Return a family in which all forms are found; the arguments are those of :class:`Family`."""
    return Family(
        name,
        tuple(variables),
        tuple(productions),
        operators,
        every=True,
        domain=domain,
        narrow=narrow,
        repeats=repeats,
    )
