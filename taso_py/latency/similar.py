"""Estimates of latencies from measured ones of similar calls.

A model asks for hundreds of latencies, and its best plan rests on some fifty of them. Kernels of one kind take a time
that changes slowly with the work that they do: relative to what the work takes at a fixed rate, that of the nearest
measured calls predicts another to about a tenth (median error of 0.11 over the latencies that MobileNetV3-Large and
ResNet-50 ask for, with a quarter of them measured).

Invariant: an estimate comes from calls of the same operator, and is never stored.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from heapq import nsmallest
from operator import itemgetter

from taso_py.backend.plan import Format
from taso_py.ir.node import Node, Value
from taso_py.kernels.tile import Cover
from taso_py.ops.base import TensorOperator
from taso_py.ops.work import value_bytes, work

FLOPS, BANDWIDTH, CALL_S = 2e11, 2e10, 4e-6
"""Operations a second, bytes a second and seconds of a call, by which works of different kinds become one; only ratios
of times to this are interpolated, so it need not be that of the machine."""
NEIGHBOURS = 4
"""The most measured calls that an estimate is taken from."""
OTHER_KERNEL, OTHER_SHAPES, OTHER_FORMAT, OTHER_TAIL = 3.0, 2.0, 1.0, 0.5
"""Distances of calls that differ in their kernel, in the kind of operands, in the memory format, and in the operators
computed after the first; a factor of e in operations or bytes is a distance of 1."""
_SOFTENING = 0.05


@dataclass(frozen=True)
class CallTraits:
    """The properties of a call that its latency depends on."""

    operator: Hashable
    """Calls are compared with those of the same."""
    kernel: str
    shapes: Hashable
    """The kind of operands: for convolutions, whether they are grouped and have a window; for other operators than
    contractions, their attributes."""
    format: Format
    tail: tuple[str, ...] = ()
    """The names of the operators computed after the first."""
    flops: int = 0
    moved: int = 0
    """Bytes read and written."""

    @property
    def work_s(self) -> float:
        """The seconds of the work at fixed rates."""
        return self.flops / FLOPS + self.moved / BANDWIDTH + CALL_S

    def distance(self, other: CallTraits) -> float:
        """Return how little the other call, of the same operator, tells about this one."""
        return (
            abs(math.log((1 + self.flops) / (1 + other.flops)))
            + abs(math.log((1 + self.moved) / (1 + other.moved)))
            + OTHER_KERNEL * (self.kernel != other.kernel)
            + OTHER_SHAPES * (self.shapes != other.shapes)
            + OTHER_FORMAT * (self.format is not other.format)
            + OTHER_TAIL * (self.tail != other.tail)
        )


def traits_of(cover: Cover, reads: Format) -> CallTraits | None:
    """Return the traits of the call of a cover; None if an operator has no definition, and so unknown work."""
    if not all(isinstance(node.op, TensorOperator) for node in cover.nodes):
        return None
    first, *rest = cover.nodes
    works = [work(node) for node in cover.nodes]
    return CallTraits(
        # PyTorch's own calls say little about packed kernels: these exist since they are far from them.
        operator=(first.op.name, cover.binder is None),
        kernel=cover.name,
        shapes=_shapes(first),
        format=reads,
        tail=tuple([node.op.name for node in rest]),
        flops=sum(done.flops or 0 for done in works),
        moved=sum(done.moved for done in works),
    )


def conversion_traits(value: Value, format_: Format) -> CallTraits:
    """Return the traits of a conversion of a value to a memory format."""
    return CallTraits(operator="conversion", kernel="", shapes=(), format=format_, moved=2 * value_bytes(value))


def _shapes(node: Node) -> Hashable:
    types = [value.type.at_example for value in node.inputs]
    if not node.op.is_contraction:
        return node.op.text, tuple([(type_.dtype, type_.rank) for type_ in types])
    windows = [math.prod(type_.sizes[2:]) > 1 for type_ in types[1:2] if type_.rank > 2 and node.op.has_channels]
    is_grouped = getattr(node.op, "groups", 1) != 1
    return types[0].dtype, is_grouped, tuple(windows), tuple([type_.rank for type_ in types[:2]])


class SimilarCalls:
    """Measured calls, from which the latencies of others are estimated."""

    def __init__(self) -> None:
        """Create an empty collection."""
        self._known: dict[Hashable, dict[CallTraits, float]] = {}
        """By operator: the logarithm of each call's seconds relative to those of its work."""

    def add(self, traits: CallTraits, seconds: float) -> None:
        """Add a measured call, unless it takes no time or fails."""
        if 0 < seconds < math.inf:
            self._known.setdefault(traits.operator, {})[traits] = math.log(seconds / traits.work_s)

    def estimate(self, traits: CallTraits, reach: float) -> float | None:
        """Return the seconds of a call by its nearest neighbours; None if none lies within reach."""
        known = self._known.get(traits.operator, {})
        ranked = ((traits.distance(other), ratio) for other, ratio in known.items())
        near = nsmallest(NEIGHBOURS, ranked, key=itemgetter(0))
        if not near or near[0][0] > reach:
            return None
        weights = [(_SOFTENING + distance) ** -2 for distance, _ in near]
        ratio = sum(weight * ratio for weight, (_, ratio) in zip(weights, near, strict=True)) / sum(weights)
        return math.exp(ratio) * traits.work_s
