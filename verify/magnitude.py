"""Magnitudes of what the two sides of a rule compute: whether the target stays in range wherever the source does.

Over the reals an element of a tensor is a polynomial in the elements of the variables; taken with absolute
coefficients, it bounds what is added up to compute the element, and every part of that sum. The target *stays in range*
if, for each output, everything that the output is computed from is bounded by something that the source computes the
same output from: then nothing overflows unless the source's own terms do, added up in absolute value, and nothing
cancels that did not cancel before. Nothing vanishes either, as each monomial occurs in the source with a coefficient
that is hardly greater. (This is interval arithmetic with symbols: Moore 1966; absolute terms as in Higham, Accuracy and
Stability of Numerical Algorithms, 2002, section 3.1.)

What is no polynomial, a function of something or a quotient by a sum, is a variable by itself, equal where the
arguments are equal. A maximum is bounded by any of its operands, a choice by any of its values, a relu by its operand.
An operator is taken to compute what it adds up in a range of its own, as kernels for half precision do.

Invariant: a rule stays in range at the sizes that are tried, which are small and mostly greater than one. Where that
cannot be found out, it does not.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from random import Random
from typing import TypeAlias

import numpy as np

from taso_py.ir.errors import InvariantError, TasoError
from taso_py.ir.node import Node, Value
from taso_py.ir.operator import Constant, Input, Operator
from taso_py.ir.size import Poly
from taso_py.ir.types import DType
from taso_py.ops.evaluate import definition
from taso_py.ops.functions import IRRATIONALS, real_function
from taso_py.ops.resizing import UpsampleBilinear2d
from taso_py.ops.scalar import (
    Apply,
    At,
    Choose,
    Compare,
    Guard,
    Irrational,
    Number,
    Plus,
    Read,
    Reduce,
    Relation,
    Scalar,
    SizeOf,
    Times,
)
from taso_py.rules.apply import concrete_side
from taso_py.rules.substitution import Substitution
from verify.compiled import Index, Indices, compiled_index, compiled_integer, compiled_points, compiled_test
from verify.sampling import GREATEST, Sample, Sampler, match_at

INNER = 3
"""The fewest pixels in a row of which one is neither the first nor the last."""
SMALL = 3
"""The greatest size that is drawn, if that will do."""
MIDDLING = 5
"""The greatest size that is drawn then."""
DRAWN, TRIED, ATTEMPTS = 40, 4, 100
"""How many choices of sizes are drawn, how many of the cheapest are tried, and how often each is drawn."""
MOST_WORK = 200_000
"""How many terms may be written down for one side of a rule."""
MOST_BOUNDS = 16
"""How many bounds an element may have; one with more is a variable by itself."""
TINY, GREATEST_HALF = 2.0**-14, 65504.0
"""The normal range of half precision."""
_SLACK = 1 + 1e-9
_VANISHING = 16
"""How many times smaller than in the source a term may be: less than half precision rounds below its normal range."""

Monomial: TypeAlias = frozenset[tuple[Hashable, int]]
"""Variables and their exponents."""
Polynomial: TypeAlias = Mapping[Monomial, float]

ONE: Monomial = frozenset()
BOUNDED = frozenset({"sigmoid", "tanh", "erf", "sin", "cos"})
"""Functions with values between -1 and 1."""


@dataclass(frozen=True)
class BoundedElement:
    """An element of a tensor."""

    value: Polynomial
    """Its value over the reals."""
    bounds: tuple[Polynomial, ...]
    """Polynomials with positive coefficients; its terms, in absolute value, add up to at most the greatest of them."""

    @cached_property
    def key(self) -> Hashable:
        """Equal for elements with equal values, up to rounding of coefficients."""
        return _key(self.value)

    @property
    def is_sum(self) -> bool:
        """Whether it is the sum of its terms in absolute value, as nothing in it is subtracted."""
        return len(self.bounds) == 1 and self.bounds[0] is self.value


def _sum_of_terms(polynomial: Polynomial) -> BoundedElement:
    """Return an element that is a polynomial with positive coefficients."""
    return BoundedElement(polynomial, (polynomial,))


def _key(polynomial: Polynomial) -> Hashable:
    return frozenset((monomial, float(f"{coefficient:.9g}")) for monomial, coefficient in polynomial.items())


def _distinct(polynomials: Iterable[Polynomial]) -> tuple[Polynomial, ...]:
    several = tuple(polynomials)
    return several if len(several) < 2 else tuple({_key(polynomial): polynomial for polynomial in several}.values())


def _number(value: float) -> BoundedElement:
    if value > 0:
        return _sum_of_terms({ONE: value})
    return BoundedElement({ONE: value}, ({ONE: abs(value)},)) if value else ZERO


def _counted(elements: Iterable[BoundedElement]) -> Iterable[tuple[BoundedElement, int]]:
    """Return each element, and how often it occurs."""
    counts: dict[int, tuple[BoundedElement, int]] = {}
    for element in elements:
        _, before = counts.get(id(element), (element, 0))
        counts[id(element)] = element, before + 1
    return counts.values()


def _multiple(element: BoundedElement, count: int) -> BoundedElement:
    if count == 1:
        return element
    parts = {id(part): {m: c * count for m, c in part.items()} for part in (element.value, *element.bounds)}
    return BoundedElement(parts[id(element.value)], tuple([parts[id(bound)] for bound in element.bounds]))


def _variable(name: Hashable) -> BoundedElement:
    return _sum_of_terms({frozenset([(name, 1)]): 1.0})


ZERO = _sum_of_terms({})


class _Algebra:
    """Arithmetic of elements; it counts the terms that are written down."""

    def __init__(self) -> None:
        self._left = MOST_WORK

    def add(self, elements: Sequence[BoundedElement]) -> BoundedElement:
        """The sum of elements; one that occurs several times, as in an interpolation, is written down once."""
        elements = [_multiple(element, count) for element, count in _counted(elements)]
        value = self._sum([element.value for element in elements])
        if all(element.is_sum for element in elements):
            return _sum_of_terms(value)
        if prod(len(element.bounds) for element in elements) > MOST_BOUNDS:
            return _variable(("sum", _key(value)))
        choices = itertools.product(*(element.bounds for element in elements))
        return BoundedElement(value, _distinct(self._sum(choice) for choice in choices))

    def multiply(self, left: BoundedElement, right: BoundedElement) -> BoundedElement:
        """The product of two elements."""
        value = self._product(left.value, right.value)
        if left.is_sum and right.is_sum:
            return _sum_of_terms(value)
        if len(left.bounds) * len(right.bounds) > MOST_BOUNDS:
            return _variable(("product", _key(value)))
        pairs = itertools.product(left.bounds, right.bounds)
        return BoundedElement(value, _distinct(self._product(one, other) for one, other in pairs))

    def greatest(self, elements: Sequence[BoundedElement]) -> BoundedElement:
        """The maximum of elements."""
        if len({element.key for element in elements}) == 1:
            return elements[0]
        bounds = _distinct(bound for element in elements for bound in element.bounds)
        variable = _variable(("maximum", frozenset(element.key for element in elements)))
        return variable if len(bounds) > MOST_BOUNDS else BoundedElement(variable.value, bounds)

    def compare(self, relation: Relation, left: BoundedElement, right: BoundedElement) -> BoundedElement:
        """The truth of a comparison."""
        return _variable((relation, left.key, right.key))

    def choose(self, condition: BoundedElement, chosen: BoundedElement, other: BoundedElement) -> BoundedElement:
        """One of two elements."""
        bounds = _distinct([*chosen.bounds, *other.bounds])
        variable = _variable(("choice", condition.key, chosen.key, other.key))
        return variable if len(bounds) > MOST_BOUNDS else BoundedElement(variable.value, bounds)

    def apply(self, function: str, argument: BoundedElement) -> BoundedElement:
        """A scalar function of an element."""
        variable = _variable((function, argument.key))
        if function == "relu":
            return BoundedElement(variable.value, argument.bounds)
        if function in BOUNDED:
            return BoundedElement(variable.value, ({ONE: 1.0},))
        if not argument.value.keys() - {ONE}:
            number = np.array([argument.value.get(ONE, 0.0)])
            return _number(float(real_function(function)(number)[0]))
        if function == "reciprocal" and len(argument.value) == 1:
            ((monomial, coefficient),) = argument.value.items()
            inverse = frozenset((name, -exponent) for name, exponent in monomial)
            return BoundedElement({inverse: 1 / coefficient}, ({inverse: 1 / abs(coefficient)},))
        return variable

    def _sum(self, polynomials: Iterable[Polynomial]) -> Polynomial:
        total: dict[Monomial, float] = {}
        for polynomial in polynomials:
            self._count(len(polynomial))
            for monomial, coefficient in polynomial.items():
                total[monomial] = total.get(monomial, 0.0) + coefficient
        largest = max(map(abs, total.values()), default=0.0)
        return {monomial: c for monomial, c in total.items() if abs(c) > 1e-12 * largest}

    def _product(self, left: Polynomial, right: Polynomial) -> Polynomial:
        self._count(len(left) * len(right))
        total: dict[Monomial, float] = {}
        for (one, first), (other, second) in itertools.product(left.items(), right.items()):
            monomial = _times(one, other)
            total[monomial] = total.get(monomial, 0.0) + first * second
        return total

    def _count(self, terms: int) -> None:
        self._left -= terms + 1
        if self._left < 0:
            raise InvariantError("too many terms")


@lru_cache(maxsize=1 << 16)
def _times(one: Monomial, other: Monomial) -> Monomial:
    if not one or not other:
        return one or other
    exponents = dict(one)
    for name, exponent in other:
        exponents[name] = exponents.get(name, 0) + exponent
    return frozenset((name, exponent) for name, exponent in exponents.items() if exponent)


_Element: TypeAlias = Callable[[Indices], BoundedElement]


class _Side:
    """The elements that outputs are computed from, found as they are read."""

    def __init__(self, apart: int) -> None:
        """Prepare a side; neighbouring integers look up places that are so far ``apart``."""
        self._apart = apart
        self._algebra = _Algebra()
        self._definitions: dict[Node, tuple[list[str], _Element]] = {}
        self.elements: defaultdict[Node, dict[Index, BoundedElement]] = defaultdict(dict)

    def read(self, node: Node, index: Index) -> BoundedElement:
        """Return an element of a node."""
        known = self.elements[node].get(index)
        if known is None:
            known = self._computed(node, index)
            if node.types[0].dtype is DType.BOOL:  # a truth value is in every range
                known = BoundedElement(known.value, ZERO.bounds)
            self.elements[node][index] = known
        return known

    def _computed(self, node: Node, index: Index) -> BoundedElement:
        if isinstance(node.op, Input):
            return _variable((node.op.key, index))
        if node not in self._definitions:
            names = [f"out{axis}" for axis in range(len(index))]
            scalar = definition(node.op, [value.type for value in node.inputs], names)
            self._definitions[node] = names, self._compiled(scalar, node)
        names, element = self._definitions[node]
        return element(dict(zip(names, index, strict=True)))

    def _compiled(self, scalar: Scalar, node: Node) -> _Element:
        """Return a definition of a node as a function of the indices in scope; it is called for every element."""
        algebra = self._algebra
        match scalar:
            case Read(variable, index):
                operand, place = node.inputs[int(variable)].node, compiled_index(index)
                known = self.elements[operand]
                return lambda at: known.get(found := place(at)) or self.read(operand, found)
            case Plus(left, right):
                one, other = self._compiled(left, node), self._compiled(right, node)
                return lambda at: algebra.add([one(at), other(at)])
            case Times(left, right):
                one, other = self._compiled(left, node), self._compiled(right, node)
                return lambda at: algebra.multiply(one(at), other(at))
            case Guard(conditions, body):
                holds, inner = compiled_test(conditions), self._compiled(body, node)
                return lambda at: inner(at) if holds(at) else ZERO
            case Reduce(body=body, is_max=is_max):
                inner, points = self._compiled(body, node), compiled_points(scalar)
                combined = algebra.greatest if is_max else algebra.add
                return lambda at: combined([inner(point) for point in points(at)])
            case Apply(function, argument):
                operand_of = self._compiled(argument, node)
                return lambda at: algebra.apply(function, operand_of(at))
            case Compare(relation, left, right):
                one, other = self._compiled(left, node), self._compiled(right, node)
                return lambda at: algebra.compare(relation, one(at), other(at))
            case Choose(condition, chosen, other):
                parts = [self._compiled(part, node) for part in (condition, chosen, other)]
                return lambda at: algebra.choose(*[part(at) for part in parts])
            case At():
                return self._looked_up(scalar, node)
            case SizeOf(value):
                size = compiled_integer(value)
                return lambda at: _number(float(size(at)))
            case Number(value):
                number = _number(float(value))
                return lambda _: number
            case Irrational(name):
                number = _number(IRRATIONALS[name])
                return lambda _: number
            case _:
                raise InvariantError(f"{type(scalar).__name__} is not part of the language of definitions")

    def _looked_up(self, scalar: At, node: Node) -> _Element:
        """Return what is read at a place that an integer of a tensor says."""
        integer, body = self._compiled(scalar.integer, node), self._compiled(scalar.body, node)
        extent = compiled_integer(scalar.extent)

        def element(at: Indices) -> BoundedElement:
            place = self._apart * _number_of(integer(at)) % extent(at)
            return body({**at, scalar.name: place})

        return element


def _number_of(integer: BoundedElement) -> int:
    """Return the number of the diagonal on which an integer lies in its tensor.

    Raises:
        InvariantError: it is computed.
    """
    match [([*monomial], coefficient) for monomial, coefficient in integer.value.items()]:
        case [([((_, tuple(index)), _)], 1.0)]:
            return sum(index)
        case _:
            raise InvariantError("an integer that is computed")


class _Known:
    """The bounds of what a source computes an output from."""

    def __init__(self, elements: Iterable[BoundedElement]) -> None:
        self._with: dict[Monomial, list[Polynomial]] = {}
        for bound in _distinct(bound for element in elements for bound in element.bounds):
            for monomial in bound:
                self._with.setdefault(monomial, []).append(bound)
        self._least = {monomial: min(bound[monomial] for bound in bounds) for monomial, bounds in self._with.items()}

    def covers(self, bound: Polynomial) -> bool:
        """Return whether what has this bound overflows only, and vanishes only, where something of the source does."""
        candidates = [self._with.get(monomial, []) for monomial in bound]
        return all(
            self._least.get(monomial, float("inf")) <= coefficient * _VANISHING
            for monomial, coefficient in bound.items()
        ) and (not candidates or any(_is_within(bound, other) for other in min(candidates, key=len)))


def _is_within(bound: Polynomial, other: Polynomial) -> bool:
    return all(coefficient <= other.get(monomial, 0.0) * _SLACK for monomial, coefficient in bound.items())


def stays_in_range(rule: Substitution) -> bool:
    """Return whether the target of a rule overflows, cancels and underflows nowhere that the source does not.

    Integers that look something up are tried at different places, and all at the same.
    """
    samples = _cheapest(rule)
    spacings = (1, 0) if any(node.op.reads_index for node in rule.source.nodes) else (1,)
    tried = itertools.product(samples, spacings)
    try:
        return bool(samples) and all(
            _is_covered(*sides, apart) for sample, apart in tried for sides in _outputs(rule, sample)
        )
    except (TasoError, ValueError, ZeroDivisionError, KeyError):
        return False


def _outputs(rule: Substitution, sample: Sample) -> list[tuple[Value, Value]]:
    """The outputs of both sides at concrete sizes."""
    match = match_at(rule, sample, DType.FLOAT)
    return list(zip(concrete_side(match, rule.source), concrete_side(match, rule.target), strict=True))


def _is_covered(source: Value, target: Value, apart: int) -> bool:
    """Return whether an output's terms are bounded by those of the source, and all that leads to it."""
    before, after = _Side(apart), _Side(apart)
    for index in itertools.product(*map(range, source.type.sizes)):
        left, right = before.read(source.node, index), after.read(target.node, index)
        if not all(any(_is_within(bound, other) for other in left.bounds) for bound in right.bounds):
            return False
    given = [element for node, found in after.elements.items() if _is_in_range(node) for element in found.values()]
    known = _Known([*(element for found in before.elements.values() for element in found.values()), *given])
    new = [
        element
        for node, found in after.elements.items()
        for place, element in found.items()
        if place not in before.elements.get(node, ())
    ]
    return all(map(known.covers, _distinct(bound for element in new for bound in element.bounds)))


def _is_in_range(node: Node) -> bool:
    """Return whether elements are in the range of half precision by themselves: variables, and numbers that fit."""
    if isinstance(node.op, Constant):
        value = node.op.value
        return not isinstance(value, Poly) and (not value or TINY <= abs(value) <= GREATEST_HALF)
    return isinstance(node.op, Input)


def _cheapest(rule: Substitution) -> Sequence[Sample]:
    """Sizes at which a rule is cheap to write down, and few of them one."""
    random, cost = Random(0), _cost_of(rule)
    for greatest in (SMALL, MIDDLING, GREATEST):
        sampler = Sampler(rule, greatest=greatest)
        drawn = [sample for _ in range(DRAWN) if (sample := sampler.draw(random, ATTEMPTS)) is not None]
        telling = [sample for sample in drawn if _interpolates(rule, sample)]
        if telling:
            cheapest = sorted(telling, key=cost)[:TRIED]
            return [sample for place, sample in enumerate(cheapest) if sample not in cheapest[:place]]
    return ()


def _interpolates(rule: Substitution, sample: Sample) -> bool:
    """Return whether images that are interpolated, if any, have inner pixels of which some do not stay as they are.

    Corners do, and with an odd factor all pixels, which says nothing about other images.
    """
    interpolated = [node for node in rule.source.nodes if isinstance(node.op, UpsampleBilinear2d)]
    return all(
        _loses_pixels(sample.shape(node.inputs[0].type), sample.shape(node.types[0]), node.op) for node in interpolated
    )


def _loses_pixels(before: tuple[int, ...], after: tuple[int, ...], op: Operator) -> bool:
    """Return whether an image, before and after interpolation, has inner pixels that are no elements of the result."""
    assert isinstance(op, UpsampleBilinear2d)
    axes = [(extent, larger // extent) for extent, larger in zip(before[-2:], after[-2:], strict=True)]
    if any(extent < INNER for extent, _ in axes):
        return False
    if op.align_corners:
        return any((factor - 1) % (extent - 1) for extent, factor in axes)
    return any(factor % 2 == 0 for _, factor in axes)


def _cost_of(rule: Substitution) -> Callable[[Sample], tuple[int, int]]:
    def cost(sample: Sample) -> tuple[int, int]:
        shapes = [sample.shape(node.types[0]) for node in rule.variables]
        ones = [*sample.sizes.values()].count(1) + sum(axes == () for axes in sample.groups.values())
        return ones, prod(map(prod, shapes))

    return cost
