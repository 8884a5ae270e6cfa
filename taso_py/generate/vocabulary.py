"""Vocabularies of the enumerator: operators with attribute values, over a few variables of small sizes.

A vocabulary (:mod:`taso_py.generate.sets`) is a set of families; a family is a set of variables and of productions
whose terms are enumerated together, up to its own number of operators. Sizes are small and pairwise distinct where
confusing them would make two different terms agree; surviving candidates are generalized to all sizes later.

Invariant: a family lists operators, never rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from taso_py.ir.errors import ShapeError
from taso_py.ir.sign import Sign
from taso_py.ir.types import DType, TensorType
from taso_py.ops.base import TensorOperator, plain_axis
from taso_py.ops.evaluate import Domain
from taso_py.ops.movement import Concat, Slice

LARGEST = 512
"""Most elements of a term, where a family does not say otherwise."""
DATA = "d"
"""Role of values that change from run to run: activations, images."""
WEIGHT = "w"
"""Role of fixed values: weights, biases, scales."""
CONSTANT = "c"
"""Role of a number in a formula."""
FUSED = "f"
"""Role of a fused operator's result: nothing is built upon it."""
STATISTIC = "s"
"""Role of values that relate or summarize rows."""
MASK = "m"
"""Role of values added to attention scores."""
EITHER = "."
"""As an operand's role: anything."""
GIVEN = "g"
"""As an operand's role: a variable, not a computed value."""


@dataclass(frozen=True)
class Half:
    """A pseudo-operator: the first or second half of an axis of even size, a slice at the boundary of a concat."""

    axis: int
    side: int

    @property
    def text(self) -> str:
        return f"half{{axis={self.axis}, side={self.side}}}"

    def at(self, types: Sequence[TensorType]) -> TensorOperator:
        size = plain_axis(types[0], self.axis)
        if not isinstance(size, int) or size % 2:
            raise ShapeError(f"{types[0]} has no halves along axis {self.axis}")
        return Slice(self.axis, self.side * size // 2, (self.side + 1) * size // 2)


@dataclass(frozen=True)
class Production:
    """An operator that the enumerator may apply."""

    op: TensorOperator | Half
    roles: str
    """One letter per operand: a role, or ``EITHER`` or ``GIVEN``."""
    yields: str = ""
    """Role of the result; by default data if an operand is, else weight."""

    @property
    def arity(self) -> int:
        """Number of operands."""
        return len(self.roles)

    @property
    def commutative(self) -> bool:
        """True if the order of the operands has no meaning."""
        return isinstance(self.op, TensorOperator) and self.op.commutative

    @property
    def symmetric(self) -> bool:
        """True if exchanging two operands gives the same term: they commute, and have the same role."""
        return self.commutative and self.roles[0] == self.roles[1]

    @property
    def joins_or_splits(self) -> bool:
        """True for a concat or a slice, which decide how a merged result is split."""
        return isinstance(self.op, Half | Concat | Slice)

    def at(self, types: Sequence[TensorType]) -> TensorOperator:
        """Return the operator for operands of these types."""
        return self.op.at(types) if isinstance(self.op, Half) else self.op


@dataclass(frozen=True)
class Variables:
    """Variables ``letter1 .. letter<count>`` of one shape and role."""

    letter: str
    shape: tuple[int, ...]
    role: str
    count: int = 4
    number: float | None = None
    """For a constant, its value in the samples."""
    dtype: DType = DType.FLOAT
    """The type of the elements: numbers, truth values, or integers that choose rows."""
    sign: Sign = Sign.ANY
    """The sign of the elements; of rules that hold of all numbers too, the more general form is returned."""


@dataclass(frozen=True)
class Family:
    """Variables and productions whose terms are enumerated together."""

    name: str
    variables: tuple[Variables, ...]
    productions: tuple[Production, ...]
    operators: int
    """Most operator instances of a term."""
    split_axes: tuple[int, ...] = ()
    """Axes along which the two halves of a term may be the two outputs of a source."""
    axes: int = 1
    """Number of axes, from the last, to which rules are transferred; for families that move data along the last axis
    only."""
    every: bool = False
    """True if every term is built upon, not one per class of equal terms, so that all forms are found."""
    equal: int | None = None
    """In a large family, most operators of a side up to which rules are wanted that gain nothing by themselves."""
    narrow: bool = False
    """True if rules are wanted too that hold of slices and windows at particular places only: of the first elements, of
    one element, without padding."""
    domain: Domain = Domain.EXACT
    """The numbers on which terms are compared: real ones where it matters what a function or a fraction is."""
    shrinks: bool = False
    """True if only rules to a side of fewer operators are wanted, not those that add neutral operations."""
    faithful: bool = False
    """True if a rule is wanted only if the terms are an instance of it: not one that holds of neutral attributes, as
    of enlarging by a factor of one."""
    repeats: bool = False
    """True if rules are wanted in which both sides read a variable more than once, as those of squares do."""

    largest: int = LARGEST
    """Most elements of a term; more where many axes need sizes of their own."""

    @property
    def is_large(self) -> bool:
        """True if there are so many terms that candidates are generalized before they are tested."""
        return self.equal is not None


@dataclass(frozen=True)
class Written:
    """An elementwise operator whose definition is written out with simpler operators, in every order of its factors."""

    name: str
    op: TensorOperator
    is_factored: bool = False
    """True if a factor that all summands of a sum have stands before the sum."""


@dataclass(frozen=True)
class Folding:
    """Sources ``after(affine(x, w, ..), ..)`` for which the weights of an equal ``affine(x, w', b')`` are sought."""

    name: str
    affine: TensorOperator
    data: tuple[int, ...]
    weight: tuple[int, ...]
    after: tuple[tuple[TensorOperator, tuple[tuple[int, ...], ...]], ...]
    """Operators applied to the result, with the shapes of their other operands."""


def apply(roles: str, *ops: TensorOperator | Half) -> tuple[Production, ...]:
    """Return productions of the same roles."""
    return tuple(Production(op, roles) for op in ops)


def halves(*axes: int) -> tuple[Production, ...]:
    """Return productions of both halves along each axis."""
    return apply(EITHER, *(Half(axis, side) for axis in axes for side in (0, 1)))
