"""Reductions along axes: sum, mean, max, norms of vectors; and running sums along one axis.

Invariant: ``axes`` are negative, distinct and sorted; a reduced axis stays with size 1 where ``keepdim``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from taso_py.ir.size import Dim
from taso_py.ir.traits import Rounding
from taso_py.ir.types import TensorType
from taso_py.ir.unify import STRICT, Unifier
from taso_py.ops.base import TensorOperator, check_operands, plain_axis, require
from taso_py.ops.elementwise import Abs
from taso_py.ops.scalar import Apply, Condition, Index, Operand, Scalar, SizeOf, greatest, reciprocal, total


@dataclass(frozen=True)
class _Reduction(TensorOperator):
    reads_formats = True

    axes: tuple[int, ...]
    keepdim: bool = False

    def __post_init__(self) -> None:
        if list(self.axes) != sorted(set(self.axes)) or any(axis >= 0 for axis in self.axes) or not self.axes:
            raise ValueError(f"axes {list(self.axes)} are not negative, distinct and sorted")

    def infer(self, inputs: Sequence[TensorType], unifier: Unifier = STRICT) -> tuple[TensorType, ...]:
        dtype = check_operands(self, inputs)
        require(dtype.is_floating, f"{self.name} is defined on floating-point operands")
        (x,) = inputs
        for axis in self.axes:
            plain_axis(x, axis)
        kept = [
            1 if axis in self.axes else x.shape[axis]
            for axis in range(-x.rank, 0)
            if self.keepdim or axis not in self.axes
        ]
        return (TensorType(dtype, tuple(kept)),)

    def _reduce(self, combine: Callable[..., Scalar], x: Operand, out: Index) -> Scalar:
        kept = iter(out)
        index: list[Dim] = []
        for axis in range(-x.type.rank, 0):
            if axis not in self.axes or self.keepdim:
                index.append(next(kept))
            else:
                index.append(0)

        def element(*reduced: Dim) -> Scalar:
            for axis, i in zip(self.axes, reduced, strict=True):
                index[axis] = i
            return x(*index)

        return combine(self._extents(x), element)

    def _extents(self, x: Operand) -> list[Dim]:
        return [plain_axis(x.type, axis) for axis in self.axes]


@dataclass(frozen=True)
class Sum(_Reduction):
    """The sum over the axes."""

    name = "sum"
    accumulates = True
    rounding = Rounding.BEYOND_INTEGERS

    def define(self, operands: Sequence[Operand], out: Index) -> Scalar:
        return self._reduce(total, operands[0], out)


@dataclass(frozen=True)
class Mean(_Reduction):
    """The mean over the axes."""

    name = "mean"
    accumulates = True

    def define(self, operands: Sequence[Operand], out: Index) -> Scalar:
        count: Dim = 1
        for extent in self._extents(operands[0]):
            count = count * extent
        return self._reduce(total, operands[0], out) * reciprocal(SizeOf(count))


@dataclass(frozen=True)
class Max(_Reduction):
    """The greatest element over the axes."""

    name = "max"
    rounding = Rounding.NEVER

    def define(self, operands: Sequence[Operand], out: Index) -> Scalar:
        return self._reduce(greatest, operands[0], out)


@dataclass(frozen=True)
class VectorNorm(_Reduction):
    """The root of the sum of the squares over the axes; of order 1, the sum of the magnitudes."""

    name = "vector_norm"
    applies = frozenset({"sqrt"})
    order: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.order not in (1, 2):
            raise ValueError(f"vector_norm knows the orders 1 and 2, not {self.order}")

    def define(self, operands: Sequence[Operand], out: Index) -> Scalar:
        def powers(extents: Sequence[Dim], element: Callable[..., Scalar]) -> Scalar:
            return total(extents, lambda *index: self._power(element(*index)))

        found = self._reduce(powers, operands[0], out)
        return found if self.order == 1 else Apply("sqrt", found)

    def _power(self, x: Scalar) -> Scalar:
        return Abs().scalar(x) if self.order == 1 else x * x


@dataclass(frozen=True)
class Cumsum(TensorOperator):
    """The running sums along an axis: each element is the sum of those up to its place."""

    name = "cumsum"
    accumulates = True
    rounding = Rounding.BEYOND_INTEGERS
    axis: int

    def infer(self, inputs: Sequence[TensorType], unifier: Unifier = STRICT) -> tuple[TensorType, ...]:
        dtype = check_operands(self, inputs)
        require(dtype.is_floating, f"{self.name} is defined on floating-point operands")
        plain_axis(inputs[0], self.axis)
        return (inputs[0],)

    def define(self, operands: Sequence[Operand], out: Index) -> Scalar:
        (x,) = operands
        at = len(out) + self.axis

        def element(place: Dim) -> Scalar:
            return x(*out[:at], place, *out[at + 1 :])

        return total([plain_axis(x.type, self.axis)], element, lambda place: [Condition(out[at] - place)])
