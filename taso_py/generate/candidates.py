"""From classes of terms to candidates: pairs of sides that agree on samples, each once, small and general ones first.

Invariant: of candidates that differ only in the names or sizes of variables, the order of commutative operands, or
direction, one is kept: the one that comes first.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from taso_py.generate.enumerate import Enumeration
from taso_py.generate.pairs import pairs
from taso_py.generate.terms import VARIABLE, Terms
from taso_py.generate.vocabulary import DATA, FUSED, WEIGHT, Half
from taso_py.generate.worth import gains
from taso_py.ir.graph import Graph, topological
from taso_py.ir.node import Node, Value, make
from taso_py.ir.operator import Input
from taso_py.ir.types import TensorType
from taso_py.ops.evaluate import Domain
from taso_py.ops.movement import Concat, Slice

_TRAILING = (3, 2, 5)
"""Sizes of appended axes; distinct from those of the variables they are appended to."""

Form: TypeAlias = "int | tuple[object, ...]"
"""A term as nested tuples: a variable's number, or the operator's text and the operands' forms."""


@dataclass(frozen=True)
class RuleCandidate:
    """Two sides of concrete shapes that agree on samples; either may become the source of a rule."""

    left: tuple[Value, ...]
    right: tuple[Value, ...]
    key: str
    """Canonical text of both sides, up to names, shapes and the order of commutative operands."""
    data: frozenset[str]
    """Names of the variables that are data."""
    axes: int = 1
    """Number of axes, from the last, to which the rule is transferred."""
    narrow: bool = False
    """True if rules of slices and windows at particular places only are wanted too."""
    domain: Domain = Domain.EXACT
    """The numbers on which the sides are compared."""
    faithful: bool = False
    """True if both sides have to be an instance of the rule."""
    one_way: bool = False
    """True if only the left side is to be replaced by the right one."""
    is_large: bool = False
    """True if the rule is wanted only if smaller rules do not derive it."""
    repeats: bool = False
    """True if both sides may read a variable more than once."""
    is_idle: bool = False
    """True if neither direction is wanted, as it gains nothing."""

    @property
    def order(self) -> tuple[int, int, int, int, str]:
        """Sort key: small ones first, among these those with more variables, so that a rule precedes its instances."""
        sizes = sorted(map(_expanded_size, (self.left, self.right)))
        variables = len(_variables((*self.left, *self.right)))
        return sizes[1], sizes[0], -variables, len(self.key), self.key


def _expanded_size(values: Iterable[Value]) -> int:
    """Return the number of operators with shared subterms counted at every use."""
    counts: dict[Node, int] = {}
    for node in topological(value.node for value in values):
        below = sum(counts[value.node] for value in node.inputs)
        counts[node] = below + (not isinstance(node.op, Input))
    return sum(counts[value.node] for value in values)


def _variables(values: Iterable[Value]) -> list[Node]:
    """Return the variables that are read."""
    return [node for node in topological(value.node for value in values) if isinstance(node.op, Input)]


def _repeats(values: Iterable[Value]) -> set[Node]:
    """Return the variables that an output reads more than once, shared subterms counted at every use."""
    found: set[Node] = set()
    for value in values:
        reads: dict[Node, Counter[Node]] = {}
        for node in topological([value.node]):
            reads[node] = Counter({node: 1}) if isinstance(node.op, Input) else Counter()
            for operand in node.inputs:
                reads[node].update(reads[operand.node])
        found |= {variable for variable, count in reads[value.node].items() if count > 1}
    return found


def collect(found: Enumeration) -> Iterator[RuleCandidate]:
    """Yield every candidate of an enumeration: class members with their representative, then the split terms.

    Where the family has fused operators, only classes with one count, and only in the direction towards it.
    """
    builder = Builder(found.terms)
    rows = found.terms.rows
    if any(row.role == FUSED for row in rows):
        yield from _recognitions(found, builder)
        return
    for pair in pairs(found):
        if not found.terms.family.shrinks:
            candidate = builder.candidate([(pair.left, None)], [(pair.right, None)], pair.cut)
            yield (
                candidate
                if found.terms.family.equal is None
                else _oriented_by_gain(candidate, found.terms.family.equal)
            )
        elif rows[pair.left].size < rows[pair.right].size:
            yield replace(builder.candidate([(pair.right, None)], [(pair.left, None)], pair.cut), one_way=True)
    for split in found.splits:
        first, second = (found.terms.rows[half].variables for half in split.halves)
        # Outputs without common variables decompose into two rules; and nothing is gained by reading more variables.
        if first & second and first | second == found.terms.rows[split.term].variables:
            halves = [(split.term, Half(split.axis, side)) for side in (0, 1)]
            yield builder.candidate([(half, None) for half in split.halves], halves)


def _oriented_by_gain(candidate: RuleCandidate, most: int) -> RuleCandidate:
    """Return the candidate, in the direction in which it gains if a side has more than ``most`` operators."""
    if all(len(Graph((), side).nodes) - len(_variables(side)) <= most for side in (candidate.left, candidate.right)):
        return candidate
    forwards = gains(candidate.left, candidate.right, candidate.data)
    backwards = gains(candidate.right, candidate.left, candidate.data)
    if forwards == backwards:
        return replace(candidate, is_large=True, is_idle=not forwards)
    left, right = (candidate.left, candidate.right) if forwards else (candidate.right, candidate.left)
    return replace(candidate, left=left, right=right, one_way=True, is_large=True)


def _recognitions(found: Enumeration, builder: Builder) -> Iterator[RuleCandidate]:
    """Yield the terms without fused operators, each with a fused operator that computes the same."""
    rows = found.terms.rows
    for members in found.classes.values():
        fused = [number for number in members if rows[number].role == FUSED]
        for member in (number for number in members if fused and number not in fused):
            yield replace(builder.candidate([(member, None)], [(fused[0], None)]), one_way=True)


class Builder:
    """Converts numbers of terms to values and forms."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._values: dict[int, Value] = {}
        self._forms: dict[int, list[Form]] = {}
        inputs = [(leaf, row) for leaf, row in zip(terms.leaves, terms.rows, strict=False) if isinstance(leaf, Input)]
        # Truth values are computed from data, and integers mostly.
        self._data = frozenset(
            leaf.key
            for leaf, row in inputs
            if row.role == DATA or (row.role != WEIGHT and not row.type.dtype.is_floating)
        )

    def candidate(
        self,
        left: Sequence[tuple[int, Half | None]],
        right: Sequence[tuple[int, Half | None]],
        cut: frozenset[int] = frozenset(),
    ) -> RuleCandidate:
        """Return the candidate of two sides; outputs are terms or halves, and terms in ``cut`` become variables."""
        builder = self._with_variables(cut) if cut else self
        sides = [[builder._output_forms(*output) for output in side] for side in (left, right)]
        key = min(_pair_key(one, other, builder._shape) for one, other in (sides, sides[::-1]))
        values = [tuple(builder._output(*output) for output in side) for side in (left, right)]
        family = self._terms.family
        return RuleCandidate(
            values[0],
            values[1],
            key=key,
            data=builder._data,
            axes=family.axes,
            narrow=family.narrow,
            domain=family.domain,
            faithful=family.faithful,
            repeats=family.repeats,
        )

    def _with_variables(self, cut: frozenset[int]) -> Builder:
        """Return a separate builder with variables in place of some terms."""
        builder, rows = Builder(self._terms), self._terms.rows
        for number in cut:
            builder._values[number] = make(Input(f"t{number}", rows[number].type)).value
            builder._forms[number] = [number]
        builder._data |= {f"t{number}" for number in cut if rows[number].role == DATA}
        return builder

    def _shape(self, number: int) -> str:
        """Return the rank of a term and its axes of size one, which are broadcast."""
        type_ = self._terms.rows[number].type
        units = [str(axis - type_.rank) for axis, size in enumerate(type_.sizes) if size == 1]
        return f"{type_.rank}({','.join(units)})" if units else str(type_.rank)

    def _output(self, number: int, half: Half | None) -> Value:
        value = self.value(number)
        return value if half is None else make(half.at([value.type]), [value]).value

    def _output_forms(self, number: int, half: Half | None) -> list[Form]:
        forms = self._all_forms(number)
        return forms if half is None else [(half.text, form) for form in forms]

    def value(self, number: int) -> Value:
        """Return the value of a term over input nodes named like the variables."""
        if number not in self._values:
            row = self._terms.rows[number]
            if row.production == VARIABLE:
                self._values[number] = make(self._terms.leaves[number]).value
            else:
                operands = [self.value(operand) for operand in row.operands]
                op = self._terms.production(row.production).at([value.type for value in operands])
                self._values[number] = make(op, operands).value
        return self._values[number]

    def _all_forms(self, number: int) -> list[Form]:
        """Return a term as nested tuples, with the operands of commutative operators in every order."""
        if number not in self._forms:
            row = self._terms.rows[number]
            if row.production == VARIABLE:
                self._forms[number] = [number]
            else:
                production = self._terms.production(row.production)
                choices = [self._all_forms(operand) for operand in row.operands]
                orders = [choices, choices[::-1]] if production.commutative else [choices]
                found = {(production.op.text, *form) for order in orders for form in itertools.product(*order)}
                self._forms[number] = sorted(found, key=repr)
        return self._forms[number]


def _pair_key(left: Sequence[list[Form]], right: Sequence[list[Form]], shape: Callable[[int], str]) -> str:
    """Return the least text of a pair over all orders of commutative operands, variables numbered as they occur."""
    firsts: list[tuple[str, dict[int, int]]] = []
    for forms in itertools.product(*left):
        numbers: dict[int, int] = {}
        firsts.append((" ; ".join(_text(form, numbers, shape) for form in forms), numbers))
    least = min(text for text, _ in firsts)
    seconds = [
        " ; ".join(_text(form, numbers, shape) for form in forms)
        for text, known in firsts
        if text == least
        for forms in itertools.product(*right)
        for numbers in [dict(known)]
    ]
    return f"{least} = {min(seconds)}"


def _text(form: Form, numbers: dict[int, int], shape: Callable[[int], str]) -> str:
    if isinstance(form, int):
        return f"{numbers.setdefault(form, len(numbers))}:{shape(form)}"
    name, *operands = form
    return f"{name}({','.join(_text(operand, numbers, shape) for operand in operands)})"  # pyright: ignore[reportArgumentType]


def distinct(candidates: Iterable[RuleCandidate]) -> list[RuleCandidate]:
    """Return one candidate per key, sorted by :attr:`RuleCandidate.order`, without those whose sides are equal.

    A variable that is repeated on both sides mostly makes an instance of a candidate with distinct variables, or a
    useless coincidence: such candidates are left out unless their family wants them, as are those without variables on
    the left.
    """
    first: dict[str, RuleCandidate] = {}
    for candidate in candidates:
        if candidate.left == candidate.right or not _variables(candidate.left):
            continue
        if candidate.repeats or not _repeats(candidate.left) & _repeats(candidate.right):
            known = first.setdefault(candidate.key, candidate)
            if _restrictions(known) > _restrictions(candidate):
                first[candidate.key] = candidate
    return sorted(first.values(), key=lambda candidate: candidate.order)


def _restrictions(candidate: RuleCandidate) -> tuple[bool, bool, bool]:
    """Return what a candidate is excluded from: of equal candidates the one with fewer restrictions is kept."""
    return candidate.is_idle, candidate.one_way, candidate.is_large


def shifted(candidate: RuleCandidate) -> Iterator[RuleCandidate]:
    """Yield the candidate at other axes: axes appended to all variables, axis attributes moved accordingly."""
    for count in range(1, candidate.axes):
        new: dict[Node, Node] = {}
        for node in topological(value.node for value in (*candidate.left, *candidate.right)):
            op = node.op
            if isinstance(op, Input):
                op = replace(op, type=TensorType(op.type.dtype, (*op.type.shape, *_TRAILING[:count])))
            elif isinstance(op, Concat | Slice):
                op = replace(op, axis=op.axis - count)
            new[node] = make(op, [Value(new[value.node], value.output) for value in node.inputs])
        left, right = (
            tuple(Value(new[value.node], value.output) for value in side) for side in (candidate.left, candidate.right)
        )
        yield replace(candidate, left=left, right=right, key=f"{candidate.key} shifted by {count}", axes=1)
