"""Data movement: concat, slice, flip, diagonals, permute, reshape, expand, upsampling, pad, enlarge, contiguous.

Invariant: every output element is one input element, or a fixed number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf, prod
from typing import TypeVar

from taso_py.ir.size import Dim, floordiv
from taso_py.ir.traits import Rounding
from taso_py.ir.types import Group, TensorType
from taso_py.ir.unify import STRICT, Unifier
from taso_py.ops.base import VARIADIC, TensorOperator, broadcast_read, check_operands, plain_axis, require
from taso_py.ops.scalar import Condition, Guard, Index, Operand, Scalar, number, within

_T = TypeVar("_T")


@dataclass(frozen=True)
class _Movement(TensorOperator):
    is_movement = True
    rounding = Rounding.NEVER


@dataclass(frozen=True)
class Concat(_Movement):
    """Concatenation of the operands along an axis."""

    name = "concat"
    keeps_format = True
    arity = (1, VARIADIC)
    axis: int

    def infer(self, inputs: Sequence[TensorType], unifier: Unifier = STRICT) -> tuple[TensorType, ...]:
        dtype = check_operands(self, inputs)
        first = inputs[0]
        length: Dim = 0
        for type_ in inputs:
            require(type_.rank == first.rank, "concat of operands that differ in rank")
            length = length + plain_axis(type_, self.axis)
            for axis in range(-first.rank, 0):
                if axis != self.axis:
                    unifier.equal(first.shape[axis], type_.shape[axis], "concat")
        return (TensorType(dtype, _with_axis(first.shape, self.axis, length)),)

    def define(self, operands: Sequence[Operand], out: Index) -> Scalar:
        start: Dim = 0
        parts: list[Scalar] = []
        for operand in operands:
            extent = plain_axis(operand.type, self.axis)
            at = out[self.axis] - start
            parts.append(Guard(within(at, extent), operand(*_with_axis(out, self.axis, at))))
            start = start + extent
        return _sum(parts)


def _sum(parts: Sequence[Scalar]) -> Scalar:
    """Return the sum of some numbers, of sums of equally many, so that it is not deep if there are many."""
    middle = (len(parts) + 1) // 2
    return parts[0] if len(parts) == 1 else _sum(parts[:middle]) + _sum(parts[middle:])


def _with_axis(items: Sequence[_T], axis: int, item: _T) -> tuple[_T, ...]:
    """Return a shape or index with one axis replaced; ``axis`` is negative."""
    at = len(items) + axis
    return (*items[:at], item, *items[at + 1 :])


@dataclass(frozen=True)
class Slice(_Movement):
    """Elements ``start, start + step, ... < stop`` along an axis, with ``0 <= start <= stop <= size``."""

    name = "slice"
    is_view = True
    keeps_format = True
    axis: int
    start: Dim
    stop: Dim
    step: int = 1

    def infer(self, inputs: Sequence[TensorType], unifier: Unifier = STRICT) -> tuple[TensorType, ...]:
        dtype = check_operands(self, inputs)
        extent = unifier.resolve(plain_axis(inputs[0], self.axis))
        for name, part in (("start", self.start), ("length", self.stop - self.start), ("stop", extent - self.stop)):
            require(not isinstance(part, int) or part >= 0, f"slice: {name} is out of range for size {extent}")
        length = floordiv(self.stop - self.start + self.step - 1, self.step)
        return (TensorType(dtype, _with_axis(inputs[0].shape, self.axis, length)),)

    def define(self, operands: Sequence[Operand], out: Index) -> Scalar:
        return operands[0](*_with_axis(out, self.axis, out[self.axis] * self.step + self.start))

    def legal(self) -> Iterator[Dim]:
        yield self.step - 1

    def fits(self, inputs: Sequence[TensorType]) -> Iterator[Dim]:
        yield from (self.start, self.stop - self.start, plain_axis(inputs[0], self.axis) - self.stop)


@dataclass(frozen=True)
class Flip(_Movement):
    """The elements in reverse order along ``axes``, which are negative, distinct and sorted."""

    name = "flip"
    keeps_format = True
    axes: tuple[int, ...]

    def __post_init__(self) -> None:
        if list(self.axes) != sorted(set(self.axes)) or any(axis >= 0 for axis in self.axes) or not self.axes:
            raise ValueError(f"axes {list(self.axes)} are not negative, distinct and sorted")

    def infer(self, inputs: Sequence[TensorType], unifier: Unifier = STRICT) -> tuple[TensorType, ...]:
        check_operands(self, inputs)
        for axis in self.axes:
            plain_axis(inputs[0], axis)
        return (inputs[0],)

    def define(self, operands: Sequence[Operand], out: Index) -> Scalar:
        (x,) = operands
        index = list(out)
        for axis in self.axes:
            index[axis] = plain_axis(x.type, axis) - 1 - out[axis]
        return x(*index)


@dataclass(frozen=True)
class Diagonal(_Movement):
    """The diagonals of the square matrices that the last two axes are."""

    name = "diagonal"
    is_view = True

    def infer(self, inputs: Sequence[TensorType], unifier: Unifier = STRICT) -> tuple[TensorType, ...]:
        dtype = check_operands(self, inputs)
        rows, columns = (plain_axis(inputs[0], axis) for axis in (-2, -1))
        unifier.equal(rows, columns, "diagonal")
        return (TensorType(dtype, inputs[0].shape[:-1]),)

    def define(self, operands: Sequence[Operand], out: Index) -> Scalar:
        return operands[0](*out, out[-1])


@dataclass(frozen=True)
class DiagonalMatrix(_Movement):
    """Square matrices, each with a row of the operand on its diagonal and zeros elsewhere."""

    name = "diagonal_matrix"
    fills = True

    def infer(self, inputs: Sequence[TensorType], unifier: Unifier = STRICT) -> tuple[TensorType, ...]:
        dtype = check_operands(self, inputs)
        return (TensorType(dtype, (*inputs[0].shape, plain_axis(inputs[0], -1))),)

    def define(self, operands: Sequence[Operand], out: Index) -> Scalar:
        *rows, column = out
        return Guard((Condition(rows[-1] - column, is_equality=True),), operands[0](*rows))


@dataclass(frozen=True)
class Permute(_Movement):
    """Permutation of the last axes: ``order`` lists, for each of them, the (negative) input axis that becomes it.

    Leading axes that stay in place are not listed, so ``order=[-1,-2]`` transposes the matrices of a stack of any rank.
    """

    name = "permute"
    is_view = True
    order: tuple[int, ...]

    def __post_init__(self) -> None:
        if sorted(self.order) != list(range(-len(self.order), 0)):
            raise ValueError(f"order {list(self.order)} is not a permutation of the last axes")

    def infer(self, inputs: Sequence[TensorType], unifier: Unifier = STRICT) -> tuple[TensorType, ...]:
        dtype = check_operands(self, inputs)
        shape = inputs[0].shape
        moved = tuple(plain_axis(inputs[0], axis) for axis in self.order)
        return (TensorType(dtype, shape[: len(shape) - len(moved)] + moved),)

    def define(self, operands: Sequence[Operand], out: Index) -> Scalar:
        lead = len(out) - len(self.order)
        index = list(out)
        for position, axis in enumerate(self.order):
            index[axis] = out[lead + position]
        return operands[0](*index)


@dataclass(frozen=True)
class Reshape(_Movement):
    """The elements in row-major order, under another shape.

    Dimensions correspond in runs of equal product: each run is a merge of input axes followed by a split.
    """

    name = "reshape"
    is_view = True
    shape: tuple[Dim, ...]

    def infer(self, inputs: Sequence[TensorType], unifier: Unifier = STRICT) -> tuple[TensorType, ...]:
        dtype = check_operands(self, inputs)
        require(not any(isinstance(axis, Group) for axis in inputs[0].shape), "reshape of an axis group")
        before = unifier.resolve(prod([plain_axis(inputs[0], axis) for axis in range(-inputs[0].rank, 0)]))
        unifier.equal(before, prod(self.shape), "reshape")
        return (TensorType(dtype, self.shape),)

    def define(self, operands: Sequence[Operand], out: Index) -> Scalar:
        (x,) = operands
        shape = [plain_axis(x.type, axis) for axis in range(-x.type.rank, 0)]
        index: list[Dim] = []
        for sources, targets in runs(shape, self.shape):
            index += _split(_merge(out[targets], self.shape[targets]), shape[sources])
        return x(*index)


def runs(before: Sequence[Dim], after: Sequence[Dim]) -> list[tuple[slice, slice]]:
    """Return the shortest runs of axes of equal product that a reshape merges and splits; they cover all axes."""
    found: list[tuple[slice, slice]] = []
    i = j = 0
    while i < len(before) or j < len(after):
        for width in range(1, len(before) - i + len(after) - j + 1):
            pairs = [(i + a, j + width - a) for a in range(min(width, len(before) - i), -1, -1)]
            fits = [(a, b) for a, b in pairs if b <= len(after) and prod(before[i:a]) == prod(after[j:b])]
            if fits:
                found.append((slice(i, fits[0][0]), slice(j, fits[0][1])))
                i, j = fits[0]
                break
        else:  # for an empty value, the remaining sizes of both sides may differ in their product
            found.append((slice(i, len(before)), slice(j, len(after))))
            break
    return found


def _merge(index: Sequence[Dim], sizes: Sequence[Dim]) -> Dim:
    """Return the row-major position of an index."""
    place: Dim = 0
    for i, size in zip(index, sizes, strict=True):
        place = place * size + i
    return place


def _split(place: Dim, sizes: Sequence[Dim]) -> list[Dim]:
    """Return the index of a row-major position."""
    if len(sizes) <= 1:
        return [place] * len(sizes)
    if 0 in sizes:
        return [0] * len(sizes)  # there is no element to find
    index: list[Dim] = []
    for axis, size in enumerate(sizes):
        quotient = floordiv(place, prod(sizes[axis + 1 :]))
        index.append(0 if size == 1 else quotient if axis == 0 else quotient - floordiv(quotient, size) * size)
    return index


@dataclass(frozen=True)
class Expand(_Movement):
    """Broadcasting to a shape."""

    name = "expand"
    is_elementwise = True
    is_view = True
    shape: tuple[Dim, ...]

    def infer(self, inputs: Sequence[TensorType], unifier: Unifier = STRICT) -> tuple[TensorType, ...]:
        dtype = check_operands(self, inputs)
        require(inputs[0].rank <= len(self.shape), f"{inputs[0]} has more axes than the shape to expand to")
        for axis in range(-inputs[0].rank, 0):
            if inputs[0].shape[axis] != 1:
                unifier.equal(inputs[0].shape[axis], self.shape[axis], "expand")
        return (TensorType(dtype, self.shape),)

    def define(self, operands: Sequence[Operand], out: Index) -> Scalar:
        return broadcast_read(operands[0], self.shape, out)


@dataclass(frozen=True)
class UpsampleNearest2d(_Movement):
    """An image ``x[n, c, h, w]`` enlarged by whole ``factors``: every element becomes a rectangle of copies of it."""

    name = "upsample_nearest2d"
    has_channels = True
    keeps_format = True
    factors: tuple[Dim, Dim]

    def infer(self, inputs: Sequence[TensorType], unifier: Unifier = STRICT) -> tuple[TensorType, ...]:
        dtype = check_operands(self, inputs)
        require(dtype.is_floating and inputs[0].rank == 4, f"{self.name} needs floats of rank 4, not {inputs[0]}")
        *lead, rows, columns = (plain_axis(inputs[0], axis) for axis in range(-4, 0))
        return (TensorType(dtype, (*lead, rows * self.factors[0], columns * self.factors[1])),)

    def define(self, operands: Sequence[Operand], out: Index) -> Scalar:
        places = (floordiv(i, factor) for i, factor in zip(out[-2:], self.factors, strict=True))
        return operands[0](*out[:2], *places)

    def legal(self) -> Iterator[Dim]:
        yield from (factor - 1 for factor in self.factors)


@dataclass(frozen=True)
class Pad(_Movement):
    """Padding of the last axes with a number: ``widths`` holds (before, after) for each, none of them negative."""

    name = "pad"
    fills = True
    keeps_format = True
    widths: tuple[tuple[Dim, Dim], ...]
    value: int | float = 0.0

    def __post_init__(self) -> None:
        if not -inf < self.value < inf:
            raise ValueError(f"pad needs a finite value, not {self.value}")
        if any(isinstance(width, int) and width < 0 for width in self.legal()):
            raise ValueError(f"pad cannot cut off (slice does), as widths of {self.widths} would")

    def infer(self, inputs: Sequence[TensorType], unifier: Unifier = STRICT) -> tuple[TensorType, ...]:
        dtype = check_operands(self, inputs)
        shape = inputs[0].shape
        padded = [
            before + plain_axis(inputs[0], axis - len(self.widths)) + after
            for axis, (before, after) in enumerate(self.widths)
        ]
        return (TensorType(dtype, shape[: len(shape) - len(padded)] + tuple(padded)),)

    def define(self, operands: Sequence[Operand], out: Index) -> Scalar:
        (x,) = operands
        lead = len(out) - len(self.widths)
        index = [*out[:lead], *(i - before for i, (before, _) in zip(out[lead:], self.widths, strict=True))]
        conditions: list[Condition] = []
        for axis, widths in enumerate(self.widths, start=-len(self.widths)):
            if widths != (0, 0):
                conditions += within(index[axis], plain_axis(x.type, axis))
        if self.value == 0:
            return Guard(tuple(conditions), x(*index))
        return number(self.value) + Guard(tuple(conditions), x(*index) - number(self.value))

    def legal(self) -> Iterator[Dim]:
        yield from (width for widths in self.widths for width in widths)


@dataclass(frozen=True)
class Enlarge(_Movement):
    """A convolution kernel ``w[o, c, kh, kw]`` centred in zeros to the size ``kernel`` (SOSP 2019, table 1).

    The sizes grow by an even number each, so that the centre is well defined.
    """

    name = "enlarge"
    fills = True
    kernel: tuple[Dim, Dim]

    def infer(self, inputs: Sequence[TensorType], unifier: Unifier = STRICT) -> tuple[TensorType, ...]:
        dtype = check_operands(self, inputs)
        require(inputs[0].rank == 4, f"enlarge needs a kernel of rank 4, not {inputs[0]}")
        for axis, target in zip((-2, -1), self.kernel, strict=True):
            growth = target - unifier.resolve(plain_axis(inputs[0], axis))
            unifier.equal(floordiv(growth, 2) * 2, growth, "enlarge, which grows each side by the same amount")
            require(not isinstance(growth, int) or growth >= 0, "enlarge cannot shrink a kernel")
        return (TensorType(dtype, (*inputs[0].shape[:2], *self.kernel)),)

    def define(self, operands: Sequence[Operand], out: Index) -> Scalar:
        (w,) = operands
        sizes = [plain_axis(w.type, axis) for axis in (-2, -1)]
        at = [i - floordiv(k - s, 2) for i, k, s in zip(out[-2:], self.kernel, sizes, strict=True)]
        conditions = [condition for i, s in zip(at, sizes, strict=True) for condition in within(i, s)]
        return Guard(tuple(conditions), w(*out[:2], *at))

    def fits(self, inputs: Sequence[TensorType]) -> Iterator[Dim]:
        yield from (k - plain_axis(inputs[0], axis) for k, axis in zip(self.kernel, (-2, -1), strict=True))


@dataclass(frozen=True)
class Contiguous(_Movement):
    """A dense row-major copy of the operand: a request about memory layout, the identity by its definition."""

    name = "contiguous"
    is_elementwise = True

    def infer(self, inputs: Sequence[TensorType], unifier: Unifier = STRICT) -> tuple[TensorType, ...]:
        check_operands(self, inputs)
        return (inputs[0],)

    def define(self, operands: Sequence[Operand], out: Index) -> Scalar:
        return operands[0](*out)
