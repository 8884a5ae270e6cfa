"""The language of operator definitions: an output element as an expression in input elements.

A definition says, e.g. for matmul, ``out[i, j] = sum over k of a[i, k] * b[k, j]``. It is data: the fingerprint
evaluator computes it with numpy (:mod:`taso_py.ops.evaluate`), the prover normalises it with symbolic sizes. This is
the index notation of tensor algebra (Einstein 1916) with guards (Iverson brackets) for concatenation, padding, ....

Invariant: a definition is over the real numbers; indices and sizes are integers of type ``Dim``. Bound index names are
never used twice.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

from taso_py.ir.size import Dim, Poly, symbol
from taso_py.ir.types import Shape, TensorType


class Scalar:
    """A real-valued expression over tensor elements."""

    def __add__(self, other: Scalar) -> Scalar:
        return Plus(self, other)

    def __mul__(self, other: Scalar) -> Scalar:
        return Times(self, other)

    def __sub__(self, other: Scalar) -> Scalar:
        return Plus(self, Times(Number(Fraction(-1)), other))


@dataclass(frozen=True)
class Condition:
    """A statement about integers: ``value >= 0``, or ``value == 0`` where ``is_equality``."""

    value: Dim
    is_equality: bool = False

    def __str__(self) -> str:
        return f"{self.value} {'==' if self.is_equality else '>='} 0"


def within(index: Dim, extent: Dim) -> tuple[Condition, Condition]:
    """Return the conditions ``0 <= index < extent``."""
    return Condition(index), Condition(extent - 1 - index)


@dataclass(frozen=True)
class Read(Scalar):
    """The element of tensor variable ``variable`` at ``index`` (one ``Dim`` per axis, a group counting as one)."""

    variable: str
    index: tuple[Dim, ...]


@dataclass(frozen=True)
class Number(Scalar):
    """An exact rational number."""

    value: Fraction


@dataclass(frozen=True)
class Irrational(Scalar):
    """A named real constant; equal names are equal, nothing else is known of it. Values: ``IRRATIONALS``."""

    name: str


@dataclass(frozen=True)
class SizeOf(Scalar):
    """An integer expression as a real number, e.g. the count that a mean divides by; or a symbol that is a number."""

    value: Dim


@dataclass(frozen=True)
class Plus(Scalar):
    """The sum of two expressions."""

    left: Scalar
    right: Scalar


@dataclass(frozen=True)
class Times(Scalar):
    """The product of two expressions."""

    left: Scalar
    right: Scalar


@dataclass(frozen=True)
class Guard(Scalar):
    """``body`` where all conditions hold, zero elsewhere; ``body`` is not read elsewhere."""

    conditions: tuple[Condition, ...]
    body: Scalar


@dataclass(frozen=True)
class Binder:
    """A bound index: ``0 <= name < extent``."""

    name: str
    extent: Dim


@dataclass(frozen=True)
class Reduce(Scalar):
    """The sum (or maximum) of ``body`` over all values of the binders at which the conditions hold.

    An empty sum is 0, an empty maximum is minus infinity.
    """

    is_max: bool
    binders: tuple[Binder, ...]
    conditions: tuple[Condition, ...]
    body: Scalar


@dataclass(frozen=True)
class Apply(Scalar):
    """A scalar function of one argument, by name: ``relu``, ``exp``, ``reciprocal``, ...."""

    function: str
    argument: Scalar


class Relation(enum.Enum):
    """A relation between two real numbers; "less" is "greater" the other way round."""

    GREATER = "gt"
    GREATER_EQUAL = "ge"
    EQUAL = "eq"


@dataclass(frozen=True)
class Compare(Scalar):
    """1 where a relation holds between two expressions, 0 elsewhere."""

    relation: Relation
    left: Scalar
    right: Scalar


@dataclass(frozen=True)
class Choose(Scalar):
    """``chosen`` where a truth value is 1, ``other`` where it is 0; what is not chosen need not be defined."""

    condition: Scalar
    chosen: Scalar
    other: Scalar


@dataclass(frozen=True)
class At(Scalar):
    """``body`` at the index ``name``: the place among ``extent`` that an integer, an element of an operand, stands for.

    Where ``wraps`` is 1, negative integers count from the end; where it is 0, none are. An integer that stands for
    no place is an error of the model.
    """

    name: str
    integer: Scalar
    extent: Dim
    wraps: Dim
    body: Scalar


def parts(scalar: Scalar) -> tuple[Scalar, ...]:
    """Return the expressions that an expression is directly made of."""
    match scalar:
        case Plus(left, right) | Times(left, right):
            return left, right
        case Guard(_, body) | Reduce(body=body):
            return (body,)
        case Apply(_, argument):
            return (argument,)
        case Compare(_, left, right):
            return left, right
        case Choose(condition, chosen, other):
            return condition, chosen, other
        case At(integer=integer, body=body):
            return integer, body
        case _:
            return ()


_fresh = itertools.count()
_Where: TypeAlias = Callable[..., Sequence[Condition]]


def _reduce(is_max: bool, extents: Sequence[Dim], body: Callable[..., tuple[Sequence[Condition], Scalar]]) -> Scalar:
    names = [f"k{next(_fresh)}" for _ in extents]
    # An axis of size one needs no bound index.
    indices: list[Dim] = [0 if extent == 1 else symbol(name) for name, extent in zip(names, extents, strict=True)]
    conditions, inner = body(*indices)
    binders = tuple(Binder(name, extent) for name, extent in zip(names, extents, strict=True) if extent != 1)
    return Reduce(is_max, binders, tuple(conditions), body=inner)


def total(extents: Sequence[Dim], body: Callable[..., Scalar], where: _Where | None = None) -> Scalar:
    """Return the sum of ``body(*indices)`` over all indices within ``extents`` at which ``where(*indices)`` holds."""
    return _reduce(False, extents, lambda *ix: ((where(*ix) if where else ()), body(*ix)))


def greatest(extents: Sequence[Dim], body: Callable[..., Scalar], where: _Where | None = None) -> Scalar:
    """Return the maximum of ``body(*indices)``, with arguments as in :func:`total`."""
    return _reduce(True, extents, lambda *ix: ((where(*ix) if where else ()), body(*ix)))


def looked_up(integer: Scalar, extent: Dim, wraps: Dim, body: Callable[[Dim], Scalar]) -> Scalar:
    """Return ``body(place)`` at the place among ``extent`` that an integer stands for; see :class:`At`."""
    name = f"k{next(_fresh)}"
    return At(name, integer, extent, wraps, body(symbol(name)))


def reciprocal(scalar: Scalar) -> Scalar:
    """Return ``1 / scalar``."""
    return Apply("reciprocal", scalar)


def number(value: float | Fraction | Poly) -> Scalar:
    """Return a finite Python number as an exact rational; in a rule, a number attribute may be a symbol."""
    return SizeOf(value) if isinstance(value, Poly) else Number(Fraction(value))


@dataclass(frozen=True)
class Operand:
    """An input inside a definition: a type, and a way to read an element."""

    type: TensorType
    read: Callable[[tuple[Dim, ...]], Scalar]

    def __call__(self, *index: Dim) -> Scalar:
        return self.read(index)

    @property
    def shape(self) -> Shape:
        """The shape of the type."""
        return self.type.shape


Index: TypeAlias = tuple[Dim, ...]
