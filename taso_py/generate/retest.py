"""Test of a rule at random sizes and values: cheap, and most false candidates do not survive it.

Invariant: a rule that fails is false; one that passes may still be. The draws depend on the rule and the seed only.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from math import prod

import numpy as np

from taso_py.generate.fingerprint import agree, generator, samples_of
from taso_py.ir.errors import InvariantError, ShapeError, TasoError
from taso_py.ir.node import Node
from taso_py.ir.operator import Input
from taso_py.ir.size import Dim, Poly, evaluate, symbol, symbols
from taso_py.ir.types import Axis, Group, TensorType
from taso_py.ir.unify import STRICT
from taso_py.ops.base import plain_axis
from taso_py.ops.evaluate import Domain
from taso_py.ops.evaluate import evaluate as evaluate_operator
from taso_py.ops.movement import Slice
from taso_py.ops.signs import sign_of
from taso_py.rules.substitution import Substitution, attribute_symbols, key, rebuild

TRIALS = 3
_ATTEMPTS = 60
_LARGEST = 1200
"""Most elements of a tensor in an instance."""
_GENERIC_GROUP = (67, 71, 73)
"""Several axes: a rule that is true of one leading axis may be an instance of one that adds a vector to rows."""
_IMAGE_AXES = 4
_MOST_PERSISTENCE = 9
_MAY_BE_ZERO = frozenset({"padding", "start", "stop", "widths", "wraps"})


class RetestOutcome(enum.Enum):
    """Result of testing random instances."""

    PASSED = "passed"
    FALSE = "false"
    NO_INSTANCE = "no instance"
    """No sizes were found at which both sides type-check."""


def retest(rule: Substitution, seed: int, trials: int = TRIALS, domain: Domain = Domain.EXACT) -> RetestOutcome:
    """Compare both sides at ``trials`` random instances."""
    return examine(rule, seed, trials, domain)[0]


def examine(
    rule: Substitution, seed: int, trials: int = TRIALS, domain: Domain = Domain.EXACT
) -> tuple[RetestOutcome, str]:
    """Do as :func:`retest`, and return the shapes of the variables at which the sides differ."""
    passed = 0
    for number, instance in enumerate(instances(rule, seed)):
        if not instance.agrees(rule, seed + number, domain):
            shapes = ", ".join(f"{key(node)}: {instance.types[node]}" for node in rule.variables)
            return RetestOutcome.FALSE, shapes
        passed += 1
        if passed == trials:
            break
    return (RetestOutcome.PASSED if passed else RetestOutcome.NO_INSTANCE), ""


@dataclass(frozen=True)
class Instance:
    """A rule at concrete sizes, without nodes of its own: most are used once."""

    sizes: Mapping[str, Dim]
    group: tuple[int, ...]
    """Sizes of every axis group."""
    types: Mapping[Node, TensorType]
    """The types of the nodes of both sides, inputs included."""

    def agrees(self, rule: Substitution, seed: int, domain: Domain) -> bool:
        """Return whether both sides can be computed, and are the same on sample values, where they are finite."""
        values = {
            node: samples_of(seed, key(node), self.types[node], count=2, sign=sign_of(node.value))
            for node in rule.variables
        }
        for node in (*rule.source.nodes, *rule.target.nodes):
            if node not in values:
                operands = [value.node for value in node.inputs]
                arrays, types = [values[o] for o in operands], [self.types[o] for o in operands]
                try:
                    values[node] = evaluate_operator(node.op.substitute(self.sizes), arrays, types, domain)
                except InvariantError:  # an attribute is out of range, such as a negative dilation
                    return False
        for left, right in zip(rule.source.outputs, rule.target.outputs, strict=True):
            a, b = values[left.node], values[right.node]
            finite = np.isfinite(a) & np.isfinite(b)
            if not agree(a[finite], b[finite], domain):
                return False
        return True

    def instantiate(self, rule: Substitution) -> Substitution:
        """Return the rule at these sizes."""
        retype = partial(_retype, sizes=self.sizes, group=self.group)
        sides = [rebuild(side, retype, lambda op: op.substitute(self.sizes)) for side in (rule.source, rule.target)]
        return Substitution(sides[0], sides[1], (), rule.numerics)


def instances(rule: Substitution, seed: int) -> Iterator[Instance]:
    """Yield instances at random sizes that satisfy the preconditions; no dimension of the source is empty."""
    random = generator(seed, rule.id)
    draws = _Draws(rule, random)
    has_some = False
    for attempt in range(_ATTEMPTS):
        # Equal and extreme numbers hide that a rule is false, so that distinct ones are tried as well.
        dimensions = range(4, 12) if attempt % 2 else range(1, 3 + attempt % 7)
        sizes = draws.next(dimensions, is_distinct=attempt % 2 == 1)
        axes = tuple(int(size) for size in random.integers(1, 4, size=int(random.integers(0, 3))))
        instance = _instance(rule, sizes, axes, _LARGEST)
        if instance is not None:
            has_some = True
            yield instance
    # Of many sizes, or where some are differences of others, few fit by chance.
    for _ in range(0 if has_some or draws.persistence == 1 else _ATTEMPTS):
        instance = _instance(rule, draws.next_fitting(range(1, 4), is_distinct=False), (), 4 * _LARGEST)
        if instance is not None:
            yield instance


def generic_instance(rule: Substitution, seed: int) -> Substitution | None:
    """Return the rule at sizes that are pairwise distinct as far as its types allow; None if none was found."""
    found = _generic(rule, seed)
    return None if found is None else found.instantiate(rule)


def has_generic_instance(rule: Substitution, seed: int) -> bool:
    """Return whether :func:`generic_instance` finds one."""
    return _generic(rule, seed) is not None


def _generic(rule: Substitution, seed: int) -> Instance | None:
    draws = _Draws(rule, generator(seed, f"generic {rule.id}"))
    for attempt in range(draws.persistence * _ATTEMPTS):
        draw = draws.next if attempt < _ATTEMPTS else draws.next_fitting
        instance = _instance(rule, draw(range(2, 61), is_distinct=True), _GENERIC_GROUP, None)
        if instance is not None:
            return instance
    return None


@dataclass(frozen=True)
class _Step:
    """The draw of a symbol; the bounds of a slice are drawn so that they fit."""

    name: str
    least: Dim | None = None
    """Lower end of the range up to ``most``; None for the range of dimensions."""
    most: Dim = 0


@dataclass
class _Draws:
    """Draws sizes for a rule, different ones each time."""

    rule: Substitution
    random: np.random.Generator

    @cached_property
    def _steps(self) -> Sequence[_Step]:
        """The symbols of the source in the order in which they are drawn."""
        steps: dict[str, _Step] = {}

        def draw(value: Dim, least: Dim | None = None, most: Dim = 0) -> None:
            for name in sorted(symbols(value)):
                steps.setdefault(name, _Step(name, least, most))

        for node in self.rule.source.nodes:
            if isinstance(node.op, Input):
                draw(_total(node.op.type.symbols))
            elif isinstance(node.op, Slice):
                extent = plain_axis(node.inputs[0].type, node.op.axis)
                draw(node.op.start, 0, extent - 1)
                draw(node.op.stop, node.op.start + 1, extent)
            else:
                for name, value in node.op.attributes:
                    least = 0 if name in _MAY_BE_ZERO else 1
                    draw(_total(attribute_symbols(value)), least, least + 2)
        return [*steps.values()]

    def next(self, dimensions: range, *, is_distinct: bool) -> dict[str, Dim]:
        """Return a value for each symbol."""
        drawn: dict[str, int] = {}
        for step in self._steps:
            least, most = dimensions.start, dimensions.stop - 1
            if step.least is not None:
                least, most = evaluate(step.least, drawn), evaluate(step.most, drawn)
            value = self._integer(least, most)
            for _ in range(7 if is_distinct else 0):
                if value in drawn.values():
                    value = self._integer(least, most)
            drawn[step.name] = value
        return {**drawn}

    @cached_property
    def persistence(self) -> int:
        """How many times as many sizes are tried: more where a size is a difference, or a variable has many axes."""
        sizes = [[axis for axis in node.types[0].shape if isinstance(axis, Poly)] for node in self.rule.variables]
        if max(map(len, sizes), default=0) > _IMAGE_AXES:
            return _MOST_PERSISTENCE
        return 2 if any(factor < 0 for axes in sizes for size in axes for _, factor in size.terms) else 1

    def next_fitting(self, dimensions: range, *, is_distinct: bool) -> dict[str, Dim]:
        """Return a value for each symbol; a difference of sizes that is a size is made positive."""
        values = self.next(dimensions, is_distinct=is_distinct)
        drawn = {name: value for name, value in values.items() if isinstance(value, int)}
        sizes = [axis for node in self.rule.variables for axis in node.types[0].shape]
        for size in sizes:
            missing = 0 if isinstance(size, int | Group) else 1 - evaluate(size, drawn)
            if isinstance(size, Poly) and missing > 0 and (name := _added(size)):
                drawn[name] += missing + self._integer(0, 2)
        return {**drawn}

    def _integer(self, least: int, most: int) -> int:
        return int(self.random.integers(least, max(most, least) + 1))


def _added(size: Poly) -> str:
    """Return a symbol that a size is the sum of and something else, if there is one."""
    alone = (monomial[0] for monomial, factor in size.terms if factor == 1 and len(monomial) == 1)
    return next((atom for atom in alone if isinstance(atom, str)), "")


def _total(names: Iterable[str]) -> Dim:
    total: Dim = 0
    for name in names:
        total = total + symbol(name)
    return total


def _instance(
    rule: Substitution, sizes: Mapping[str, Dim], group: tuple[int, ...], most_elements: int | None
) -> Instance | None:
    """Return the instance at given sizes; None if a side does not type-check or it is out of the limits."""
    try:
        plain = {name: int(value) for name, value in sizes.items() if isinstance(value, int)}
        for condition in rule.preconditions:
            value = evaluate(condition.value, plain)
            if value < 0 or (condition.is_equality and value > 0):
                return None
        elements = [_elements(node.types[0], plain, prod(group)) for node in rule.source.nodes]
        if min(elements) == 0 or (most_elements is not None and max(elements) > most_elements):
            return None
        types = _types(rule, sizes, group)
    except (TasoError, ValueError, ZeroDivisionError):
        return None
    return Instance(sizes, group, types)


def _elements(type_: TensorType, sizes: Mapping[str, int], group: int) -> int:
    """Return the number of elements; 0 if a size is not positive."""
    return prod(group if isinstance(axis, Group) else max(0, evaluate(axis, sizes)) for axis in type_.shape)


def _retype(type_: TensorType, sizes: Mapping[str, Dim], group: tuple[int, ...]) -> TensorType:
    shape: list[Axis] = []
    for axis in type_.substitute(sizes).shape:
        shape += group if isinstance(axis, Group) else [axis]
    return TensorType(type_.dtype, tuple(shape))


def _types(rule: Substitution, sizes: Mapping[str, Dim], group: tuple[int, ...]) -> dict[Node, TensorType]:
    """Return the types of all nodes of both sides.

    Raises:
        ShapeError, ValueError: a side does not type-check, or the two differ in type.
    """
    types: dict[Node, TensorType] = {}
    for node in (*rule.source.nodes, *rule.target.nodes):
        if node not in types:
            types[node] = (
                _retype(node.op.type, sizes, group)
                if isinstance(node.op, Input)
                else node.op.substitute(sizes).infer([types[value.node] for value in node.inputs], STRICT)[0]
            )
    for left, right in zip(rule.source.outputs, rule.target.outputs, strict=True):
        if types[left.node] != types[right.node]:
            raise ShapeError("the sides differ in type")
    return types
