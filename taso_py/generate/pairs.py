"""Pairs of terms that compute the same; in large families each once up to names, without shared subterms.

A pair whose sides share a subterm is mostly an instance of one with a variable in its place, which says more, and may
be of a shape that the family has no variables of. It is tried on samples; where it holds, it replaces the pair. A
variable that both sides read more than once makes an instance too, and such pairs are the majority.

Invariant: of pairs of a large family that differ in names of variables or in subterms of both sides, one is yielded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from taso_py.generate.enumerate import Enumeration
from taso_py.generate.fingerprint import agree, samples_of
from taso_py.generate.terms import VARIABLE, Terms
from taso_py.ops.evaluate import Floats, evaluate

_Shape = tuple[int, tuple[int, ...]]
"""A term up to the names of variables, as a number, and the variables as they occur."""
_Key = tuple[int, int, tuple[int, ...]]
"""A pair up to names: both sides, and which variables are equal."""


_TO_FORGET = 3
"""Number of additional operators with which a side may read a value and discard it: a join, a split, and that
value's."""


@dataclass(frozen=True)
class Pair:
    """Two terms, and the subterms of both that a variable replaces."""

    left: int
    right: int
    cut: frozenset[int] = frozenset()


def pairs(found: Enumeration) -> Iterator[Pair]:
    """Yield the members of each class with the representative."""
    distinct = _Distinct(found.terms)
    for first, *others in found.classes.values():
        for member in others:
            if found.terms.family.is_large:
                yield from distinct.take(first, member)
            elif not distinct.repeats(first, member):
                yield Pair(first, member)


@dataclass
class _Distinct:
    """Remembers pairs up to names."""

    terms: Terms
    _seen: dict[_Key, bool] = field(default_factory=dict["_Key", bool])
    """True if a pair holds, by its key."""
    _kinds: dict[object, int] = field(default_factory=dict[object, int])
    """A number for each kind of leaf, and for each production applied to numbered terms."""
    _whole: dict[int, _Shape] = field(default_factory=dict[int, _Shape])
    """Shapes of terms without cuts."""

    def take(self, left: int, right: int) -> Iterator[Pair]:
        """Yield the pair, or the one that replaces it, if it is new."""
        for cut in self._cuts(left, right):
            if not cut and self.repeats(left, right):
                return
            key = self._key(left, right, cut)
            is_new = key not in self._seen
            if is_new:
                self._seen[key] = not cut or self._agree(left, right, cut)
            if self._seen[key]:
                if is_new:
                    yield Pair(left, right, cut)
                return

    def repeats(self, left: int, right: int) -> bool:
        """Return whether a variable is read more than once on both sides: such a pair is not wanted as it stands.

        It is an instance of one with distinct variables, or a useless coincidence.
        """
        return bool(self.terms.rows[left].repeats & self.terms.rows[right].repeats)

    def _cuts(self, left: int, right: int) -> Iterator[frozenset[int]]:
        """Yield sets of subterms that variables might replace: shared ones, ever fewer, then ones of one side only."""
        rows = self.terms.rows
        cut = self._separable_subterms(left, right)
        while cut:
            if all(map(self._may_be_variable, cut)):
                yield cut
            cut = frozenset(o for number in cut for o in rows[number].operands if rows[o].production != VARIABLE)
        if rows[right].size - rows[left].size >= _TO_FORGET:
            yield from (frozenset({n}) for n in reversed(rows[right].instances[:-1]) if self._may_be_variable(n))
        yield frozenset()

    def _may_be_variable(self, number: int) -> bool:
        """Return whether a term has no axis of size one, which would be broadcast, or match any axis."""
        return 1 not in self.terms.rows[number].type.sizes

    def _separable_subterms(self, left: int, right: int) -> frozenset[int]:
        """Return the greatest non-variable subterms that both sides have, or that share no variable with the other."""
        rows = self.terms.rows
        first, second = set(rows[left].instances), set(rows[right].instances)
        shared = first & second
        shared |= {number for number in first if not rows[number].variables & rows[right].variables}
        shared |= {number for number in second if not rows[number].variables & rows[left].variables}
        users = (first | second) - shared
        return frozenset(operand for user in users for operand in rows[user].operands if operand in shared)

    def _key(self, left: int, right: int, cut: frozenset[int]) -> _Key:
        memo: dict[int, _Shape] = {} if cut else self._whole
        (one, names), (other, others) = (self._shape(number, cut, memo) for number in (left, right))
        order: dict[int, int] = {}
        return one, other, tuple(order.setdefault(name, len(order)) for name in (*names, *others))

    def _shape(self, number: int, cut: frozenset[int], memo: dict[int, _Shape]) -> _Shape:
        if number not in memo:
            row = self.terms.rows[number]
            if row.production == VARIABLE or number in cut:
                memo[number] = self._kinds.setdefault((row.type, row.role), len(self._kinds)), (number,)
            else:
                parts = [self._shape(operand, cut, memo) for operand in row.operands]
                if self.terms.production(row.production).commutative:
                    parts.sort(key=lambda part: part[0])
                kind = row.production, *(kind for kind, _ in parts)
                names = tuple(name for _, names in parts for name in names)
                memo[number] = self._kinds.setdefault(kind, len(self._kinds)), names
        return memo[number]

    def _agree(self, left: int, right: int, cut: frozenset[int]) -> bool:
        """Return whether the sides agree on samples with variables for the cut terms."""
        values: dict[int, Floats] = {}
        one, other = (self._values(side, cut, values) for side in (left, right))
        return agree(one, other, self.terms.family.domain)

    def _values(self, number: int, cut: frozenset[int], memo: dict[int, Floats]) -> Floats:
        if number not in memo:
            row = self.terms.rows[number]
            if number in cut:
                memo[number] = samples_of(self.terms.seed, f"cut {number}", row.type)
            elif row.production == VARIABLE:
                memo[number] = self.terms.values(np.array([number]))[0]
            else:
                types = tuple(self.terms.rows[operand].type for operand in row.operands)
                operands = [self._values(operand, cut, memo) for operand in row.operands]
                op = self.terms.production(row.production).at(types)
                memo[number] = evaluate(op, operands, types, self.terms.family.domain)
        return memo[number]
