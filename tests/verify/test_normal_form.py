"""The normal form, computed by brute force at concrete sizes, is what PyTorch computes."""

from __future__ import annotations

import itertools
import math
import operator
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from numpy.typing import NDArray

from taso_py.ir.graph import Graph
from taso_py.ir.sign import Sign
from taso_py.ir.size import Dim, Lookup, Poly, evaluate
from taso_py.ir.types import Group, Shape
from taso_py.ops.functions import IRRATIONALS
from taso_py.ops.scalar import Irrational, Read, SizeOf
from taso_py.ops.signs import sign_of
from taso_py.rules.substitution import Substitution, key
from verify import witness
from verify.hypotheses import assumptions, output_index, without_equalities
from verify.laws import DECLARED, ProofLevel
from verify.limits import Budget, ProofLimits
from verify.normalize import Normalizer
from verify.sampling import Sample, Sampler
from verify.solver import Solver
from verify.terms import Call, Factor, Sum, Term, close
from verify.truth import Truths

RANGE = range(-3, 12)
"""All bound indices lie here: the sizes are small."""
SCALARS = {
    "relu": lambda x: max(x, 0.0),
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
    "tanh": math.tanh,
    "exp": math.exp,
    "log": lambda x: math.log(x) if x > 0 else math.nan,
    "erf": math.erf,
    "sin": math.sin,
    "cos": math.cos,
    "sqrt": math.sqrt,
    "rsqrt": lambda x: x**-0.5,
    "reciprocal": lambda x: 1 / x,
    "sum": lambda x: x,
    "value": lambda x: x,
    "cast_f16_f64": float,
    "cast_float_f16": lambda x: float(np.float16(x)),
    "positive": lambda x: math.nan if math.isnan(x) else float(x > 0),
}
RELATIONS: Mapping[str, Callable[[float, float], bool]] = {"gt": operator.gt, "ge": operator.ge, "eq": operator.eq}


class Interpreter:
    """Evaluates sums; elements outside of a variable are not a number, so that reading one is seen."""

    def __init__(self, arrays: Mapping[str, NDArray[np.float64]], numbers: Mapping[str, float]) -> None:
        self._arrays = arrays
        self._numbers = numbers

    def total(self, sum_: Sum, env: Mapping[str, int]) -> float:
        return sum(value for term in sum_ for value in self._values(term, env))

    def _values(self, term: Term, env: Mapping[str, int]) -> list[float]:
        values: list[float] = []
        for inner in _places(term, dict(env), list(term.bound)):
            value = float(term.coefficient)
            for factor in term.factors:
                value *= self._factor(factor, inner)
            values.append(value)
        return values

    def with_truths(self, truths: Truths, env: Mapping[str, int]) -> dict[str, int]:
        """The indices, and 1 or 0 for each statement about elements inside of variables."""
        known = dict(env)
        for name, statement in truths.statements.items():
            value = self._factor(statement, known)
            if not math.isnan(value):
                known[name] = int(value)
        return known

    def _place(self, index: Dim, env: Mapping[str, int]) -> int:
        """An index; that of a row that an integer outside of its tensor chooses is outside of every table."""
        found = [atom for atom in index.atoms() if isinstance(atom, Lookup)] if isinstance(index, Poly) else []
        if not found:
            return evaluate(index, env)
        (lookup,) = found
        assert index == Poly((((lookup,), 1),))
        integer = self._factor(Read(lookup.tensor, lookup.index), env)
        if math.isnan(integer):
            return -1
        return int(integer) + (evaluate(lookup.extent, env) if integer < 0 and evaluate(lookup.wraps, env) else 0)

    def _factor(self, factor: Factor, env: Mapping[str, int]) -> float:
        match factor:
            case Read(variable, index):
                place = tuple(self._place(i, env) for i in index)
                array = self._arrays[variable]
                inside = all(0 <= i < extent for i, extent in zip(place, array.shape, strict=True))
                return float(array[place]) if inside else math.nan
            case SizeOf(value):
                return self._numbers[str(value)] if str(value) in self._numbers else evaluate(value, env)
            case Irrational(name):
                return IRRATIONALS[name]
            case Call("gt" | "ge" | "eq" as relation, (left, right)):
                sides = self.total(left, env), self.total(right, env)
                return math.nan if any(map(math.isnan, sides)) else float(RELATIONS[relation](*sides))
            case Call("choice", (condition, chosen, other)):
                return self.total(chosen if self.total(condition, env) else other, env)
            case Call("max", (branches,)):
                return max(value for branch in branches for value in self._values(branch, env))
            case Call(function, (argument,)) if function in DECLARED.values():
                return self.total(argument, env)
            case Call(function, (argument,)):
                return SCALARS[function](self.total(argument, env))
            case _:
                raise AssertionError(factor)


def _places(term: Term, env: dict[str, int], bound: Sequence[str]) -> list[dict[str, int]]:
    """All values of the bound indices at which the guards hold; each guard is looked at as soon as it can be."""

    def holds(guard: Dim, known: Mapping[str, int]) -> bool:
        try:
            return evaluate(guard, known) >= 0
        except KeyError:
            return True

    if not all(holds(guard, env) for guard in term.guards):
        return []
    if not bound:
        return [env]
    return list(itertools.chain.from_iterable(_places(term, {**env, bound[0]: i}, bound[1:]) for i in RANGE))


@pytest.mark.parametrize("level", [ProofLevel.TERMS, ProofLevel.ALGEBRA])
def test_both_sides_are_what_torch_computes(true_rule: Substitution, level: ProofLevel) -> None:
    rule = without_equalities(true_rule)
    random = Random(zlib.crc32(rule.statement.encode()))
    sample = _small_sample(rule, random)
    tensors = witness._values(rule, sample, random.randrange(1000), witness._Kind.POSITIVE)
    arrays = {
        key(variable): _unknown(
            tensors[key(variable)].double().numpy().reshape(_flat(sample, variable.types[0].shape)),
            sign_of(variable.value),
            level,
        )
        for variable in rule.variables
    }
    for side in (rule.source, rule.target):
        for number, expected in enumerate(witness.run_side(side, tensors, sample)):
            flat = expected.double().numpy().reshape(_flat(sample, side.outputs[number].type.shape))
            _compare(rule, side, number, flat, Interpreter(arrays, sample.numbers), sample, level, random)


def _unknown(elements: NDArray[np.float64], sign: Sign, level: ProofLevel) -> NDArray[np.float64]:
    """The unknowns that the normal form has for elements with a sign: with all laws, roots of them or logarithms."""
    if level < ProofLevel.ALGEBRA or not sign:
        return elements
    return np.sqrt(elements) if sign is Sign.NONNEGATIVE else np.log(elements) / 2


def _small_sample(rule: Substitution, random: Random) -> Sample:
    sampler = Sampler(rule)
    samples = [sample for _ in range(60) if (sample := sampler.draw(random, 500)) is not None]
    small = min(
        samples, key=lambda sample: math.prod(size + 1 for size in sample.sizes.values()) // random.randint(1, 9)
    )
    # Roots are computed: a number that is added to a variance is positive, by whatever operator it is added.
    return replace(small, numbers={name: abs(number) for name, number in small.numbers.items()})


def _flat(sample: Sample, shape: Shape) -> tuple[int, ...]:
    """The shape with each axis group as one axis."""
    return tuple(
        math.prod(sample.groups[axis.name]) if isinstance(axis, Group) else evaluate(axis, sample.sizes)
        for axis in shape
    )


def _compare(
    rule: Substitution,
    side: Graph,
    number: int,
    expected: NDArray[np.float64],
    interpreter: Interpreter,
    sample: Sample,
    level: ProofLevel,
    random: Random,
) -> None:
    facts = assumptions(rule)
    index, context = output_index(side.outputs[number].type, facts)
    budget = Budget(ProofLimits())
    normalizer = Normalizer(context, budget, Solver(context, budget), level)
    sum_ = close(normalizer.element(side.outputs[number], index))
    sizes = {**sample.sizes, **{f"..{name}": math.prod(axes) for name, axes in sample.groups.items()}}
    for _ in range(3):
        place = tuple(random.randrange(extent) for extent in expected.shape)
        env = {**sizes, **{f"@{axis}": i for axis, i in enumerate(place)}}
        env = interpreter.with_truths(normalizer.truths, env)
        assert interpreter.total(sum_, env) == pytest.approx(float(expected[place]), rel=1e-9, abs=1e-9), (place, sizes)
