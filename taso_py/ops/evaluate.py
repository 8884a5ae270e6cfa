"""Interpreter of operator definitions with numpy, at concrete sizes: over reals, or over exact integers.

One interpreter for every operator: a definition (:mod:`taso_py.ops.scalar`) is compiled once per operator and operand
types to index arrays and masks; evaluating is then gathering, arithmetic and reducing, for any number of samples at
once.

Invariant: the output depends on the definition alone; no operator has a formula of its own here. In the exact domain
every element is an integer below 2**53 in magnitude, or NaN where it would not be; what is compared with NaN is NaN.
"""

from __future__ import annotations

import enum
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from taso_py.ir.errors import InvariantError
from taso_py.ir.graph import Graph
from taso_py.ir.node import Node
from taso_py.ir.operator import Constant, Input, Operator, Weight
from taso_py.ir.size import Dim, FloorDiv, symbol, terms
from taso_py.ir.types import TensorType
from taso_py.ops.base import TensorOperator
from taso_py.ops.elementwise import define_constant
from taso_py.ops.functions import COMPOSED, IRRATIONALS, real_function
from taso_py.ops.scalar import (
    Apply,
    At,
    Choose,
    Compare,
    Condition,
    Guard,
    Irrational,
    Number,
    Operand,
    Plus,
    Read,
    Reduce,
    Relation,
    Scalar,
    SizeOf,
    Times,
)

Floats: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]
_Program: TypeAlias = Callable[[Sequence[Floats]], Floats]
_LIMIT = 2.0**53
_HOLDS: Mapping[Relation, Callable[[Floats, Floats], NDArray[np.bool_]]] = {
    Relation.GREATER: np.greater,
    Relation.GREATER_EQUAL: np.greater_equal,
    Relation.EQUAL: np.equal,
}


class Domain(enum.Enum):
    """The kind of numbers that tensor elements are."""

    EXACT = "exact"
    """Integers carried in float64, with the true relu and maximum. Every other function, and every constant that is no
    integer, is an arbitrary but fixed map to small integers: an equality for generic values is an identity of
    polynomials, relu and maximum, whatever those functions are. Of reciprocals more is kept, their signs; and one over
    an integer is the same number as a constant and as a quotient."""
    REAL = "real"
    """Floating-point numbers in double precision."""


def evaluate(
    op: Operator, operand_arrays: Sequence[Floats], operand_types: Sequence[TensorType], domain: Domain
) -> Floats:
    """Return the output of one operator.

    Args:
        op: an operator of the table, or a constant, without symbols in its attributes.
        operand_arrays: one array an operand, of shape ``(*batch, *operand shape)``; batch axes broadcast.
        operand_types: concrete shapes; the element type may be ``FLOAT``.
        domain: see :class:`Domain`.

    Raises:
        ShapeError: the operator does not accept the operands.
        InvariantError: the operator has no definition, or a symbol where a number is needed.
    """
    program, shape = _compiled(op, tuple(operand_types), domain)
    arrays = [np.asarray(array, dtype=np.float64) for array in operand_arrays]
    batches = [array.shape[: array.ndim - type_.rank] for array, type_ in zip(arrays, operand_types, strict=True)]
    batch = np.broadcast_shapes(*batches)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        # Equal numbers of batch axes everywhere, so that element axes line up.
        result = program(
            [a.reshape((1,) * (len(batch) - len(b)) + a.shape) for a, b in zip(arrays, batches, strict=True)]
        )
        if domain is Domain.EXACT:
            result = np.where(np.abs(result) < _LIMIT, result, np.nan)
    return np.asarray(np.broadcast_to(result, (*batch, *shape)), order="C")


def evaluate_graph(graph: Graph, arrays: Mapping[str, Floats], domain: Domain) -> list[Floats]:
    """Return the outputs of a graph of concrete shapes, given an array for each input and weight by key.

    Raises:
        InvariantError: as :func:`evaluate`, or an input that is used has no array.
    """
    values: dict[Node, Floats] = {}
    for node in graph.nodes:
        if isinstance(node.op, Input | Weight):
            if node.op.key in arrays:
                values[node] = np.asarray(arrays[node.op.key], dtype=np.float64)
            continue
        missing = [value.node for value in node.inputs if value.node not in values]
        if missing:
            raise InvariantError(f"no value is given for {missing[0]!r}")
        values[node] = evaluate(
            node.op, [values[value.node] for value in node.inputs], [value.type for value in node.inputs], domain
        )
    return [values[value.node] for value in graph.outputs]


@lru_cache(maxsize=8192)
def _compiled(op: Operator, types: tuple[TensorType, ...], domain: Domain) -> tuple[_Program, tuple[int, ...]]:
    """Compile an operator at operand types; return the program and the shape of its output."""
    shape = op.infer(types)[0].sizes
    names = [f"out{axis}" for axis in range(len(shape))]
    scope = _Scope({name: axis for axis, name in enumerate(names)}, shape, np.ones((1,) * len(shape), dtype=np.bool_))
    return _Compiler(types, domain).compile(definition(op, types, names), scope), shape


def definition(op: Operator, types: Sequence[TensorType], out: Sequence[str]) -> Scalar:
    """Return an operator's definition at the named output indices; operands are read as variables ``0``, ``1``, ....

    Raises:
        InvariantError: the operator has no definition.
    """
    if isinstance(op, Constant):
        return define_constant(op)
    if not isinstance(op, TensorOperator):
        raise InvariantError(f"{op.name} has no definition, so that it cannot be evaluated")

    def reader(position: int) -> Callable[[tuple[Dim, ...]], Scalar]:
        return lambda index: Read(str(position), index)

    return op.define([Operand(type_, reader(i)) for i, type_ in enumerate(types)], tuple(map(symbol, out)))


def integers(value: Dim, symbol_at: Callable[[str], Integers], zero: Integers) -> Integers:
    """Evaluate an integer expression at all points of a grid.

    Args:
        value: the expression.
        symbol_at: returns a symbol's value, at each point of the grid.
        zero: 0, with as many axes as the grid.
    """
    total = zero
    for monomial, coefficient in terms(value):
        product = zero + coefficient
        for atom in monomial:
            if isinstance(atom, FloorDiv):
                numerator = integers(atom.numerator, symbol_at, zero)
                product = product * (numerator // integers(atom.denominator, symbol_at, zero))
            else:
                product = product * symbol_at(str(atom))
        total = total + product
    return total


@dataclass(frozen=True)
class _Scope:
    """The indices in scope: the axes of the output, then the bound indices, outermost first."""

    axes: Mapping[str, int]
    extents: tuple[int, ...]
    active: NDArray[np.bool_]
    """Mask of the points whose values are used; one axis per index, of size one where it does not matter."""

    def grid(self, value: Dim) -> NDArray[np.int64]:
        """Return an integer expression at every index."""
        return integers(value, self._index, np.zeros((1,) * len(self.extents), dtype=np.int64))

    def _index(self, name: str) -> NDArray[np.int64]:
        axis = self.axes.get(name)
        if axis is None:
            raise InvariantError(f"the size {name} has no value; substitute sizes before evaluating")
        shape = [1] * len(self.extents)
        shape[axis] = self.extents[axis]
        return np.arange(self.extents[axis], dtype=np.int64).reshape(shape)

    def where(self, conditions: Sequence[Condition]) -> tuple[_Scope, NDArray[np.bool_]]:
        """Return this scope narrowed to the points at which the conditions hold, and that mask."""
        mask = np.ones((1,) * len(self.extents), dtype=np.bool_)
        for condition in conditions:
            value = self.grid(condition.value)
            mask = mask & ((value == 0) if condition.is_equality else (value >= 0))
        return _Scope(self.axes, self.extents, self.active & mask), mask

    def bind(self, reduce: Reduce) -> tuple[_Scope, NDArray[np.bool_]]:
        """Return the scope inside a reduction, and the mask of the points it reduces over."""
        axes, extents = dict(self.axes), self.extents
        conditions = list(reduce.conditions)
        for binder in reduce.binders:
            extent = self.grid(binder.extent)
            axes[binder.name] = len(extents)
            extents = (*extents, int(extent.max(initial=0)))
            if extent.size > 1:
                conditions.append(Condition(binder.extent - 1 - symbol(binder.name)))
        active = self.active.reshape(self.active.shape + (1,) * len(reduce.binders))
        return _Scope(axes, extents, active).where(conditions)


class _Compiler:
    """Compiler from a definition to a program; every array has one axis per index in scope, after the batch axes."""

    def __init__(self, types: Sequence[TensorType], domain: Domain) -> None:
        self._types = types
        self._domain = domain

    def compile(self, scalar: Scalar, scope: _Scope) -> _Program:
        match scalar:
            case Read():
                return self._read(scalar, scope)
            case Plus(left, right):
                first, second = self.compile(left, scope), self.compile(right, scope)
                return lambda arrays: first(arrays) + second(arrays)
            case Times(left, right):
                first, second = self.compile(left, scope), self.compile(right, scope)
                return lambda arrays: first(arrays) * second(arrays)
            case Guard(conditions, body):
                inner, mask = scope.where(conditions)
                program = self.compile(body, inner)
                return lambda arrays: np.where(mask, program(arrays), 0.0)
            case Reduce():
                return self._reduce(scalar, scope)
            case Apply(name, argument):
                function, program = self._function(name), self.compile(argument, scope)
                return lambda arrays: function(program(arrays))
            case Compare():
                return self._compare(scalar, scope)
            case Choose():
                return self._choose(scalar, scope)
            case At():
                return self._look_up(scalar, scope)
            case SizeOf(value):
                array = scope.grid(value).astype(np.float64)
                return lambda _arrays: array
            case _:
                constant = np.full((1,) * len(scope.extents), self._constant(scalar))
                return lambda _arrays: constant

    def _read(self, read: Read, scope: _Scope) -> _Program:
        position = int(read.variable)
        sizes = self._types[position].sizes
        place = self._place(read, scope)
        rank, count = len(sizes), math.prod(sizes)

        def gather(arrays: Sequence[Floats]) -> Floats:
            array = arrays[position]
            batch = array.shape[: array.ndim - rank]
            if count == 0:  # nothing of it is used
                return np.zeros((*batch, *place.shape))
            return array.reshape(*batch, count)[..., place]

        return gather

    def _place(self, read: Read, scope: _Scope) -> Integers:
        """Return the row-major position of the element that is read, at every index."""
        position = int(read.variable)
        place = np.zeros((1,) * len(scope.extents), dtype=np.int64)
        used = math.prod(scope.extents) > 0
        for value, size in zip(read.index, self._types[position].sizes, strict=True):
            at = scope.grid(value)
            if used and np.any(((at < 0) | (at >= size)) & scope.active):
                raise InvariantError(f"the definition reads operand {position} outside of {self._types[position]}")
            place = place * size + np.clip(at, 0, max(size - 1, 0))
        return place

    def _look_up(self, at: At, scope: _Scope) -> _Program:
        """Compile the reading of an element at a place that is known only when it is read.

        An integer that stands for no place, which is an error of the model, is taken modulo the extent.
        """
        if not isinstance(at.body, Read) or not isinstance(at.extent, int):
            raise InvariantError("only an element is read at a place that an integer stands for")
        integer, extent = self.compile(at.integer, scope), at.extent
        axis = at.body.index.index(symbol(at.name))
        position = int(at.body.variable)
        sizes = self._types[position].sizes
        step, count = math.prod(sizes[axis + 1 :]), math.prod(sizes)
        first = Read(at.body.variable, (*at.body.index[:axis], 0, *at.body.index[axis + 1 :]))
        start = self._place(first, scope)

        def gather(arrays: Sequence[Floats]) -> Floats:
            chosen = np.nan_to_num(integer(arrays), posinf=0.0, neginf=0.0).astype(np.int64)
            place = start + (chosen % max(extent, 1)) * step
            array = arrays[position]
            batch = array.shape[: array.ndim - len(sizes)]
            if count == 0:
                return np.zeros((*batch, *place.shape[len(batch) :]))
            points = place.shape[len(batch) :]
            batch = np.broadcast_shapes(batch, place.shape[: len(batch)])
            flat = np.broadcast_to(array.reshape(*array.shape[: len(batch)], count), (*batch, count))
            places = np.broadcast_to(place, (*batch, *points)).reshape((*batch, math.prod(points)))
            return np.take_along_axis(flat, places, axis=-1).reshape((*batch, *points))

        return gather

    def _reduce(self, reduce: Reduce, scope: _Scope) -> _Program:
        inner, mask = scope.bind(reduce)
        program = self.compile(reduce.body, inner)
        axes = tuple(range(-len(reduce.binders), 0))
        extents = inner.extents[len(scope.extents) :]
        everywhere = bool(mask.all())
        fill = -np.inf if reduce.is_max else 0.0

        def run(arrays: Sequence[Floats]) -> Floats:
            body = program(arrays)
            if not everywhere:
                body = np.where(mask, body, fill)
            body = np.broadcast_to(body, body.shape[: body.ndim - len(axes)] + extents)
            return body.max(axis=axes, initial=fill) if reduce.is_max else body.sum(axis=axes)

        return run

    def _compare(self, compare: Compare, scope: _Scope) -> _Program:
        first, second = self.compile(compare.left, scope), self.compile(compare.right, scope)
        holds = _HOLDS[compare.relation]

        def run(arrays: Sequence[Floats]) -> Floats:
            left, right = first(arrays), second(arrays)
            return np.where(np.isnan(left) | np.isnan(right), np.nan, holds(left, right))

        return run

    def _choose(self, choose: Choose, scope: _Scope) -> _Program:
        condition, chosen, other = (self.compile(x, scope) for x in (choose.condition, choose.chosen, choose.other))

        def run(arrays: Sequence[Floats]) -> Floats:
            truth = condition(arrays)
            return np.where(np.isnan(truth), np.nan, np.where(truth != 0, chosen(arrays), other(arrays)))

        return run

    def _function(self, name: str) -> Callable[[Floats], Floats]:
        if name == "relu":
            return lambda x: np.maximum(x, 0.0)
        if self._domain is Domain.REAL:
            return real_function(name)
        if name in COMPOSED:
            return partial(COMPOSED[name], _arbitrary)
        return partial(_arbitrary, name)

    def _constant(self, scalar: Scalar) -> float:
        if isinstance(scalar, Number):
            if self._domain is Domain.REAL:
                return float(scalar.value)
            numerator, denominator = scalar.value.as_integer_ratio()
            if denominator == 1:
                return float(scalar.value)
            if abs(numerator) == 1:
                return numerator * float(_arbitrary_reciprocal(np.array([float(denominator)]))[0])
            return _arbitrary_constant(str(scalar.value))
        if isinstance(scalar, Irrational):
            return IRRATIONALS[scalar.name] if self._domain is Domain.REAL else _arbitrary_constant(scalar.name)
        raise InvariantError(f"{type(scalar).__name__} is not part of the language of definitions")


def _seed(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def _arbitrary_constant(name: str) -> float:
    return float(_seed(name) % 7 + 2)


def _arbitrary(name: str, x: Floats) -> Floats:
    """Apply a fixed map of integers to ``-4 .. 4`` without 0, different for every name; reciprocals keep signs."""
    if name == "reciprocal":
        return _arbitrary_reciprocal(x)
    small = _mixed(name, x, 8) - 4.0
    return np.where(np.isfinite(x), np.where(small >= 0, small + 1, small), np.nan)


def _arbitrary_reciprocal(x: Floats) -> Floats:
    """Apply a fixed map of integers to ``-74 .. -11`` and ``11 .. 74`` that keeps signs.

    Numbers that formulas are written with are smaller: none is the image of another's reciprocal.
    """
    return np.where(np.isfinite(x), np.copysign(_mixed("reciprocal", np.abs(x), 64) + 11.0, x), np.nan)


def _mixed(name: str, x: Floats, count: int) -> Floats:
    """Apply a fixed map of integers to ``0 .. count - 1``, different for every name (splitmix64, Steele 2014)."""
    mixed = x.astype(np.int64).view(np.uint64) + np.uint64(_seed(name))
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((mixed >> np.uint64(40)) % np.uint64(count)).astype(np.float64)
