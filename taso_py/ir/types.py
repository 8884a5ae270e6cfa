"""Types of values: an element type and a shape.

Invariant: types are immutable, compare by content and print as the grammar of :mod:`taso_py.ir.text` reads them,
e.g. ``f32[1,3,224,224]`` in a model and ``float[..B,M,2*K]`` in a rule.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TypeAlias

from taso_py.ir.size import Dim, Open, Poly, at_example, is_never_negative, open_sizes, substitute, symbols


class DType(enum.Enum):
    """An element type.

    ``FLOAT`` and ``INT`` occur in rules only: one arbitrary floating-point type throughout the rule, and for each
    variable a type of integers that PyTorch takes for an index.
    """

    FLOAT = "float"
    INT = "int"
    F16 = "f16"
    BF16 = "bf16"
    F32 = "f32"
    F64 = "f64"
    BOOL = "bool"
    U8 = "u8"
    I8 = "i8"
    I16 = "i16"
    I32 = "i32"
    I64 = "i64"
    U16 = "u16"
    U32 = "u32"
    U64 = "u64"
    C64 = "c64"
    C128 = "c128"
    F8E4M3 = "f8e4m3"
    F8E5M2 = "f8e5m2"

    @property
    def is_floating(self) -> bool:
        """True if rules (which are about real numbers) may be applied at this element type."""
        return self in _FLOATING

    @property
    def is_generic(self) -> bool:
        """True if it stands for several types, in a rule."""
        return self in (DType.FLOAT, DType.INT)

    @property
    def is_index(self) -> bool:
        """True if elements are integers that PyTorch takes for an index; it takes ``u8`` for a mask."""
        return self in _INDEX

    @property
    def is_complex(self) -> bool:
        """True if elements are complex numbers."""
        return self in (DType.C64, DType.C128)

    def holds(self, other: DType) -> bool:
        """Return whether every value of a type of floating-point numbers is one of this type too."""
        return self is other or self in _WIDER.get(other, ())

    def __str__(self) -> str:
        return self.value

    # There is one of each in a process. What Enum has instead hashes the name, in Python, wherever a type is looked up.
    __hash__ = object.__hash__


_FLOATING = frozenset({DType.FLOAT, DType.F16, DType.BF16, DType.F32, DType.F64})
_WIDER: Mapping[DType, Collection[DType]] = {
    DType.F16: (DType.F32, DType.F64),
    DType.BF16: (DType.F32, DType.F64),
    DType.F32: (DType.F64,),
}
_INDEX = frozenset({DType.INT, DType.I32, DType.I64})


@dataclass(frozen=True, slots=True)
class Group:
    """An axis group ``..B``: any number of leading axes, none included, that an operator leaves alone.

    A proof treats a group as one axis: every operator admits a group only where it maps the axes to themselves, so
    that flattening them changes nothing.
    """

    name: str

    def __str__(self) -> str:
        return f"..{self.name}"


Axis: TypeAlias = int | Poly | Group
Shape: TypeAlias = tuple[Axis, ...]


@dataclass(frozen=True)
class TensorType:
    """Element type and shape of one tensor value."""

    dtype: DType
    shape: Shape

    def __post_init__(self) -> None:
        if any(isinstance(axis, Group) for axis in self.shape[1:]):
            raise ValueError(f"an axis group must come first: {self.text}")
        if any(isinstance(axis, int) and axis < 0 for axis in self.shape):
            raise ValueError(f"a dimension is negative: {self.text}")

    @cached_property
    def text(self) -> str:
        """The type as the grammar writes it."""
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"

    def __str__(self) -> str:
        return self.text

    @property
    def rank(self) -> int:
        """Number of axes, a group counting as one."""
        return len(self.shape)

    @cached_property
    def is_concrete(self) -> bool:
        """True if every dimension is a plain integer and the element type is not a generic one."""
        return not self.dtype.is_generic and all(isinstance(axis, int) for axis in self.shape)

    @cached_property
    def may_be_empty(self) -> bool:
        """True if an axis has size 0, or might have it for some choice of the open sizes.

        A rule's own sizes are at least 1: so its proof takes them to be.
        """
        return any(axis == 0 or (isinstance(axis, Poly) and _may_vanish(axis)) for axis in self.shape)

    @cached_property
    def dims(self) -> tuple[Dim, ...]:
        """The shape of a type without an axis group.

        Raises:
            TypeError: it has one.
        """
        dims = tuple(axis for axis in self.shape if not isinstance(axis, Group))
        if len(dims) != len(self.shape):
            raise TypeError(f"{self.text} has an axis group")
        return dims

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The shape as integers, open sizes set to their values in the example inputs.

        Raises:
            TypeError: the type is a rule's.
        """
        numbers = tuple(size for size in map(at_example, self.dims) if isinstance(size, int))
        if len(numbers) != len(self.shape):
            raise TypeError(f"{self.text} has symbolic dimensions")
        return numbers

    @cached_property
    def elements(self) -> int:
        """The number of elements, open sizes set to their values in the example inputs.

        Raises:
            TypeError: the type is a rule's.
        """
        return prod(self.sizes)

    @cached_property
    def open(self) -> frozenset[Open]:
        """The open sizes that occur."""
        return frozenset().union(*(open_sizes(axis) for axis in self.shape if not isinstance(axis, Group)))

    @cached_property
    def at_example(self) -> TensorType:
        """The type with every open size set to its value in the example inputs."""
        return TensorType(self.dtype, self.sizes) if self.open else self

    @cached_property
    def symbols(self) -> frozenset[str]:
        """The names of the size variables that occur, groups not counted."""
        return frozenset().union(*(symbols(axis) for axis in self.shape if not isinstance(axis, Group)))

    def substitute(self, bindings: Mapping[str, Dim]) -> TensorType:
        """Return this type with size variables replaced."""
        shape = tuple(axis if isinstance(axis, Group) else substitute(axis, bindings) for axis in self.shape)
        return TensorType(self.dtype, shape)


def _may_vanish(size: Poly) -> bool:
    return bool(size.open) and not is_never_negative(size - 1)
