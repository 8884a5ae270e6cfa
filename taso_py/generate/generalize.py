"""Generalization of a candidate of concrete shapes to rules over symbolic sizes and attributes.

Every dimension of a variable becomes a symbol of its own; a number in an attribute becomes a symbol that it shares with
equal numbers of the same kind. Shape inference with a solver (:class:`taso_py.ir.unify.SizeSolver`) then finds the
equalities under which both sides type-check and agree in type. Where the result is not true, some attributes keep their
numbers: those are the *fixed* ones.

Invariant: the resulting rules are well-formed; whether they are true is tested and proved elsewhere.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from math import gcd, prod
from typing import Any, TypeAlias, get_args, get_type_hints

from taso_py.ir.errors import InvariantError, ShapeError
from taso_py.ir.graph import Graph, topological
from taso_py.ir.node import Node, Value, make
from taso_py.ir.operator import AttributeValue, Input, Operator
from taso_py.ir.size import Dim, FloorDiv, Poly, evaluate, floordiv, solve, symbol
from taso_py.ir.types import Axis, Group, TensorType
from taso_py.ir.unify import SizeSolver
from taso_py.ops.base import plain_axis
from taso_py.ops.movement import Concat, Pad, Reshape, Slice, runs
from taso_py.rules.substitution import Substitution, attribute_symbols, canonical

Number: TypeAlias = tuple[str, int | float]
"""A number of a kind, e.g. ``("conv2d.stride", 2)``: its occurrences become one symbol per position, or all stay
fixed."""

UNIT: Number = ("size", 1)
"""Axes of size one of the variables."""
_UNGROUPED: Number = ("conv2d.groups", 1)
"""Always fixed: most convolutions have no groups."""
_SHAPES = ("reshape.shape", "expand.shape")
_MOST_CHOICES = 16


@dataclass(frozen=True)
class Generality:
    """The numbers that stay numbers (bounds of slices: sizes), and the variables that get a leading axis group."""

    fixed: frozenset[Number] = frozenset()
    shares_bounds: bool = True
    """True if equal bounds of slices are one symbol; otherwise each is a symbol of its own."""
    grouped: frozenset[str] = frozenset()
    replaced: int = 0
    """Number of first axes of those variables that the group replaces; it precedes the remaining ones."""
    narrow: bool = False
    """True if a bound may be the one after another bound or before the end of an axis."""
    halves: bool = False
    """True if a size may be another one and an even number."""
    faithful: bool = False
    """True if the candidate has to be an instance, without symbols that only stand for one number."""


def lift(source: Sequence[Value], target: Sequence[Value], generality: Generality) -> Iterator[Substitution]:
    """Yield the rules from ``source`` to ``target`` at a generality; none if it does not type-check.

    There are several where an attribute of the target is not determined by the types: then sums and differences of
    symbols that the source binds are tried if they have the right value in the candidate.
    """
    lifting = _Lifting(generality)
    try:
        lifting.side(source)
        lifting.solver.known = frozenset(lifting.example_values)
        lifting.side(target)
        for left, right in zip(source, target, strict=True):
            lifting.equate(left, right)
    except (ShapeError, ValueError):
        return
    if lifting.is_broadcast_lost or (generality.faithful and not lifting.holds_the_candidate):
        return
    for choice in lifting.expressions(source, target):
        try:
            rule = lifting.rule(source, target, choice)
        except (ShapeError, ValueError, InvariantError):
            continue
        yield rule


def numbers(source: Sequence[Value], target: Sequence[Value]) -> list[Number]:
    """Return the numbers of a candidate that may be fixed, in the order of occurrence."""
    lifting = _Lifting(Generality())
    for node in topological(value.node for value in (*source, *target)):
        if isinstance(node.op, Input):
            lifting.variable(node.op)
        else:
            lifting.operator(node.op)
    return list(lifting.encountered)


def initial_generalities(
    found: Sequence[Number], *, narrow: bool = False, faithful: bool = False
) -> Iterator[Generality]:
    """Yield the generalities from which the most general rule is searched, the most general first.

    Bounds of slices are at first independent symbols; only where all else fails are they treated as sizes. Narrow rules
    come last: of windows without padding, of slices from the beginning, to the end, and of one element.
    """
    bounds = [number for number in found if number[0] == "slice"]
    others = frozenset(number for number in found if number[0] != "slice")
    usual = Generality(halves=narrow, faithful=faithful)
    for shares in (False, True) if bounds else (True,):
        for fixed in dict.fromkeys((frozenset[Number](), others)):
            yield replace(usual, fixed=fixed, shares_bounds=shares)
    if bounds:
        yield replace(usual, fixed=frozenset(found))
    if not narrow:
        return
    neutral = frozenset((kind, value) for kind, value in found if value == 0 or (value == 1 and kind != "slice"))
    stops = frozenset(("slice", start + 1) for _, start in bounds) & frozenset(bounds)
    for fixed in (neutral, neutral | frozenset(bounds), neutral | stops):
        yield replace(usual, fixed=fixed, narrow=True)


class _Preferring(SizeSolver):
    """A solver that prefers to bind symbols of the target only, then attributes, and decomposes floor divisions.

    Two floor divisions are equal if their parts are. A number that has to be divisible is taken to be the divisor, if
    the two are equal in the candidate, else a multiple of it. Where a sum divides a sum, all quotients are one.
    """

    def __init__(self, example_values: dict[str, int | float], *, halves: bool) -> None:
        super().__init__()
        self._example_values = example_values
        self._halves = halves
        self.known: frozenset[str] = frozenset()
        """Symbols of the source, once it has been inferred."""
        self.dimensions: set[str] = set()
        """Symbols of the axes of variables."""

    def equal(self, left: Axis, right: Axis, why: str) -> None:
        if isinstance(left, Group) or isinstance(right, Group):
            super().equal(left, right, why)
            return
        difference = self.resolve(left) - self.resolve(right)
        if not isinstance(difference, Poly):
            super().equal(left, right, why)
            return
        difference = _without_common_factor(difference)
        preferences = (lambda name: name not in self.known, lambda name: name not in self.dimensions)
        solutions = (solve(difference, preference) for preference in preferences)
        if (solution := next(filter(None, solutions), None)) is not None:
            self.bind(*solution)
        elif (pair := _equal_divisions(difference)) is not None:
            self.equal(pair[0].denominator, pair[1].denominator, why)
            self.equal(pair[0].numerator, pair[1].numerator, why)
        elif (names := _divisible(difference)) is not None and self._is_divided(*names):
            self.equal(symbol(names[0]), self._multiple(*names), why)
        elif (quotients := _unequal_quotients(difference)) is not None:
            self.equal(*quotients, why)
            self.equal(left, right, why)
        elif self._halves and (even := _even(difference)) is not None:
            self.equal(even, self._half(even) * 2, why)
        elif (symbols := _equal_symbols(difference)) is not None:
            self.bind(*symbols)
        else:
            super().equal(left, right, why)

    def _half(self, even: Poly) -> Poly:
        """Return a new symbol for the half of a number that has to be even."""
        name = f"half_{len(self.dimensions)}"
        self._example_values[name] = evaluate(even, _whole(self._example_values)) // 2
        self.dimensions.add(name)
        return symbol(name)

    def _is_divided(self, whole: str, part: str) -> bool:
        """Return whether a number divides another in the candidate."""
        return self._example_values[whole] % self._example_values[part] == 0

    def _multiple(self, whole: str, part: str) -> Dim:
        """Return what a number is that another has to divide: that other, or a multiple of it by a symbol."""
        times = self._example_values[whole] // self._example_values[part]
        if times == 1:
            return symbol(part)
        name = f"{whole}_over_{part}"
        self._example_values[name] = times
        self.dimensions.add(name)
        return symbol(name) * symbol(part)


def _without_common_factor(difference: Poly) -> Poly:
    """Return a difference without the factors common to all its terms: it vanishes where the rest does."""
    content = gcd(*(factor for _, factor in difference.terms))
    if content > 1:
        difference = Poly(tuple((monomial, factor // content) for monomial, factor in difference.terms))
    for atom in difference.terms[0][0]:
        quotient = floordiv(difference, symbol(atom)) if isinstance(atom, str) else difference
        if len(difference.terms) > 1 and isinstance(quotient, Poly) and quotient * symbol(str(atom)) == difference:
            return _without_common_factor(quotient)
    return difference


def _equal_symbols(difference: Poly) -> tuple[str, Dim] | None:
    """Return the symbols of a difference of two, or None."""
    found = solve(difference, lambda _name: True)
    return found if found is not None and found[1] == symbol(str(found[1])) else None


def _equal_divisions(difference: Poly) -> tuple[FloorDiv, FloorDiv] | None:
    """Return the two atoms of a difference ``a // b - c // d``, or None."""
    found = [(monomial[0], factor) for monomial, factor in difference.terms if len(monomial) == 1]
    if len(found) == len(difference.terms) == 2 and found[0][1] == -found[1][1]:
        first, second = found[0][0], found[1][0]
        if isinstance(first, FloorDiv) and isinstance(second, FloorDiv):
            return first, second
    return None


def _divisible(difference: Poly) -> tuple[str, str] | None:
    """Return the symbols ``n`` and ``d`` of a difference ``d * (n // d) - n``, or None."""
    for division in {atom for atom in difference.atoms() if isinstance(atom, FloorDiv)}:
        whole, part = division.numerator, division.denominator
        remainder = part * floordiv(whole, part) - whole
        if whole == symbol(str(whole)) and part == symbol(str(part)) and difference in (remainder, -1 * remainder):
            return str(whole), str(part)
    return None


def _unequal_quotients(difference: Poly) -> tuple[Dim, Dim] | None:
    """Return two of the numbers ``n`` and ``m`` in ``(a*n + b*m) // (a + b)`` that are not equal; None if all are."""
    for division in {atom for atom in difference.atoms() if isinstance(atom, FloorDiv)}:
        whole, divisor = _summands(division.numerator), _summands(division.denominator)
        quotients = [quotient for a in divisor for part in whole if (quotient := floordiv(part, a)) * a == part]
        unequal = [quotient for quotient in quotients if quotient != quotients[0]]
        if len(quotients) == len(whole) == len(divisor) and unequal:
            return quotients[0], unequal[0]
    return None


def _summands(total: Dim) -> Sequence[Dim]:
    """Return the terms of a sum of products of symbols; nothing if one is a number."""
    terms = total.terms if isinstance(total, Poly) else ()
    return [Poly((term,)) for term in terms] if all(monomial for monomial, _ in terms) else []


def _whole(values: Mapping[str, int | float]) -> Mapping[str, int]:
    """Return the values that are whole numbers."""
    return {name: value for name, value in values.items() if isinstance(value, int)}


def _even(difference: Poly) -> Poly | None:
    """Return the number that has to be even for a difference ``2 * (n // 2) - n`` to vanish, or None."""
    for division in {atom for atom in difference.atoms() if isinstance(atom, FloorDiv) and atom.denominator == 2}:
        whole = division.numerator
        remainder = floordiv(whole, 2) * 2 - whole
        if isinstance(whole, Poly) and difference in (remainder, -1 * remainder):
            return whole
    return None


@dataclass
class _Lifting:
    """One attempt: symbols for numbers, types for values, and the solver's bindings."""

    generality: Generality
    encountered: dict[Number, None] = field(default_factory=dict[Number, None])
    """Numbers encountered that may be fixed."""
    example_values: dict[str, int | float] = field(default_factory=dict[str, "int | float"])
    """The number in the candidate that each symbol replaces."""
    solver: _Preferring = field(init=False)
    ops: dict[Node, Operator] = field(default_factory=dict[Node, Operator])
    types: dict[Node, tuple[TensorType, ...]] = field(default_factory=dict[Node, tuple[TensorType, ...]])
    sizes: set[str] = field(default_factory=set[str])
    """Symbols in attributes that are shapes."""
    placed: set[str] = field(default_factory=set[str])
    """Bounds of slices that are treated as sizes: fixed, but not numbers."""

    def __post_init__(self) -> None:
        self.solver = _Preferring(self.example_values, halves=self.generality.halves)

    # -- symbols

    def _symbol(self, name: str, value: int | float) -> Poly:
        self.example_values[name] = value
        return symbol(name)

    def variable(self, op: Input) -> TensorType:
        """Return the symbolic type of a variable."""
        shape: list[Axis] = []
        for axis, size in enumerate(op.type.sizes):
            if size == 1:
                self.encountered[UNIT] = None
            is_fixed = size == 1 and UNIT in self.generality.fixed
            shape.append(size if is_fixed else self._symbol(f"{op.key}_{axis}", size))
            self.solver.dimensions.add(f"{op.key}_{axis}")
        if op.key in self.generality.grouped:
            if len(shape) < self.generality.replaced:
                raise ShapeError(f"{op.key} has too few axes")
            shape = [Group("G"), *shape[self.generality.replaced :]]
        return TensorType(op.type.dtype, tuple(shape))

    def operator(self, op: Operator) -> Operator:
        """Return an operator with symbols for its numbers."""
        changed = {name: self._attribute(_kind(op, name), (), getattr(op, name)) for name in _symbolic_fields(type(op))}
        return replace(op, **changed) if changed else op

    def _attribute(self, kind: str, position: tuple[int, ...], value: AttributeValue) -> AttributeValue:
        if isinstance(value, tuple):
            return tuple(self._attribute(kind, (*position, index), item) for index, item in enumerate(value))
        if not isinstance(value, int | float) or isinstance(value, bool) or (kind, value) == _UNGROUPED:
            return value
        if _may_be_fixed(kind, value):
            self.encountered[kind, value] = None
            if (kind, value) in self.generality.fixed:
                if kind != "slice" or value == 0:
                    return value
                self.placed.add(f"slice__{value}")
        place = "_".join(map(str, position))
        if kind == "slice":
            # Bounds are places on an axis: a stop and a start may well be the same place.
            place = "" if self.generality.shares_bounds else str(len(self.example_values))
        found = self._symbol(f"{kind.replace('.', '_')}_{place}_{str(value).replace('.', '_')}", value)
        if kind in _SHAPES:
            self.sizes.add(str(found))
        return found

    # -- types

    def side(self, values: Iterable[Value]) -> None:
        """Infer the types of one side."""
        for node in topological(value.node for value in values):
            if node in self.types:
                continue
            if isinstance(node.op, Input):
                self.types[node] = (self.variable(node.op),)
                continue
            self.ops[node] = self.operator(node.op)
            operands = [self.solver.resolve_type(self.types[v.node][v.output]) for v in node.inputs]
            if isinstance(node.op, Reshape):
                self._align(node, node.op, operands[0])
                operands = list(map(self.solver.resolve_type, operands))
            self.types[node] = self.ops[node].substitute(self.solver.bindings).infer(operands, self.solver)

    def _align(self, node: Node, op: Reshape, operand: TensorType) -> None:
        """Equate what a reshape merges and splits in the candidate.

        The equality of the products over all axes is a weaker condition.
        """
        before = [plain_axis(operand, axis) for axis in range(-operand.rank, 0)]
        lifted = self.ops[node].substitute(self.solver.bindings)
        assert isinstance(lifted, Reshape)
        for sources, targets in runs(node.inputs[0].type.sizes, op.shape):
            self.solver.equal(prod(before[sources]), prod(lifted.shape[targets]), "reshape")

    def equate(self, left: Value, right: Value) -> None:
        """Equate the types of two outputs."""
        a, b = self.types[left.node][left.output], self.types[right.node][right.output]
        if a.rank != b.rank:
            raise ShapeError("the sides differ in rank")
        for first, second in zip(a.shape, b.shape, strict=True):
            self.solver.equal(first, second, "output")

    @property
    def is_broadcast_lost(self) -> bool:
        """True if an axis of size one, which is broadcast, would have to equal another one: a different rule."""
        sizes = _whole(self.example_values)
        names = sorted(self.solver.dimensions & sizes.keys())
        return any((sizes[name] == 1) != (evaluate(self.solver.resolve(symbol(name)), sizes) == 1) for name in names)

    @property
    def holds_the_candidate(self) -> bool:
        """True if what the types ask for is so in the candidate, and determines no number that is not a size."""
        known = _whole(self.example_values)
        asked = [(name, value) for name, value in self.solver.bindings.items() if name in known]
        free = known.keys() - self.solver.dimensions - self.sizes
        return all(evaluate(value, known) == known[name] for name, value in asked) and not any(
            name in free and isinstance(value, int) for name, value in asked
        )

    # -- results

    def expressions(self, source: Sequence[Value], target: Sequence[Value]) -> Iterator[Mapping[str, Dim]]:
        """Yield values for the symbols that only the target has, and for bounds that are treated as sizes.

        They are sums and differences of symbols that the source binds, the simplest first, of these the sizes of
        outputs: a merged result is split where these end. Where several operands are joined, each of them ends there.
        """
        used = self._symbols_used(source)
        bound = sorted(used - self.placed, key=lambda name: (name not in self._type_symbols(source), name))
        free = sorted((self._symbols_used(target) | used) - set(bound))
        ends = self._ends(source)
        choices = itertools.product(*(self._expressions_for(name, bound, ends) for name in free))
        for values in itertools.islice(choices, _MOST_CHOICES):
            yield dict(zip(free, values, strict=True))

    def _ends(self, values: Sequence[Value]) -> list[Dim]:
        """Return the places where operands of concatenations end; those of two are sizes of values."""
        found: list[Dim] = []
        for node in topological(value.node for value in values):
            if isinstance(node.op, Concat) and len(node.inputs) > 2:
                types = [self.solver.resolve_type(self.types[value.node][value.output]) for value in node.inputs]
                found += itertools.accumulate(plain_axis(type_, node.op.axis) for type_ in types)
        return found

    def _type_symbols(self, values: Sequence[Value]) -> set[str]:
        """Return the symbols in the types of some values."""
        return set().union(*(self.solver.resolve_type(self.types[v.node][v.output]).symbols for v in values))

    def _symbols_used(self, values: Iterable[Value]) -> set[str]:
        found: set[str] = set()
        for node in topological(value.node for value in values):
            if isinstance(node.op, Input):
                found |= self.solver.resolve_type(self.types[node][0]).symbols
            else:
                resolved = self.ops[node].substitute(self.solver.bindings)
                found |= set().union(*(attribute_symbols(value) for _, value in resolved.attributes))
        return found

    def _expressions_for(self, name: str, bound: Sequence[str], ends: Sequence[Dim]) -> Iterator[Dim]:
        wanted = self.example_values[name]
        starts = [known for known in bound if known.startswith("slice")]
        sizes = [known for known in bound if known in self.solver.dimensions]
        bounds = [known for known in bound if known.startswith("slice")]
        others = [known for known in bound if known not in {*sizes, *bounds}]
        if name in self.placed:
            bounds = others = []
        yield from (symbol(known) for known in (*bounds, *others, *sizes) if self.example_values[known] == wanted)
        if wanted == 0 and isinstance(wanted, int):
            yield 0
        for alike in (bounds, sizes):
            for a, b in itertools.combinations_with_replacement(alike, 2):
                if self.example_values[a] + self.example_values[b] == wanted:
                    yield symbol(a) + symbol(b)
        for a, b in itertools.permutations((*bounds, *sizes), 2):
            if self.example_values[a] - self.example_values[b] == wanted:
                yield symbol(a) - symbol(b)
        if self.generality.narrow:
            yield from (symbol(start) + 1 for start in starts if self.example_values[start] + 1 == wanted)
            yield from (symbol(size) - 1 for size in sizes if self.example_values[size] - 1 == wanted)
        for a, b in itertools.product(bounds, others if not name.startswith("slice") else ()):
            if self.example_values[a] + self.example_values[b] == wanted:
                yield symbol(a) + symbol(b)
        if name.startswith("slice"):
            yield from (end for end in ends if evaluate(end, _whole(self.example_values)) == wanted)

    def rule(self, source: Sequence[Value], target: Sequence[Value], choice: Mapping[str, Dim]) -> Substitution:
        """Return the rule for a choice of expressions; raise if ill-formed or true for particular sizes only."""
        sides = (self._graph(source, choice), self._graph(target, choice))
        inputs = {node: None for side in sides for node in Graph((), side).nodes if isinstance(node.op, Input)}
        return canonical(Substitution(Graph(tuple(inputs), sides[0]), Graph(tuple(inputs), sides[1])))

    def _graph(self, values: Sequence[Value], choice: Mapping[str, Dim]) -> tuple[Value, ...]:
        new: dict[Node, Node] = {}
        for node in topological(value.node for value in values):
            if isinstance(node.op, Input):
                type_ = self.solver.resolve_type(self.types[node][0]).substitute(choice)
                fits = zip(reversed(type_.shape), reversed(node.op.type.sizes), strict=False)
                if any(isinstance(axis, int) and not axis == size == 1 for axis, size in fits):
                    raise ShapeError("the rule would hold for particular sizes only")
                new[node] = make(replace(node.op, type=type_))
            else:
                op = self.ops[node].substitute(self.solver.bindings).substitute(choice)
                new[node] = make(op, [Value(new[value.node], value.output) for value in node.inputs])
        return tuple(Value(new[value.node], value.output) for value in values)


def _kind(op: Operator, name: str) -> str:
    if isinstance(op, Slice | Pad):
        return "slice"
    hint = _hints(type(op))[name]
    return "number" if float in get_args(hint) else f"{op.name}.{name}"


def _may_be_fixed(kind: str, value: int | float) -> bool:
    """Return whether a number may stay fixed; shapes and groups follow from sizes, except for the neutral number."""
    return value == 1 if kind in _SHAPES or kind.endswith(".groups") else True


@cache
def _hints(kind: type[Operator]) -> dict[str, Any]:
    return get_type_hints(kind)


@cache
def _symbolic_fields(kind: type[Operator]) -> tuple[str, ...]:
    """Return the attributes whose type admits a symbol."""
    return tuple(field.name for field in fields(kind) if _admits_symbol(_hints(kind)[field.name]))


def _admits_symbol(hint: Any) -> bool:
    return hint is Poly or any(_admits_symbol(argument) for argument in get_args(hint))
