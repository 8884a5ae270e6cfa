"""Images enlarged by interpolation between their elements.

A result that lies between two elements is a mean of them. Its weights are fractions with one denominator, the number of
steps from one element to the next: so it is the mean over so many steps, each of which stands for the element before.

Invariant: no weight depends on an element, and all of them together are one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from taso_py.ir.size import Dim, floordiv
from taso_py.ir.types import TensorType
from taso_py.ir.unify import STRICT, Unifier
from taso_py.ops.base import TensorOperator, check_operands, plain_axis, require
from taso_py.ops.scalar import Index, Operand, Scalar, SizeOf, reciprocal, total


@dataclass(frozen=True)
class UpsampleBilinear2d(TensorOperator):
    """An image ``x[n, c, h, w]`` enlarged by whole ``factors``, linearly interpolated along both axes.

    Elements are the middles of pixels, and an image goes on beyond the outer ones as it ends; with ``align_corners``,
    the outer elements of image and result lie at the same places instead.
    """

    name = "upsample_bilinear2d"
    has_channels = True
    keeps_format = True
    accumulates = True
    factors: tuple[Dim, Dim]
    align_corners: bool = False

    def infer(self, inputs: Sequence[TensorType], unifier: Unifier = STRICT) -> tuple[TensorType, ...]:
        dtype = check_operands(self, inputs)
        require(dtype.is_floating and inputs[0].rank == 4, f"{self.name} needs floats of rank 4, not {inputs[0]}")
        lead = (plain_axis(inputs[0], -4), plain_axis(inputs[0], -3))
        spatial = [extent * factor for extent, factor in self._axes(inputs[0])]
        is_point = self.align_corners and 1 in spatial
        require(not is_point, f"{self.name}: there is nothing between the corners of one element")
        return (TensorType(dtype, (*lead, *spatial)),)

    def define(self, operands: Sequence[Operand], out: Index) -> Scalar:
        (x,) = operands
        axes = self._axes(x.type)
        steps = [self._steps(extent, factor) for extent, factor in axes]

        def element(*at: Dim) -> Scalar:
            places = [self._place(i, t, *axis) for i, t, axis in zip(out[-2:], at, axes, strict=True)]
            return x(*out[:2], *places)

        return total(steps, element) * reciprocal(SizeOf(steps[0] * steps[1]))

    def legal(self) -> Iterator[Dim]:
        yield from (factor - 1 for factor in self.factors)

    def fits(self, inputs: Sequence[TensorType]) -> Iterator[Dim]:
        if self.align_corners:
            yield from (extent * factor - 2 for extent, factor in self._axes(inputs[0]))

    def _axes(self, x: TensorType) -> list[tuple[Dim, Dim]]:
        return [(plain_axis(x, axis), factor) for axis, factor in zip((-2, -1), self.factors, strict=True)]

    def _steps(self, extent: Dim, factor: Dim) -> Dim:
        """Return the number of steps from one element to the next; results lie at whole ones."""
        return extent * factor - 1 if self.align_corners else 2 * factor

    def _place(self, i: Dim, step: Dim, extent: Dim, factor: Dim) -> Dim:
        """Return the element that lies before element ``i`` of the result and some steps."""
        steps = self._steps(extent, factor)
        if self.align_corners:
            return floordiv(i * (extent - 1) + step, steps)
        place = floordiv(2 * i + 1 - factor + step, steps)
        # From -1, before the first element, to the extent, beyond the last; each of these is the one beside it.
        return place - floordiv(place, extent)
