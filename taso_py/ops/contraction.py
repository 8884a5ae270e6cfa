"""Matrix products: matmul, baddbmm, linear, two-dimensional convolution.

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
class Conv2d(_Contraction):
    """Cross-correlation of ``x[n, c, h, w]`` with ``weight[o, c/groups, kh, kw]``, zero padding, optional bias."""

    name = "conv2d"
    has_channels = True
    arity = (2, 3)
    stride: tuple[Dim, Dim] = (1, 1)
    padding: tuple[Dim, Dim] = (0, 0)
    dilation: tuple[Dim, Dim] = (1, 1)
    groups: Dim = 1

    def infer(self, inputs: Sequence[TensorType], unifier: Unifier = STRICT) -> tuple[TensorType, ...]:
        dtype = check_operands(self, inputs)
        x, weight = inputs[:2]
        require(x.rank == 4 and weight.rank == 4, f"conv2d needs operands of rank 4, not {x} and {weight}")
        batch, channels = plain_axis(x, -4), plain_axis(x, -3)
        features = plain_axis(weight, -4)
        unifier.equal(channels, self.groups * plain_axis(weight, -3), "conv2d channels")
        per_group = floordiv(unifier.resolve(features), unifier.resolve(self.groups))
        unifier.equal(per_group * self.groups, features, "conv2d: groups do not divide the features")
        _check_bias(inputs, features, unifier, self.name)
        spatial = [
            window_count(
                unifier.resolve(plain_axis(x, axis)),
                unifier.resolve(plain_axis(weight, axis)),
                s,
                padding=p,
                dilation=d,
            )
            for axis, s, p, d in zip((-2, -1), self.stride, self.padding, self.dilation, strict=True)
        ]
        return (TensorType(dtype, (batch, features, *spatial)),)

    def define(self, operands: Sequence[Operand], out: Index) -> Scalar:
        x, weight = operands[:2]
        n, o, i, j = out
        features, channels, kh, kw = (plain_axis(weight.type, axis) for axis in (-4, -3, -2, -1))
        first = 0 if self.groups == 1 else floordiv(o, floordiv(features, self.groups)) * channels

        def row(u: Dim) -> Dim:
            return i * self.stride[0] + u * self.dilation[0] - self.padding[0]

        def column(v: Dim) -> Dim:
            return j * self.stride[1] + v * self.dilation[1] - self.padding[1]

        def inside(_c: Dim, u: Dim, v: Dim) -> tuple[Condition, ...]:
            return guard_padding((row(u), column(v)), x.type, self.padding)

        product = total(
            [channels, kh, kw], lambda c, u, v: x(n, first + c, row(u), column(v)) * weight(o, c, u, v), inside
        )
        return product + operands[2](o) if len(operands) == 3 else product

    def legal(self) -> Iterator[Dim]:
        yield from (at_least_one - 1 for at_least_one in (*self.stride, *self.dilation, self.groups))
        yield from self.padding

    def fits(self, inputs: Sequence[TensorType]) -> Iterator[Dim]:
        kernel = (plain_axis(inputs[1], -2), plain_axis(inputs[1], -1))
        yield from window_spans(inputs[0], kernel, self.padding, self.dilation)


def window_spans(
    x: TensorType, kernel: Sequence[Dim], padding: Sequence[Dim], dilation: Sequence[Dim]
) -> Iterator[Dim]:
    """Yield, for each axis, the size of the padded image minus the extent of the window."""
    for axis, k, p, d in zip((-2, -1), kernel, padding, dilation, strict=True):
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


def guard_padding(index: tuple[Dim, Dim], x: TensorType, padding: Sequence[Dim]) -> tuple[Condition, ...]:
    """Return the conditions under which a window position is inside the image; none without padding."""
    return tuple(
        condition
        for at, axis, pad in zip(index, (-2, -1), padding, strict=True)
        if pad != 0
        for condition in within(at, plain_axis(x, axis))
    )
