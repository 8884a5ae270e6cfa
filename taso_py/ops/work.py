"""Operation and byte counts of operators, derived from their definitions.

Conventions. A sum, product, maximum or scalar function of two or one numbers is one operation, so that a fused
multiply-add is two. Every subexpression is computed once for each value of the indices that it depends on, and equal
ones once altogether: the row sum of a softmax counts per row, not per element. A running sum is the one before it and
one element more. Points that a definition excludes do not
count: neither products with padding nor keys that a causal mask hides. Numbers that depend on no operand, signs,
conversions of element types and the choice between guarded cases are free. Operands count with the elements that are
read, at most once each; additional reads and computations of a kernel do not count.

Invariant: there is no formula of an operator here. An operator without a definition has no known operation count; its
operands count with no more bytes than its results, since it may look a few rows up in a long table.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import TypeAlias

import numpy as np

from taso_py.ir.errors import InvariantError
from taso_py.ir.node import Node, Value
from taso_py.ir.operator import Constant
from taso_py.ir.size import Dim, Poly, substitute, symbol, symbols
from taso_py.ir.types import DType, TensorType
from taso_py.ops.base import TensorOperator
from taso_py.ops.evaluate import definition, integers
from taso_py.ops.functions import CAST
from taso_py.ops.scalar import (
    Apply,
    At,
    Choose,
    Compare,
    Condition,
    Guard,
    Number,
    Plus,
    Read,
    Reduce,
    Scalar,
    SizeOf,
    Times,
    parts,
)

_Given: TypeAlias = tuple[Condition, ...]
"""The conditions in force."""
FREE_BYTES = 2**20
"""Bytes of growth that are always allowed, so that models with few weights can store masks, positions and tables."""
AT_ONCE = 2**20
"""The most points at which conditions are evaluated together: long sequences attend to themselves at billions."""


@dataclass(frozen=True)
class Work:
    """Floating-point operations and memory traffic of one operator, or of several together."""

    flops: int | None
    """Floating-point operations; None if an operator without a definition takes part."""
    read: int
    """Bytes of operands read."""
    written: int
    """Bytes of results written."""

    @property
    def moved(self) -> int:
        """Bytes read and written."""
        return self.read + self.written


def item_bytes(dtype: DType) -> int:
    """Return the bytes of an element, from the bits in the element type's name; a boolean takes a byte."""
    bits = re.search(r"\d+", dtype.value)
    return int(bits[0]) // 8 if bits else 1


def type_bytes(type_: TensorType) -> int:
    """Return the bytes of a tensor's elements."""
    return math.prod(type_.sizes) * item_bytes(type_.dtype)


def value_bytes(value: Value) -> int:
    """Return the bytes of a value's elements."""
    return type_bytes(value.type)


def most_stored(stored: int, growth: float) -> float:
    """Return the most bytes that a model may store after a change that may multiply its bytes by ``growth``."""
    return max(growth * max(1, stored), stored + FREE_BYTES)  # infinitely many times nothing is no number


def work(node: Node) -> Work:
    """Return the work of a node by its operator's definition, open sizes set to their values in the example inputs."""
    types = tuple(value.type.at_example for value in node.inputs)
    written = sum(map(value_bytes, node.outputs))
    if not isinstance(node.op, TensorOperator):
        return Work(None, sum(min(value_bytes(value), written) for value in set(node.inputs)), written)
    flops, elements = _count(node.op.at_example, types)
    reads: dict[Value, int] = {}
    for value, count in zip(node.inputs, elements, strict=True):
        reads[value] = reads.get(value, 0) + count * item_bytes(value.type.dtype)
    return Work(flops, sum(min(read, value_bytes(value)) for value, read in reads.items()), written)


def region_work(nodes: Iterable[Node], results: Iterable[Value]) -> Work:
    """Return the work of several nodes computed by one kernel: intermediate values are not moved.

    Args:
        nodes: the nodes.
        results: those of their values that are read elsewhere.
    """
    region = set(nodes)
    works = {node: work(node) for node in region}
    counted = [done.flops for done in works.values() if done.flops is not None]
    outside = {
        v for node in region for v in node.inputs if v.node not in region and not isinstance(v.node.op, Constant)
    }
    alone = next(iter(works.values())).read if len(works) == 1 else sum(map(value_bytes, outside))
    return Work(sum(counted) if len(counted) == len(works) else None, alone, sum(map(value_bytes, set(results))))


@lru_cache(maxsize=8192)
def _count(op: TensorOperator, types: tuple[TensorType, ...]) -> tuple[int, tuple[int, ...]]:
    """Return the operations, and the number of elements read of each operand."""
    shape = op.infer(types)[0].sizes
    names = [f"out{axis}" for axis in range(len(shape))]

    counter = _Counter(dict(zip(names, shape, strict=True)))
    counter.visit(definition(op, types, names), ())
    return counter.flops, tuple(counter.reads.get(str(position), 0) for position in range(len(types)))


class _Counter:
    """Visitor of a definition that adds up operations and reads, given the extents of the output's indices."""

    def __init__(self, extents: Mapping[str, int]) -> None:
        self.flops = 0
        self.reads: dict[str, int] = {}
        self._extents = dict(extents)
        self._seen: set[object] = set()

    def visit(self, scalar: Scalar, given: _Given) -> None:
        """Add the cost of computing a subexpression wherever the conditions hold."""
        if not _reads(scalar):
            return
        free = _free(scalar)
        key = self._key(scalar, free, given)
        if key in self._seen:
            return
        self._seen.add(key)
        match scalar:
            case Read(variable):
                self.reads[variable] = self.reads.get(variable, 0) + self._points(free, given)
            case Plus():
                self._sum(scalar, free, given)
            case Times(left, right):
                signs = any(_number(side) in (1, -1) for side in (left, right))
                self.flops += 0 if signs else self._points(free, given)
                self.visit(left, given)
                self.visit(right, given)
            case Guard(conditions, body):
                self.visit(body, given + conditions)
            case Reduce():
                self._extents.update({binder.name: _number_of(binder.extent) for binder in scalar.binders})
                inside, indices = given + scalar.conditions, free | {binder.name for binder in scalar.binders}
                self.flops += self._points(free, given) if _is_running(scalar) else self._points(indices, inside)
                self.visit(scalar.body, inside)
            case Apply(function, argument):
                self.flops += 0 if function.startswith(CAST) else self._points(free, given)
                self.visit(argument, given)
            case At(name, integer, extent):
                # Different integers mostly stand for different places.
                self._extents[name] = min(self._points(_free(integer), given), _number_of(extent))
                self.visit(integer, given)
                self.visit(scalar.body, given)
            case Compare() | Choose():
                self.flops += self._points(free, given)
                for part in parts(scalar):
                    self.visit(part, given)
            case _:
                raise InvariantError(f"{type(scalar).__name__} is not part of the language of definitions")

    def _sum(self, scalar: Scalar, free: frozenset[str], given: _Given) -> None:
        """Count a sum: guarded terms are exclusive cases, each added to the unguarded terms."""
        cases: dict[_Given, list[Scalar]] = {(): []}
        for conditions, term in _terms(scalar, ()):
            cases.setdefault(conditions, []).append(term)
            self.visit(term, given + conditions)
        always = cases.pop(())
        for conditions, terms_ in (cases or {(): []}).items():
            together = [*always, *terms_]
            operands = sum(_reads(term) for term in together)
            numbers = [_number(term) for term in together if not _reads(term)]
            nothing = not numbers or (None not in numbers and sum(n for n in numbers if n is not None) == 0)
            self.flops += (operands - nothing) * self._points(free, given + conditions)

    def _key(self, scalar: Scalar, free: frozenset[str], given: _Given) -> object:
        """Return a key equal for equal subexpressions under equal conditions, indices renamed by order and extent."""
        inside = [condition for condition in given if symbols(condition.value) <= free]
        names = [name for name in dict.fromkeys(_names(scalar)) if name in free]
        canonical = {name: symbol(f"#{place}:{self._extents[name]}") for place, name in enumerate(names)}
        return _renamed(scalar, canonical), frozenset((substitute(c.value, canonical), c.is_equality) for c in inside)

    def _points(self, free: Iterable[str], given: _Given) -> int:
        """Return the number of joint values of the indices; conditions on other indices are ignored."""
        import networkx as nx  # imported here: loading a saved result does without

        chosen = frozenset(free)
        conditions = [c for c in given if symbols(c.value) and symbols(c.value) <= chosen]
        groups: nx.Graph[str] = nx.Graph()
        groups.add_nodes_from(chosen)
        for condition in conditions:
            nx.add_path(groups, symbols(condition.value))
        return math.prod(
            self._group_points(sorted(group), [c for c in conditions if symbols(c.value) <= group])
            for group in nx.connected_components(groups)
        )

    def _group_points(self, names: Sequence[str], conditions: Sequence[Condition]) -> int:
        extents = [self._extents[name] for name in names]
        points = math.prod(extents)
        if not conditions or not points:
            return points
        longest = max(extents)
        axis, step = extents.index(longest), max(1, AT_ONCE * longest // points)
        slices = [slice(extent) for extent in extents]
        parts = (slice(begin, min(begin + step, longest)) for begin in range(0, longest, step))
        return sum(_count_points(names, [*slices[:axis], part, *slices[axis + 1 :]], conditions) for part in parts)


def _count_points(names: Sequence[str], slices: Sequence[slice], conditions: Sequence[Condition]) -> int:
    """Return the number of points of a grid at which all conditions hold."""
    grids = dict(zip(names, np.ogrid[tuple(slices)], strict=True))
    held = np.ones([part.stop - (part.start or 0) for part in slices], dtype=np.bool_)
    for condition in conditions:
        value = integers(condition.value, grids.__getitem__, np.zeros((), dtype=np.int64))
        held &= (value == 0) if condition.is_equality else (value >= 0)
    return int(held.sum())


def _is_running(scalar: Reduce) -> bool:
    """Return whether a sum or a maximum is that of all elements up to the place of an index."""
    if len(scalar.binders) != 1 or len(scalar.conditions) != 1 or scalar.conditions[0].is_equality:
        return False
    last = scalar.conditions[0].value + symbol(scalar.binders[0].name)
    return any(last == symbol(name) for name in symbols(last)) and symbols(last).isdisjoint(_names(scalar.body))


def _number_of(extent: Dim) -> int:
    if not isinstance(extent, int):
        raise InvariantError(f"the extent {extent} has no value; substitute sizes before counting")
    return extent


def _names(scalar: Scalar) -> Iterator[str]:
    """Yield the indices that an expression mentions, in order, including bound ones."""
    if isinstance(scalar, Read):
        for index in scalar.index:
            yield from sorted(symbols(index))
    if isinstance(scalar, Guard | Reduce):
        for condition in scalar.conditions:
            yield from sorted(symbols(condition.value))
    if isinstance(scalar, SizeOf):
        yield from sorted(symbols(scalar.value))
    for part in parts(scalar):
        yield from _names(part)


def _bound(scalar: Scalar) -> Iterator[str]:
    if isinstance(scalar, Reduce):
        yield from (binder.name for binder in scalar.binders)
    if isinstance(scalar, At):
        yield scalar.name
    for part in parts(scalar):
        yield from _bound(part)


def _free(scalar: Scalar) -> frozenset[str]:
    """Return the free indices of an expression."""
    return frozenset(_names(scalar)) - frozenset(_bound(scalar))


def _reads(scalar: Scalar) -> bool:
    """Return whether an expression depends on operands; otherwise it is a constant."""
    return isinstance(scalar, Read) or any(map(_reads, parts(scalar)))


def _number(scalar: Scalar) -> Fraction | None:
    """Return the value of a product of rational numbers, or None for any other expression."""
    match scalar:
        case Number(value):
            return value
        case Times(left, right):
            first, second = _number(left), _number(right)
            return None if first is None or second is None else first * second
        case _:
            return None


def _terms(scalar: Scalar, given: _Given) -> Iterator[tuple[_Given, Scalar]]:
    """Yield the terms of a sum, each with the conditions of the guards around it."""
    match scalar:
        case Plus(left, right):
            yield from _terms(left, given)
            yield from _terms(right, given)
        case Guard(conditions, body):
            yield from _terms(body, given + conditions)
        case _:
            yield given, scalar


def _renamed(scalar: Scalar, canonical: Mapping[str, Poly]) -> object:
    """Return an expression with its indices renamed; bound ones are named by depth and extent."""

    def size(value: Dim) -> Dim:
        return substitute(value, canonical)

    conditions = getattr(scalar, "conditions", ())
    renamed = tuple((size(condition.value), condition.is_equality) for condition in conditions)
    match scalar:
        case Read(variable, index):
            return variable, tuple(map(size, index))
        case SizeOf(value):
            return size(value)
        case Reduce(is_max, binders, _, body):
            depth = len(canonical)
            inner = {b.name: symbol(f"bound{depth + place}:{b.extent}") for place, b in enumerate(binders)}
            below = {**canonical, **inner}
            held = tuple((substitute(c.value, below), c.is_equality) for c in conditions)
            return "reduce", is_max, tuple(b.extent for b in binders), held, _renamed(body, below)
        case Apply(function, argument):
            return function, _renamed(argument, canonical)
        case Compare(relation):
            return relation, tuple(_renamed(part, canonical) for part in parts(scalar))
        case At(name, integer, extent, wraps, body):
            inner = {name: symbol(f"place{len(canonical)}:{extent}")}
            return "at", extent, wraps, _renamed(integer, canonical), _renamed(body, {**canonical, **inner})
        case Plus() | Times() | Guard() | Choose():
            return type(scalar).__name__, renamed, tuple(_renamed(part, canonical) for part in parts(scalar))
        case _:
            return scalar
