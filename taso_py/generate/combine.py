"""Which tuples of terms a production is applied to at a level: those with level - 1 operator instances in all.

Most tuples are of terms that share nothing, and are formed for all terms of some types and sizes at once; those that
share instances follow, from each set of instances that a tuple could consist of.

Invariant: no tuple comes twice, a symmetric production sees each unordered tuple once, and up to level 4 no tuple is
missing (beyond, three terms could share instances pairwise).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from taso_py.generate.terms import Ids, Terms
from taso_py.generate.vocabulary import Half
from taso_py.ir.types import TensorType


@dataclass(frozen=True)
class Batch:
    """A production applied to many tuples of terms of the same types."""

    production: int
    types: tuple[TensorType, ...]
    operands: Ids
    """One row a tuple."""


class Combinations:
    """The tuples of one level over the representatives of the levels before."""

    def __init__(self, terms: Terms, representatives: Sequence[int], level: int) -> None:
        self._terms, self._level = terms, level
        self._numbers = representatives
        self._pools: dict[tuple[TensorType, str], dict[int, Ids]] = {}
        grouped: dict[tuple[TensorType, str], dict[int, list[int]]] = {}
        for number in representatives:
            row = terms.rows[number]
            for role in row.fits:
                grouped.setdefault((row.type, role), {}).setdefault(row.size, []).append(number)
        for key, sizes in grouped.items():
            self._pools[key] = {size: np.array(numbers, dtype=np.int64) for size, numbers in sizes.items()}
        width = max(1, level - 1)
        self._instances = np.full((len(terms.rows), width), -1, dtype=np.int64)
        for number in representatives:
            instances = terms.rows[number].instances
            if len(instances) <= width:
                self._instances[number, : len(instances)] = instances

    def batches(self) -> Iterator[Batch]:
        """All tuples, by production and types."""
        shared = self._sharing()
        for production in range(len(self._terms.family.productions)):
            for types in self._types(production):
                parts = [*self._products(production, types)]
                if (production, types) in shared:
                    parts.append(np.array(sorted(shared[production, types]), dtype=np.int64))
                if parts:
                    yield Batch(production, types, np.concatenate(parts))

    def _types(self, number: int) -> Iterator[tuple[TensorType, ...]]:
        """The operand types that a production accepts, found operand by operand."""
        production = self._terms.production(number)
        least = 1 if isinstance(production.op, Half) else production.op.arity[0]
        partial: list[tuple[TensorType, ...]] = [()]
        for position, role in enumerate(production.roles):
            available = [type_ for type_, of in self._pools if of == role]
            partial = [
                (*types, type_)
                for types in partial
                for type_ in available
                if position + 1 < least or self._terms.infer(number, (*types, type_))
            ]
        for types in partial:
            if not production.symmetric or types[0].text <= types[1].text:
                yield types

    def _products(self, number: int, types: tuple[TensorType, ...]) -> Iterator[Ids]:
        """Tuples of terms that share no instance."""
        production = self._terms.production(number)
        pools = [self._pools[type_, role] for type_, role in zip(types, production.roles, strict=True)]
        for sizes in itertools.product(*(sorted(pool) for pool in pools)):
            if sum(sizes) != self._level - 1:
                continue
            columns = np.meshgrid(*(pool[size] for pool, size in zip(pools, sizes, strict=True)), indexing="ij")
            operands = np.stack([column.ravel() for column in columns], axis=1)
            if production.symmetric and types[0] == types[1]:
                operands = operands[operands[:, 0] <= operands[:, 1]]
            occupied = [position for position, size in enumerate(sizes) if size]
            for a, b in itertools.combinations(occupied, 2):
                operands = operands[self._disjoint(operands[:, a], operands[:, b])]
            if len(operands):
                yield operands

    def _disjoint(self, left: Ids, right: Ids) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        a, b = self._instances[left], self._instances[right]
        same = (a[:, :, None] == b[:, None, :]) & (a[:, :, None] >= 0)
        return ~same.any(axis=(1, 2))

    def _sharing(self) -> dict[tuple[int, tuple[TensorType, ...]], set[tuple[int, ...]]]:
        """Tuples that share instances, by production and types."""
        found: dict[tuple[int, tuple[TensorType, ...]], set[tuple[int, ...]]] = {}
        several = [n for n, production in enumerate(self._terms.family.productions) if production.arity > 1]
        variables = [number for number in self._numbers if not self._terms.rows[number].size]
        for roots, members in self._supports():
            for number in several:
                for operands in self._fill(number, roots, members, variables):
                    types = tuple(self._terms.rows[operand].type for operand in operands)
                    if self._terms.infer(number, types):
                        found.setdefault((number, types), set()).add(operands)
        return found

    def _supports(self) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Sets of level - 1 instances that a tuple may consist of: the topmost ones, and all."""
        wanted = self._level - 1
        rows = self._terms.rows
        operators = [number for number in self._numbers if rows[number].size]
        for number in operators:
            if rows[number].size == wanted:
                yield (number,), rows[number].instances
        users: dict[int, list[int]] = {}
        for number in operators:
            if rows[number].size < wanted:
                for instance in rows[number].instances:
                    users.setdefault(instance, []).append(number)
        pairs = {pair for sharing in users.values() for pair in itertools.combinations(sharing, 2)}
        for a, b in sorted(pairs):
            union = {*rows[a].instances, *rows[b].instances}
            if len(union) == wanted and a not in rows[b].instances and b not in rows[a].instances:
                yield (a, b), tuple(sorted(union))

    def _fill(
        self, number: int, roots: tuple[int, ...], members: tuple[int, ...], variables: Sequence[int]
    ) -> Iterator[tuple[int, ...]]:
        """Operands that use every root, and at least two instances in all."""
        production = self._terms.production(number)
        rows = self._terms.rows
        computed = [[m for m in members if role in rows[m].fits] for role in production.roles]
        given = [[v for v in variables if role in rows[v].fits] for role in production.roles]
        places = range(production.arity)
        for count in range(2, production.arity + 1):
            for occupied in itertools.combinations(places, count):
                for chosen in itertools.product(*(computed[place] for place in occupied)):
                    if not set(roots) <= set(chosen) or sum(rows[c].size for c in chosen) < self._level:
                        continue
                    slots: list[Sequence[int]] = list(given)
                    for place, member in zip(occupied, chosen, strict=True):
                        slots[place] = (member,)
                    yield from self._ordered(slots, production.symmetric)

    def _ordered(self, slots: list[Sequence[int]], symmetric: bool) -> Iterator[tuple[int, ...]]:
        rows = self._terms.rows
        for operands in itertools.product(*slots):
            types = [rows[operand].type.text for operand in operands[:2]]
            if not symmetric or (types[0], operands[0]) <= (types[1], operands[1]):
                yield operands
