"""Pooling over two-dimensional windows.

Invariant: a window that reaches into the padding averages over zeros or ignores it (``count_include_pad``), and
maximises over what is inside only. Where the number of windows is rounded up (``ceil``), the last one may reach beyond
the padding, and averages over what is inside of that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from taso_py.ir.size import Dim, floordiv
from taso_py.ir.traits import Rounding
from taso_py.ir.types import TensorType
from taso_py.ir.unify import STRICT, Unifier
from taso_py.ops.base import TensorOperator, check_operands, plain_axis, require
from taso_py.ops.contraction import guard_padding, window_count, window_spans
from taso_py.ops.scalar import Condition, Index, Operand, Scalar, SizeOf, greatest, number, reciprocal, total


@dataclass(frozen=True)
class _OnImages(TensorOperator):
    has_channels = True
    keeps_format = True


@dataclass(frozen=True)
class _Pool(_OnImages):
    kernel: tuple[Dim, Dim]
    stride: tuple[Dim, Dim]
    padding: tuple[Dim, Dim] = (0, 0)
    ceil: bool = field(default=False, kw_only=True)

    @property
    def _dilation(self) -> tuple[Dim, Dim]:
        return (1, 1)

    def infer(self, inputs: Sequence[TensorType], unifier: Unifier = STRICT) -> tuple[TensorType, ...]:
        dtype = check_operands(self, inputs)
        require(dtype.is_floating and inputs[0].rank == 4, f"{self.name} needs floats of rank 4, not {inputs[0]}")
        lead = (plain_axis(inputs[0], -4), plain_axis(inputs[0], -3))
        windows = zip((-2, -1), self.kernel, self.stride, self.padding, self._dilation, strict=True)
        for room in self._room():
            require(not isinstance(room, int) or room >= 0, f"{self.name}: a window may lie beyond the padding")
        spatial = [
            window_count(plain_axis(inputs[0], axis), k, s, padding=p, dilation=d, rounds_up=self.ceil)
            for axis, k, s, p, d in windows
        ]
        return (TensorType(dtype, (*lead, *spatial)),)

    def legal(self) -> Iterator[Dim]:
        yield from (at_least_one - 1 for at_least_one in (*self.kernel, *self.stride, *self._dilation))
        yield from self.padding

    def fits(self, inputs: Sequence[TensorType]) -> Iterator[Dim]:
        yield from window_spans(inputs[0], self.kernel, self.padding, self._dilation)
        # PyTorch's own limit (torch.nn.MaxPool2d): padding is at most half of the kernel, whatever the dilation.
        yield from (k - 2 * p for k, p in zip(self.kernel, self.padding, strict=True))
        yield from self._room()

    def _room(self) -> Iterator[Dim]:
        """Yield what must not be negative so that even the last of the windows begins before the padding at the end."""
        if self.ceil:
            windows = zip(self.kernel, self.stride, self.padding, self._dilation, strict=True)
            yield from (d * (k - 1) + 1 - s - p for k, s, p, d in windows)

    def _at(self, out: Index, u: Dim, v: Dim) -> tuple[Dim, Dim]:
        row, column = (
            i * s + w * d - p
            for i, s, w, d, p in zip(out[-2:], self.stride, (u, v), self._dilation, self.padding, strict=True)
        )
        return row, column

    def _inside(self, x: TensorType, out: Index, u: Dim, v: Dim) -> tuple[Condition, ...]:
        return guard_padding(self._at(out, u, v), x, (1, 1) if self.ceil else self.padding)


@dataclass(frozen=True)
class AvgPool2d(_Pool):
    """The mean of each window."""

    name = "avg_pool2d"
    accumulates = True
    count_include_pad: bool = True

    def define(self, operands: Sequence[Operand], out: Index) -> Scalar:
        (x,) = operands

        def inside(u: Dim, v: Dim) -> tuple[Condition, ...]:
            return self._inside(x.type, out, u, v)

        window = total(self.kernel, lambda u, v: x(*out[:2], *self._at(out, u, v)), inside)
        is_padded = any(pad != 0 for pad in self.padding)
        if not self.ceil and (self.count_include_pad or not is_padded):
            return window * reciprocal(SizeOf(self.kernel[0] * self.kernel[1]))

        def before_end(u: Dim, v: Dim) -> tuple[Condition, ...]:
            places = zip((-2, -1), self._at(out, u, v), self.padding, strict=True)
            return tuple(Condition(plain_axis(x.type, axis) + pad - 1 - place) for axis, place, pad in places)

        counted = before_end if is_padded and self.count_include_pad else inside
        return window * reciprocal(total(self.kernel, lambda _u, _v: number(1), counted))


@dataclass(frozen=True)
class MaxPool2d(_Pool):
    """The greatest element of each window; padding counts as minus infinity."""

    name = "max_pool2d"
    rounding = Rounding.NEVER
    dilation: tuple[Dim, Dim] = (1, 1)

    @property
    def _dilation(self) -> tuple[Dim, Dim]:
        return self.dilation

    def define(self, operands: Sequence[Operand], out: Index) -> Scalar:
        (x,) = operands
        return greatest(
            self.kernel,
            lambda u, v: x(*out[:2], *self._at(out, u, v)),
            lambda u, v: self._inside(x.type, out, u, v),
        )


@dataclass(frozen=True)
class AdaptiveAvgPool2d(_OnImages):
    """Means over windows that divide the image into ``size``: window i is ``floor(i*H/size) .. ceil((i+1)*H/size)``."""

    name = "adaptive_avg_pool2d"
    accumulates = True
    size: tuple[Dim, Dim]

    def infer(self, inputs: Sequence[TensorType], unifier: Unifier = STRICT) -> tuple[TensorType, ...]:
        dtype = check_operands(self, inputs)
        require(dtype.is_floating and inputs[0].rank == 4, f"{self.name} needs floats of rank 4, not {inputs[0]}")
        return (TensorType(dtype, (plain_axis(inputs[0], -4), plain_axis(inputs[0], -3), *self.size)),)

    def define(self, operands: Sequence[Operand], out: Index) -> Scalar:
        (x,) = operands
        extents = (plain_axis(x.type, -2), plain_axis(x.type, -1))

        def inside(*at: Dim) -> list[Condition]:
            return [
                condition
                for i, place, extent, windows in zip(out[-2:], at, extents, self.size, strict=True)
                if windows != 1
                for condition in (
                    Condition(place - floordiv(i * extent, windows)),
                    Condition(floordiv((i + 1) * extent + windows - 1, windows) - 1 - place),
                )
            ]

        window = total(extents, lambda u, v: x(*out[:2], u, v), inside)
        if self.size == (1, 1):
            return window * reciprocal(SizeOf(extents[0] * extents[1]))
        return window * reciprocal(total(extents, lambda _u, _v: number(1), inside))

    def legal(self) -> Iterator[Dim]:
        yield from (windows - 1 for windows in self.size)
