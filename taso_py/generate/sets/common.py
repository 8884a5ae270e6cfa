"""Variables and productions that several vocabularies share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from taso_py.generate.vocabulary import DATA, FUSED, LARGEST, WEIGHT, Family, Half, Production, Variables, apply
from taso_py.ops.base import TensorOperator
from taso_py.ops.contraction import Conv2d
from taso_py.ops.elementwise import Add, Mul, Relu, Rsqrt, Sigmoid, Sub, Tanh
from taso_py.ops.evaluate import Domain
from taso_py.ops.normalization import BatchNorm
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


def each(**shapes: tuple[int, ...]) -> tuple[Variables, ...]:
    """Return a variable for each role, named after it."""
    return tuple(Variables(role, shape, role, 1) for role, shape in shapes.items())


def yields(role: str, operands: Iterable[str], *ops: TensorOperator | Half) -> tuple[Production, ...]:
    """Return the productions that apply operators to operands of some roles and give another."""
    return tuple(Production(op, roles, role) for op in ops for roles in operands)


EPSILON = number("e", 0.25)
"""The number that a normalization by fixed statistics adds to variances."""


def channel_factors(scale: str, variance: str, factor: str) -> tuple[Production, ...]:
    """Return the productions of what a normalization by fixed statistics multiplies each channel by."""
    return (
        Production(Add(), variance + "e", "1"),
        Production(Rsqrt(), "1", "2"),
        Production(Mul(), "2" + scale, factor),
    )


def normalization(statistics: str, result: str, *, factor: str, shift: str) -> tuple[Production, ...]:
    """Return the productions of data normalized by fixed statistics, and of the factors and shifts that this comes to.

    Args:
        statistics: the roles of the factors, shifts, means and variances of channels.
        result: the role of the normalized data.
        factor: the role of what each channel is multiplied by in all.
        shift: the role of what is added to it.
    """
    scale, offset, mean, variance = statistics
    return (
        Production(BatchNorm(0.25), DATA + statistics, result),
        *channel_factors(scale, variance, factor),
        Production(Mul(), factor + mean, "3"),
        Production(Sub(), offset + "3", shift),
    )


def family(
    name: str,
    variables: Iterable[Variables],
    productions: Iterable[Production],
    operators: int,
    *,
    domain: Domain = Domain.EXACT,
    faithful: bool = False,
    narrow: bool = False,
    repeats: bool = False,
    largest: int = LARGEST,
) -> Family:
    """Return a family in which all forms are found; the arguments are those of :class:`Family`."""
    return Family(
        name,
        tuple(variables),
        tuple(productions),
        operators,
        every=True,
        domain=domain,
        faithful=faithful,
        narrow=narrow,
        repeats=repeats,
        largest=largest,
    )


def applicable(variables: Iterable[Variables], productions: Sequence[Production]) -> tuple[Production, ...]:
    """Return the productions whose operands have roles of variables, or of what productions yield."""
    given = {variable.role for variable in variables} | {made.yields for made in productions}
    return tuple(made for made in productions if set(made.roles) <= given)


def exchanged(
    moved: TensorOperator,
    name: str,
    variables: Sequence[Variables],
    *done: tuple[str, Sequence[TensorOperator]],
    domain: Domain = Domain.EXACT,
    faithful: bool = False,
) -> Family:
    """Return a family of operators on what another one makes of data, which are done before that instead.

    Args:
        moved: the operator that comes last in what replaces the others: it enlarges, repeats, pads, or is a view.
        name: the name.
        variables: the variables; of roles ``d`` and ``y``, data.
        done: the roles of operands, and operators that are applied to them; if to ``d`` and ``y``, both are moved.
        domain: see :class:`Family`.
        faithful: see :class:`Family`.
    """
    first, second, before, result = "UYlo"
    other = "y"
    productions = [Production(moved, DATA, first), Production(moved, other, second), Production(moved, before, FUSED)]
    for roles, ops in done:
        productions += yields(before, [roles], *ops)
        productions += yields(result, [roles.replace(DATA, first).replace(other, second)], *ops)
    return family(name, variables, applicable(variables, productions), 3, domain=domain, faithful=faithful)
