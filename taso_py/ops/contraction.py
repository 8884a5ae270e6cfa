"""Matrix products: matmul, baddbmm, linear, convolutions of images and volumes, transposed ones of images.

Invariant: every definition is a sum of products of one element of each of two operands, plus an optional third one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from taso_py.ir.size import Dim, Poly, floordiv
from taso_py.ir.traits import Rounding
from taso_py.ir.types import TensorType
from taso_py.ir.unify import STRICT, Unifier
from taso_py.ops.base import (
    TensorOperator,
    broadcast,
    broadcast_read,
    check_operands,
    plain_axis,
    require,
)
from taso_py.ops.scalar import Condition, Index, Operand, Scalar, number, total, within


@dataclass(frozen=True)
class _Contraction(TensorOperator):
    is_contraction = True
    accumulates = True
    multiplies = True
    rounding = Rounding.BEYOND_INTEGERS


@dataclass(frozen=True)
class Matmul(_Contraction):
    """``out[.., i, j] = sum_k a[.., i, k] * b[.., k, j]``; leading axes broadcast."""

    name = "matmul"
    arity = (2, 2)

    def infer(self, inputs: Sequence[TensorType], unifier: Unifier = STRICT) -> tuple[TensorType, ...]:
        dtype = check_operands(self, inputs)
        a, b = inputs
        m, k = plain_axis(a, -2), plain_axis(a, -1)
        unifier.equal(k, plain_axis(b, -2), self.name)
        lead = broadcast(a.shape[:-2], b.shape[:-2], unifier, self.name)
        return (TensorType(dtype, (*lead, m, plain_axis(b, -1))),)

    def define(self, operands: Sequence[Operand], out: Index) -> Scalar:
        a, b = operands
        lead, i, j = out[:-2], out[-2], out[-1]
        return total(
            [plain_axis(a.type, -1)],
            lambda k: _batched(a, b, lead, (i, k)) * _batched(b, a, lead, (k, j)),
        )


def _batched(operand: Operand, other: Operand, lead: Index, index: tuple[Dim, Dim]) -> Scalar:
    """Read a matrix of a batch that may be broadcast against another batch."""
    shape = operand.shape[:-2]
    own = lead[len(lead) - len(shape) :]
    beside = other.shape[:-2][-len(shape) :] if shape else ()
    padded = (None,) * (len(shape) - len(beside)) + tuple(beside)
    stretched = [a == 1 and b is not None and b != 1 for a, b in zip(shape, padded, strict=True)]
    return operand(*(0 if is_one else i for is_one, i in zip(stretched, own, strict=True)), *index)


@dataclass(frozen=True)
class Baddbmm(_Contraction):
    """``beta * c + alpha * (a @ b)`` of matrices, or of as many of each: the operands are ``c``, ``a`` and ``b``.

    ``c`` broadcasts to the product. Neither factor is 0: PyTorch does not read what it multiplies by 0.
    """

    name = "baddbmm"
    arity = (3, 3)
    rounding = Rounding.ANY
    beta: float | Poly = 1.0
    alpha: float | Poly = 1.0

    def __post_init__(self) -> None:
        if 0 in (self.beta, self.alpha):
            raise ValueError("baddbmm takes no factor of 0")

    def infer(self, inputs: Sequence[TensorType], unifier: Unifier = STRICT) -> tuple[TensorType, ...]:
        dtype = check_operands(self, inputs)
        summand, a, b = inputs
        require(dtype.is_floating and a.rank == b.rank in (2, 3), f"baddbmm of {a} and {b}")
        for left, right in zip(a.shape[:-2], b.shape[:-2], strict=True):
            unifier.equal(left, right, "baddbmm batch")
        unifier.equal(plain_axis(a, -1), plain_axis(b, -2), self.name)
        shape = (*a.shape[:-1], plain_axis(b, -1))
        require(summand.rank <= len(shape), f"baddbmm adds {summand} to a product of rank {len(shape)}")
        for axis, own in zip(broadcast(summand.shape, shape, unifier, self.name), shape, strict=True):
            unifier.equal(axis, own, "baddbmm: what is added does not broadcast to the product")
        return (TensorType(dtype, shape),)

    def define(self, operands: Sequence[Operand], out: Index) -> Scalar:
        summand, a, b = operands
        lead, i, j = out[:-2], out[-2], out[-1]
        shape = (*a.shape[:-1], plain_axis(b.type, -1))
        product = total([plain_axis(a.type, -1)], lambda k: a(*lead, i, k) * b(*lead, k, j))
        return number(self.beta) * broadcast_read(summand, shape, out) + number(self.alpha) * product


@dataclass(frozen=True)
class Linear(_Contraction):
    """``out[.., o] = sum_k x[.., k] * weight[o, k] + bias[o]``; the bias may be absent."""

    name = "linear"
    arity = (2, 3)

    def infer(self, inputs: Sequence[TensorType], unifier: Unifier = STRICT) -> tuple[TensorType, ...]:
        dtype = check_operands(self, inputs)
        x, weight = inputs[:2]
        require(weight.rank == 2, f"linear needs a matrix of weights, not {weight}")
        features = plain_axis(weight, -2)
        unifier.equal(plain_axis(x, -1), plain_axis(weight, -1), self.name)
        _check_bias(inputs, features, unifier, self.name)
        return (TensorType(dtype, (*x.shape[:-1], features)),)

    def define(self, operands: Sequence[Operand], out: Index) -> Scalar:
        x, weight = operands[:2]
        product = total([plain_axis(x.type, -1)], lambda k: x(*out[:-1], k) * weight(out[-1], k))
        return product + operands[2](out[-1]) if len(operands) == 3 else product


def _check_bias(inputs: Sequence[TensorType], features: Dim, unifier: Unifier, name: str) -> None:
    if len(inputs) == 3:
        require(inputs[2].rank == 1, f"{name} needs a vector of biases, not {inputs[2]}")
        unifier.equal(plain_axis(inputs[2], -1), features, f"{name} bias")


@dataclass(frozen=True)
class _Convolution(_Contraction):
    """Cross-correlation of ``x[n, c, ..]`` with ``weight[o, c/groups, ..]``, zero padding, optional bias."""

    arity = (2, 3)
    stride: tuple[Dim, ...]
    padding: tuple[Dim, ...]
    dilation: tuple[Dim, ...]
    groups: Dim

    def infer(self, inputs: Sequence[TensorType], unifier: Unifier = STRICT) -> tuple[TensorType, ...]:
        dtype = check_operands(self, inputs)
        x, weight = inputs[:2]
        axes = range(-len(self.stride), 0)
        rank = 2 + len(axes)
        require(x.rank == weight.rank == rank, f"{self.name} needs operands of rank {rank}, not {x} and {weight}")
        batch, channels = plain_axis(x, -rank), plain_axis(x, 1 - rank)
        features = plain_axis(weight, -rank)
        unifier.equal(channels, self.groups * plain_axis(weight, 1 - rank), f"{self.name} channels")
        per_group = floordiv(unifier.resolve(features), unifier.resolve(self.groups))
        unifier.equal(per_group * self.groups, features, f"{self.name}: groups do not divide the features")
        _check_bias(inputs, features, unifier, self.name)
        spatial = [
            window_count(
                unifier.resolve(plain_axis(x, axis)),
                unifier.resolve(plain_axis(weight, axis)),
                s,
                padding=p,
                dilation=d,
            )
            for axis, s, p, d in zip(axes, self.stride, self.padding, self.dilation, strict=True)
        ]
        return (TensorType(dtype, (batch, features, *spatial)),)

    def define(self, operands: Sequence[Operand], out: Index) -> Scalar:
        x, weight = operands[:2]
        n, o, *at = out
        features, channels, *kernel = (plain_axis(weight.type, axis) for axis in range(-len(out), 0))
        first = 0 if self.groups == 1 else floordiv(o, floordiv(features, self.groups)) * channels

        def places(window: Sequence[Dim]) -> list[Dim]:
            steps = zip(at, window, self.stride, self.padding, self.dilation, strict=True)
            return [i * s + v * d - p for i, v, s, p, d in steps]

        def inside(_c: Dim, *window: Dim) -> tuple[Condition, ...]:
            return guard_padding(places(window), x.type, self.padding)

        product = total(
            [channels, *kernel], lambda c, *window: x(n, first + c, *places(window)) * weight(o, c, *window), inside
        )
        return product + operands[2](o) if len(operands) == 3 else product

    def legal(self) -> Iterator[Dim]:
        yield from (at_least_one - 1 for at_least_one in (*self.stride, *self.dilation, self.groups))
        yield from self.padding

    def fits(self, inputs: Sequence[TensorType]) -> Iterator[Dim]:
        kernel = [plain_axis(inputs[1], axis) for axis in range(-len(self.stride), 0)]
        yield from window_spans(inputs[0], kernel, self.padding, self.dilation)


@dataclass(frozen=True)
class Conv2d(_Convolution):
    """Cross-correlation of images ``x[n, c, h, w]`` with ``weight[o, c/groups, kh, kw]``."""

    name = "conv2d"
    has_channels = True
    stride: tuple[Dim, Dim] = (1, 1)
    padding: tuple[Dim, Dim] = (0, 0)
    dilation: tuple[Dim, Dim] = (1, 1)
    groups: Dim = 1


@dataclass(frozen=True)
class Conv3d(_Convolution):
    """Cross-correlation of volumes ``x[n, c, t, h, w]`` with ``weight[o, c/groups, kt, kh, kw]``."""

    name = "conv3d"
    stride: tuple[Dim, Dim, Dim] = (1, 1, 1)
    padding: tuple[Dim, Dim, Dim] = (0, 0, 0)
    dilation: tuple[Dim, Dim, Dim] = (1, 1, 1)
    groups: Dim = 1


@dataclass(frozen=True)
class ConvTranspose2d(_Contraction):
    """The transpose of a convolution as a linear map: ``x[n, c, h, w]`` with ``weight[c, o/groups, kh, kw]``.

    Each element of the image adds its multiple of the kernel to a larger image, at ``stride`` from the next one; of
    that, ``padding`` rows and columns are cut off on either side, ``output_padding`` fewer behind.
    """

    name = "conv_transpose2d"
    has_channels = True
    arity = (2, 3)
    stride: tuple[Dim, Dim] = (1, 1)
    padding: tuple[Dim, Dim] = (0, 0)
    output_padding: tuple[int, int] = (0, 0)
    dilation: tuple[Dim, Dim] = (1, 1)
    groups: Dim = 1

    def infer(self, inputs: Sequence[TensorType], unifier: Unifier = STRICT) -> tuple[TensorType, ...]:
        dtype = check_operands(self, inputs)
        x, weight = inputs[:2]
        require(x.rank == 4 and weight.rank == 4, f"{self.name} needs operands of rank 4, not {x} and {weight}")
        batch, channels = plain_axis(x, -4), plain_axis(x, -3)
        unifier.equal(channels, plain_axis(weight, -4), f"{self.name} channels")
        per_group = floordiv(unifier.resolve(channels), unifier.resolve(self.groups))
        unifier.equal(per_group * self.groups, channels, f"{self.name}: groups do not divide the channels")
        features = self.groups * plain_axis(weight, -3)
        _check_bias(inputs, features, unifier, self.name)
        for added, s, d in zip(self.output_padding, self.stride, self.dilation, strict=True):
            fits = added >= 0 and not (isinstance(s, int) and isinstance(d, int) and added >= max(s, d, 1))
            require(fits, f"{self.name}: output_padding is not less than stride or dilation")
        spatial = self._extents(inputs)
        require(not any(isinstance(extent, int) and extent < 1 for extent in spatial), f"{self.name}: nothing is left")
        return (TensorType(dtype, (batch, features, *spatial)),)

    def _extents(self, inputs: Sequence[TensorType]) -> list[Dim]:
        windows = zip((-2, -1), self.stride, self.padding, self.output_padding, self.dilation, strict=True)
        return [
            (plain_axis(inputs[0], axis) - 1) * s - 2 * p + d * (plain_axis(inputs[1], axis) - 1) + added + 1
            for axis, s, p, added, d in windows
        ]

    def define(self, operands: Sequence[Operand], out: Index) -> Scalar:
        x, weight = operands[:2]
        n, o, *at = out
        inputs, features, kh, kw = (plain_axis(weight.type, axis) for axis in (-4, -3, -2, -1))
        group = 0 if self.groups == 1 else floordiv(o, features)
        first, channels = group * floordiv(inputs, self.groups), floordiv(inputs, self.groups)

        def reached(kernel: Sequence[Dim]) -> list[Dim]:
            """Return the places, in steps of one, from which elements of the kernel reach this one."""
            steps = zip(at, kernel, self.padding, self.dilation, strict=True)
            return [i + p - v * d for i, v, p, d in steps]

        def places(kernel: Sequence[Dim]) -> list[Dim]:
            return [floordiv(place, s) for place, s in zip(reached(kernel), self.stride, strict=True)]

        def inside(_c: Dim, *kernel: Dim) -> tuple[Condition, ...]:
            conditions: list[Condition] = []
            for axis, place, i, s in zip((-2, -1), reached(kernel), places(kernel), self.stride, strict=True):
                conditions += within(i, plain_axis(x.type, axis))
                conditions += [] if s == 1 else [Condition(i * s - place, is_equality=True)]
            return tuple(conditions)

        product = total(
            [channels, kh, kw],
            lambda c, *kernel: x(n, first + c, *places(kernel)) * weight(first + c, o - group * features, *kernel),
            inside,
        )
        return product + operands[2](o) if len(operands) == 3 else product

    def legal(self) -> Iterator[Dim]:
        yield from (at_least_one - 1 for at_least_one in (*self.stride, *self.dilation, self.groups))
        yield from self.padding

    def fits(self, inputs: Sequence[TensorType]) -> Iterator[Dim]:
        yield from (extent - 1 for extent in self._extents(inputs))


def window_spans(
    x: TensorType, kernel: Sequence[Dim], padding: Sequence[Dim], dilation: Sequence[Dim]
) -> Iterator[Dim]:
    """Yield, for each axis, the size of the padded image minus the extent of the window."""
    for axis, k, p, d in zip(range(-len(kernel), 0), kernel, padding, dilation, strict=True):
        yield plain_axis(x, axis) + 2 * p - d * (k - 1) - 1


def window_count(extent: Dim, kernel: Dim, stride: Dim, padding: Dim, dilation: Dim, *, rounds_up: bool = False) -> Dim:
    """Return the number of window positions: ``floor((extent + 2*padding - dilation*(kernel-1) - 1) / stride) + 1``.

    With ``rounds_up`` it is the ceiling of the quotient.

    Raises:
        ShapeError: none fits.
    """
    span = extent + 2 * padding - dilation * (kernel - 1) - 1
    require(not isinstance(span, int) or span >= 0, "the window is larger than the padded input")
    return floordiv(span + stride - 1 if rounds_up else span, stride) + 1


def guard_padding(index: Sequence[Dim], x: TensorType, padding: Sequence[Dim]) -> tuple[Condition, ...]:
    """Return the conditions under which a window position is inside the image; none without padding."""
    return tuple(
        condition
        for at, axis, pad in zip(index, range(-len(index), 0), padding, strict=True)
        if pad != 0
        for condition in within(at, plain_axis(x, axis))
    )
