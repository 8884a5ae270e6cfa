"""Weight folding: weights with which an affine operator also computes the operator that follows it.

An example is a convolution that absorbs a batch normalization. The source is ``after(affine(x, w[, b]), p, ..)``. If an
affine operator with other weights equals it, these weights solve a linear system for each sample of w, b and p, since
its output is linear in its weights. A term over the source's weights with these values is then sought: terms of few
operators are tabulated, and a goal is decomposed at its top, ``goal = a + t`` or ``goal = a * t`` with a small ``a``,
until the rest is in the table.

Invariant: a candidate agrees with its source on samples; whether it is true is tested and proved like any other.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from taso_py.generate.candidates import RuleCandidate
from taso_py.generate.fingerprint import samples
from taso_py.generate.vocabulary import Folding
from taso_py.ir.errors import ShapeError
from taso_py.ir.graph import Graph
from taso_py.ir.node import Value, make
from taso_py.ir.operator import Constant, Input
from taso_py.ir.types import DType, TensorType
from taso_py.ops.base import TensorOperator
from taso_py.ops.elementwise import Add, Mul, Rsqrt, Sub
from taso_py.ops.evaluate import Domain, Floats, evaluate, evaluate_graph
from taso_py.ops.movement import Reshape
from taso_py.ops.normalization import BatchNorm

SAMPLES = 6
_APART = 16
"""Factor between the values of variables; greater than the number of variables."""
TABLED = 3
"""Most operators of a term in the table."""
DEPTH = 3
"""Most times a goal is decomposed."""
_BINARY = (Add(), Mul(), Sub())


def fold(folding: Folding, seed: int) -> Iterator[RuleCandidate]:
    """Yield the candidates of a folding: each operator that may follow, with and without a bias before it."""
    for (after, shapes), has_bias in itertools.product(folding.after, (False, True)):
        features = folding.weight[0]
        variables = {"x1": folding.data, "w1": folding.weight, **({"b1": (features,)} if has_bias else {})}
        variables |= {f"p{number}": shape for number, shape in enumerate(shapes, start=1)}
        inputs = {name: make(Input(name, TensorType(DType.FLOAT, shape))).value for name, shape in variables.items()}
        affine = make(folding.affine, [inputs[name] for name in ("x1", "w1", "b1") if name in inputs]).value
        source = make(after, [affine, *(inputs[name] for name in inputs if name.startswith("p"))]).value
        # No two variables have an element in common, since differences of them may be divisors.
        values = {
            name: samples(seed, name, shape, SAMPLES) * _APART + place
            for place, (name, shape) in enumerate(variables.items())
        }
        weights = _weights(folding, source, values)
        if weights is None:
            continue
        table = _Table.of({name: (inputs[name], values[name]) for name in inputs if name != "x1"}, after)
        found = [table.solve(goal) for goal in weights]
        if None not in found:
            target = make(folding.affine, [inputs["x1"], *(value for value in found if value is not None)]).value
            yield RuleCandidate(
                (source,), (target,), key=f"{folding.name}: {source!r}", data=frozenset({"x1"}), one_way=True
            )


def _weights(folding: Folding, source: Value, values: Mapping[str, Floats]) -> list[Floats] | None:
    """Return the weights (and bias, unless zero) that make the affine operator equal to the source, or None."""
    inputs = tuple(node for node in Graph((), (source,)).nodes if isinstance(node.op, Input))
    (wanted,) = evaluate_graph(Graph(inputs, (source,)), values, Domain.EXACT)
    features, count = folding.weight[0], int(np.prod(folding.weight))
    basis = np.eye(count + features)
    kernels, biases = basis[:, :count].reshape(-1, *folding.weight), basis[:, count:]
    types = [TensorType(DType.FLOAT, shape) for shape in (folding.data, folding.weight, (features,))]
    solutions: list[Floats] = []
    for x, goal in zip(values["x1"], wanted, strict=True):
        images = evaluate(folding.affine, [x[None], kernels, biases], types, Domain.EXACT).reshape(len(basis), -1)
        solution = np.rint(np.linalg.lstsq(images.T, goal.ravel(), rcond=None)[0])
        if not np.array_equal(images.T @ solution, goal.ravel()):
            return None
        solutions.append(solution)
    solved = np.stack(solutions)
    weight, bias = solved[:, :count].reshape(-1, *folding.weight), solved[:, count:]
    return [weight, bias] if bias.any() else [weight]


@dataclass
class _Table:
    """Terms over weights with their values, of shape ``(samples, *shape)``."""

    terms: dict[bytes, tuple[Value, Floats]] = field(default_factory=dict[bytes, "tuple[Value, Floats]"])
    small: list[tuple[Value, Floats]] = field(default_factory=list["tuple[Value, Floats]"])
    """Terms of at most one operator, used to decompose goals."""

    @staticmethod
    def of(variables: Mapping[str, tuple[Value, Floats]], after: TensorOperator) -> _Table:
        """Return the table over some variables, and the number that ``after`` adds to a variance, if it does."""
        table = _Table()
        levels = [[table.add(*item) for item in variables.values()]]
        for value, values in variables.values():
            if value.type.rank > 1 and value.type.sizes[1:] == (1,) * (value.type.rank - 1):
                vector = make(Reshape(value.type.sizes[:1]), [value]).value
                levels[0].append(table.add(vector, values.reshape(values.shape[:2])))
        number = make(Constant(after.eps, DType.FLOAT)).value if isinstance(after, BatchNorm) else None
        for level in range(1, TABLED + 1):
            table.small += levels[-1] if level <= 2 else []
            levels.append([*table.level(levels, level, number)])
        return table

    def add(self, value: Value, values: Floats) -> tuple[Value, Floats]:
        """Add a term unless one with equal values is known."""
        self.terms.setdefault(_key(values), (value, values))
        return value, values

    def level(
        self, levels: Sequence[Sequence[tuple[Value, Floats]]], level: int, number: Value | None
    ) -> Iterator[tuple[Value, Floats]]:
        """Yield the new vectors of a level: functions of, and pairs of, vectors of lower levels."""
        vectors = [[(value, array) for value, array in terms if value.type.rank == 1] for terms in levels]
        for value, array in vectors[-1]:
            yield from self._new(Rsqrt(), [value], [array])
            if number is not None:
                constant = evaluate(number.node.op, [], [], Domain.EXACT)
                yield from self._new(Add(), [value, number], [array, constant])
        for size in range(level):
            for (a, u), (b, v) in itertools.product(vectors[size], vectors[level - 1 - size]):
                for op in _BINARY:
                    yield from self._new(op, [a, b], [u, v])

    def _new(
        self, op: TensorOperator, operands: Sequence[Value], arrays: Sequence[Floats]
    ) -> Iterator[tuple[Value, Floats]]:
        values = evaluate(op, arrays, [operand.type for operand in operands], Domain.EXACT)
        if np.isfinite(values).all() and values.any() and _key(values) not in self.terms:
            yield self.add(make(op, operands).value, values)

    def solve(self, goal: Floats) -> Value | None:
        """Return a term with these values and this shape, preferring few operators at its top."""
        for depth in range(DEPTH + 1):
            found = self._solve(goal, depth)
            if found is not None:
                return found
        return None

    def _solve(self, goal: Floats, depth: int) -> Value | None:
        if (known := self.terms.get(_key(goal))) is not None:
            return known[0]
        if depth == 0:
            return None
        for value, values in self.small:
            if values.shape != goal.shape:
                continue
            for op, rest, is_first in _remainders(goal, values):
                found = self._solve(rest, depth - 1) or self._solve_broadcast(rest, depth - 1)
                if found is not None:
                    try:
                        return make(op, [value, found] if is_first else [found, value]).value
                    except ShapeError:
                        continue
        return None

    def _solve_broadcast(self, goal: Floats, depth: int) -> Value | None:
        """Return a term that broadcasts to these values: a number, or one per index of the first axis."""
        flat = goal.reshape(len(goal), -1)
        if goal.ndim > 1 and (flat == flat[:, :1]).all():
            return self._solve(flat[:, 0], depth)
        rows = goal.reshape(*goal.shape[:2], -1) if goal.ndim > 2 else goal[..., None]
        if goal.ndim > 2 and (rows == rows[:, :, :1]).all():
            found = self._solve(rows[:, :, 0], depth)
            if found is not None and found.type.rank == 1:
                return make(Reshape((*found.type.sizes, *(1,) * (goal.ndim - 2))), [found]).value
        return None


def _remainders(goal: Floats, values: Floats) -> Iterator[tuple[TensorOperator, Floats, bool]]:
    """Yield the rest of ``goal`` as the other operand if ``values`` is one, and whether ``values`` comes first."""
    if values.all() and not (goal % values).any() and goal.any():
        yield Mul(), goal / values, True
    yield Add(), goal - values, True
    yield Sub(), values - goal, True
    yield Sub(), goal + values, False


def _key(values: Floats) -> bytes:
    return repr(values.shape).encode() + np.ascontiguousarray(values + 0.0).tobytes()
