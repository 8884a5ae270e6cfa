"""Composite operators that PyTorch computes in one kernel: normalisations, softmax, attention.

Invariant: a definition is the textbook formula over the reals; a kernel's measures for numerical safety (subtracting a
maximum before exponentiating) changes no real value and is not part of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from taso_py.ir.size import Dim, Poly, floordiv
from taso_py.ir.types import DType, TensorType
from taso_py.ir.unify import STRICT, Unifier
from taso_py.ops.base import TensorOperator, broadcast, broadcast_read, check_operands, plain_axis, require
from taso_py.ops.scalar import Apply, Condition, Index, Operand, Scalar, SizeOf, number, reciprocal, total


def _with_vectors(op: TensorOperator, inputs: Sequence[TensorType], unifier: Unifier) -> TensorType:
    """Return the type of ``x[n, c, ..]``, whose other operands are vectors of one element per channel."""
    require(check_operands(op, inputs).is_floating, f"{op.name} is defined on floating-point operands")
    x, *per_channel = inputs
    require(x.rank >= 2 and isinstance(x.shape[0], Dim), f"{op.name} needs x[n, c, ..], not {x}")
    for vector in per_channel:
        require(vector.rank == 1, f"{op.name} needs vectors per channel, not {vector}")
        unifier.equal(x.shape[1], plain_axis(vector, -1), op.name)
    return x


@dataclass(frozen=True)
class BatchNorm(TensorOperator):
    """Inference batch normalisation of ``x[n, c, ..]`` (Ioffe and Szegedy 2015, algorithm 2).

    The other operands are the vectors weight, bias, mean and variance, one element per channel.
    """

    name = "batch_norm"
    multiplies = True
    applies = frozenset({"rsqrt"})
    has_channels = True
    keeps_format = True
    arity = (5, 5)
    eps: float | Poly

    def infer(self, inputs: Sequence[TensorType], unifier: Unifier = STRICT) -> tuple[TensorType, ...]:
        return (_with_vectors(self, inputs, unifier),)

    def define(self, operands: Sequence[Operand], out: Index) -> Scalar:
        x, weight, bias, mean, variance = operands
        c = out[1]
        scale = Apply("rsqrt", variance(c) + number(self.eps))
        return (x(*out) - mean(c)) * scale * weight(c) + bias(c)


@dataclass(frozen=True)
class _Normalization(TensorOperator):
    multiplies = True
    applies = frozenset({"rsqrt"})

    axes: int
    """The number of trailing axes that are normalised over."""
    eps: float | Poly

    def infer(self, inputs: Sequence[TensorType], unifier: Unifier = STRICT) -> tuple[TensorType, ...]:
        require(check_operands(self, inputs).is_floating, f"{self.name} is defined on floating-point operands")
        x = inputs[0]
        for parameter in inputs[1:]:
            require(parameter.rank == self.axes, f"{self.name}: {parameter} does not have {self.axes} axes")
            for axis in range(-self.axes, 0):
                unifier.equal(plain_axis(x, axis), plain_axis(parameter, axis), self.name)
        plain_axis(x, -self.axes)
        return (x,)

    def _extents(self, x: Operand) -> list[Dim]:
        return [plain_axis(x.type, axis) for axis in range(-self.axes, 0)]

    def _count(self, x: Operand) -> Scalar:
        count: Dim = 1
        for extent in self._extents(x):
            count = count * extent
        return SizeOf(count)


@dataclass(frozen=True)
class LayerNorm(_Normalization):
    """``(x - mean) / sqrt(variance + eps) * weight + bias`` over the last axes (Ba et al. 2016).

    The bias, or weight and bias, may be absent.
    """

    name = "layer_norm"
    arity = (1, 3)

    def define(self, operands: Sequence[Operand], out: Index) -> Scalar:
        x = operands[0]
        lead, last = out[: -self.axes], out[-self.axes :]
        share = reciprocal(self._count(x))
        extents = self._extents(x)

        def mean() -> Scalar:
            return total(extents, lambda *k: x(*lead, *k)) * share

        variance = total(extents, lambda *k: (x(*lead, *k) - mean()) * (x(*lead, *k) - mean())) * share
        result = (x(*out) - mean()) * Apply("rsqrt", variance + number(self.eps))
        for index, parameter in enumerate(operands[1:]):
            result = result * parameter(*last) if index == 0 else result + parameter(*last)
        return result


@dataclass(frozen=True)
class RmsNorm(_Normalization):
    """``x / sqrt(mean(x**2) + eps) * weight`` over the last axes (Zhang and Sennrich 2019); the weight is optional."""

    name = "rms_norm"
    arity = (1, 2)

    def define(self, operands: Sequence[Operand], out: Index) -> Scalar:
        x = operands[0]
        lead, last = out[: -self.axes], out[-self.axes :]
        square = total(self._extents(x), lambda *k: x(*lead, *k) * x(*lead, *k)) * reciprocal(self._count(x))
        result = x(*out) * Apply("rsqrt", square + number(self.eps))
        return result * operands[1](*last) if len(operands) == 2 else result


@dataclass(frozen=True)
class _ChannelNormalization(TensorOperator):
    """``(x - mean) / sqrt(variance + eps) * weight + bias`` of ``x[n, c, ..]``, over all positions of some channels.

    The weight and bias have one element for each channel. The bias, or weight and bias, may be absent.
    """

    multiplies = True
    applies = frozenset({"rsqrt"})
    arity = (1, 3)

    def infer(self, inputs: Sequence[TensorType], unifier: Unifier = STRICT) -> tuple[TensorType, ...]:
        return (_with_vectors(self, inputs, unifier),)

    def _define(self, operands: Sequence[Operand], out: Index, together: Dim, eps: float | Poly) -> Scalar:
        """Return the definition where so many neighbouring channels are normalized together."""
        x, (n, c) = operands[0], out[:2]
        extents = [together, *(plain_axis(x.type, axis) for axis in range(2 - len(out), 0))]
        first = c if together == 1 else floordiv(c, together) * together
        share = reciprocal(SizeOf(prod(extents)))

        def mean() -> Scalar:
            return total(extents, lambda k, *at: x(n, first + k, *at)) * share

        def squared(k: Dim, *at: Dim) -> Scalar:
            return (x(n, first + k, *at) - mean()) * (x(n, first + k, *at) - mean())

        result = (x(*out) - mean()) * Apply("rsqrt", total(extents, squared) * share + number(eps))
        for index, parameter in enumerate(operands[1:]):
            result = result * parameter(c) if index == 0 else result + parameter(c)
        return result


@dataclass(frozen=True)
class GroupNorm(_ChannelNormalization):
    """Normalization over ``groups`` groups of neighbouring channels (Wu and He 2018, section 3.1)."""

    name = "group_norm"
    groups: Dim
    eps: float | Poly

    def infer(self, inputs: Sequence[TensorType], unifier: Unifier = STRICT) -> tuple[TensorType, ...]:
        (type_,) = super().infer(inputs, unifier)
        channels = unifier.resolve(plain_axis(type_, 1 - type_.rank))
        unifier.equal(floordiv(channels, self.groups) * self.groups, channels, self.name)
        return (type_,)

    def define(self, operands: Sequence[Operand], out: Index) -> Scalar:
        channels = plain_axis(operands[0].type, 1 - len(out))
        return self._define(operands, out, floordiv(channels, self.groups), self.eps)

    def legal(self) -> Iterator[Dim]:
        yield self.groups - 1


@dataclass(frozen=True)
class InstanceNorm(_ChannelNormalization):
    """Normalization of every channel of every image by its own statistics (Ulyanov et al. 2016)."""

    name = "instance_norm"
    eps: float | Poly

    def define(self, operands: Sequence[Operand], out: Index) -> Scalar:
        return self._define(operands, out, 1, self.eps)


@dataclass(frozen=True)
class Softmax(TensorOperator):
    """``exp(x) / sum(exp(x))`` along an axis."""

    name = "softmax"
    applies = frozenset({"exp", "reciprocal"})
    axis: int = -1

    def infer(self, inputs: Sequence[TensorType], unifier: Unifier = STRICT) -> tuple[TensorType, ...]:
        require(check_operands(self, inputs).is_floating, "softmax is defined on floating-point operands")
        plain_axis(inputs[0], self.axis)
        return (inputs[0],)

    def define(self, operands: Sequence[Operand], out: Index) -> Scalar:
        (x,) = operands
        at = len(out) + self.axis

        def along(k: Dim) -> Scalar:
            return Apply("exp", x(*out[:at], k, *out[at + 1 :]))

        return along(out[at]) * reciprocal(total([plain_axis(x.type, self.axis)], along))


@dataclass(frozen=True)
class Attention(TensorOperator):
    """Scaled dot-product attention of query, key, value and an optional mask (Vaswani et al. 2017, equation 1).

    ``q[.., l, e], k[.., s, e], v[.., s, f]``, all leading axes equal; the mask broadcasts to ``[.., l, s]`` and is
    added to the scores, or is boolean and removes those where it is false. ``causal`` removes keys after the query, and
    comes without a mask, as in PyTorch. The scale, where none is given, is ``1 / sqrt(e)``.
    """

    name = "attention"
    accumulates = True
    multiplies = True
    applies = frozenset({"exp", "reciprocal"})
    arity = (3, 4)
    scale: float | Poly | None = None
    causal: bool = False

    def infer(self, inputs: Sequence[TensorType], unifier: Unifier = STRICT) -> tuple[TensorType, ...]:
        dtype = check_operands(self, inputs[:3])
        require(len(inputs) in (3, 4) and dtype.is_floating, "attention takes floating-point q, k, v and a mask")
        q, k, v = inputs[:3]
        rows, keys = plain_axis(q, -2), plain_axis(k, -2)
        unifier.equal(plain_axis(q, -1), plain_axis(k, -1), "attention head size")
        unifier.equal(keys, plain_axis(v, -2), "attention keys")
        require(q.rank == k.rank == v.rank, "attention operands differ in rank")
        for a, b, c in zip(q.shape[:-2], k.shape[:-2], v.shape[:-2], strict=True):
            unifier.equal(a, b, "attention batch")
            unifier.equal(a, c, "attention batch")
        if len(inputs) == 4:
            require(not self.causal, "attention is causal or has a mask")
            require(inputs[3].rank >= 2, "attention takes a mask of two axes or more")
            require(inputs[3].dtype in (dtype, DType.BOOL), f"attention mask of type {inputs[3]}")
            scores = (*q.shape[:-2], rows, keys)
            for axis, score in zip(broadcast(inputs[3].shape, scores, unifier, "attention mask"), scores, strict=True):
                unifier.equal(axis, score, "attention mask does not broadcast to the scores")
        return (TensorType(dtype, (*q.shape[:-1], plain_axis(v, -1))),)

    def define(self, operands: Sequence[Operand], out: Index) -> Scalar:
        q, k, v = operands[:3]
        lead, row = out[:-2], out[-2]
        keys, head = plain_axis(k.type, -2), plain_axis(q.type, -1)
        scale = number(self.scale) if self.scale is not None else Apply("rsqrt", SizeOf(head))

        def seen(key: Dim) -> tuple[Condition, ...]:
            return (Condition(row - key),) if self.causal else ()

        def weight(key: Dim) -> Scalar:
            score = total([head], lambda e: q(*lead, row, e) * k(*lead, key, e)) * scale
            if len(operands) == 3:
                return Apply("exp", score)
            mask = operands[3]
            shape = (*q.shape[:-1], plain_axis(k.type, -2))
            masked = broadcast_read(mask, shape, (*lead, row, key))
            if mask.type.dtype is DType.BOOL:
                return Apply("exp", score) * masked
            return Apply("exp", score + masked)

        weighted = total([keys], lambda s: weight(s) * v(*lead, s, out[-1]), seen)
        return weighted * reciprocal(total([keys], weight, seen))
