"""Tuples of terms that a production is applied to at a level: those with level - 1 operator instances in total.

Most tuples are of terms that share no instance, and are formed for all terms of some types and sizes at once; those
that share instances follow, from each set of instances that a tuple could consist of.

Invariant: no tuple occurs twice, a symmetric production gets each unordered tuple once, and up to level 4 no tuple is
missing (beyond, three terms could share instances pairwise).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from taso_py.generate.terms import Ids, Terms
from taso_py.generate.vocabulary import Half
from taso_py.ir.types import TensorType

CHUNK_PAIRS = 1 << 20
"""Number of pairs that are examined at once."""

Mask: TypeAlias = NDArray[np.bool_]


@dataclass(frozen=True)
class Batch:
    """A production applied to many tuples of terms of the same types."""

    production: int
    types: tuple[TensorType, ...]
    operands: Ids
    """Numbers of the operands, one row per tuple."""


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
        """Yield all tuples, grouped by production and types."""
        for production in range(len(self._terms.family.productions)):
            for types in self._types(production):
                parts = [*self._products(production, types)]
                if len(types) > 1:
                    parts += self._sharing(production, types)
                if parts:
                    yield Batch(production, types, np.concatenate(parts))

    def _types(self, number: int) -> Iterator[tuple[TensorType, ...]]:
        """Yield the operand types that a production accepts, found operand by operand."""
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
        """Yield tuples of terms that share no instance."""
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

    def _sharing(self, number: int, types: tuple[TensorType, ...]) -> Iterator[Ids]:
        """Yield tuples of terms that share an instance."""
        production = self._terms.production(number)
        fits = [self._fits(type_, role) for type_, role in zip(types, production.roles, strict=True)]
        if production.arity == 2:
            operands = self._pairs[fits[0][self._pairs[:, 0]] & fits[1][self._pairs[:, 1]]]
            if production.symmetric and types[0] == types[1]:
                operands = operands[operands[:, 0] <= operands[:, 1]]
        else:
            operands = np.array(sorted({*self._wider(fits)}), dtype=np.int64).reshape(-1, production.arity)
        if len(operands):
            yield operands

    def _fits(self, type_: TensorType, role: str) -> Mask:
        """Return a mask of the terms that have a type and fit a role."""
        found = np.zeros(len(self._terms.rows), dtype=np.bool_)
        for numbers in self._pools[type_, role].values():
            found[numbers] = True
        return found

    @cached_property
    def _pairs(self) -> Ids:
        """Pairs, in both orders, that share instances and have level - 1 of them together; sorted."""
        # A term that consists of all the instances is paired with each term that it contains, itself included.
        wanted = self._level - 1
        whole = np.array([n for n in self._numbers if self._terms.rows[n].size == wanted], dtype=np.int64)
        columns = self._instances[whole].T if wanted else ()
        found = [np.stack([whole, part], axis=1)[part >= 0] for part in columns]
        found += [pairs for pairs in self._overlapping() if len(pairs)]
        both = np.concatenate([*found, *(pairs[:, ::-1] for pairs in found), np.zeros((0, 2), dtype=np.int64)])
        return np.unique(both, axis=0)

    def _overlapping(self) -> Iterator[Ids]:
        """Yield pairs that share instances and of which neither contains the other."""
        wanted = self._level - 1
        sizes = np.array([row.size for row in self._terms.rows], dtype=np.int64)
        small = np.array([n for n in self._numbers if 0 < self._terms.rows[n].size < wanted], dtype=np.int64)
        flat = self._instances[small].ravel()
        users = np.repeat(small, self._instances.shape[1])[flat >= 0]
        order = np.argsort(flat[flat >= 0], kind="stable")
        shared, starts = np.unique(flat[flat >= 0][order], return_index=True)
        for instance, group in zip(shared.tolist(), np.split(users[order], starts[1:]), strict=False):
            step = max(1, CHUNK_PAIRS // len(group))
            for start in range(0, len(group), step):
                a, b = (grid.ravel() for grid in np.meshgrid(group[start : start + step], group, indexing="ij"))
                near = (a < b) & (sizes[a] + sizes[b] > wanted)
                a, b = a[near], b[near]
                same = self._instances[a][:, :, None] == self._instances[b][:, None, :]
                same &= self._instances[a][:, :, None] >= 0
                common = np.where(same.any(axis=2), self._instances[a], np.iinfo(np.int64).max)
                # Each pair once: from the first of the instances that it shares.
                good = (sizes[a] + sizes[b] - same.sum(axis=(1, 2)) == wanted) & (common.min(axis=1) == instance)
                yield np.stack([a[good], b[good]], axis=1)

    def _wider(self, fits: Sequence[Mask]) -> Iterator[tuple[int, ...]]:
        """Yield tuples of more than two operands that share instances.

        Two operands share instances, or one has all of them; the others are parts of these or variables.
        """
        rows = self._terms.rows
        variables = [number for number in self._numbers if not rows[number].size]
        somewhere = np.logical_or.reduce(fits)
        ordered = self._pairs[self._pairs[:, 0] <= self._pairs[:, 1]]
        for first, second in ordered[somewhere[ordered].all(axis=1)].tolist():
            members = sorted({*rows[first].instances, *rows[second].instances})
            roots = {first, second}
            if len(roots) > 1 and max(rows[first].size, rows[second].size) == len(members):
                continue  # found from the pair of the larger one with itself
            slots = [[number for number in (*variables, *members) if fit[number]] for fit in fits]
            for operands in itertools.product(*slots):
                if roots <= set(operands) and sum(rows[operand].size for operand in operands) >= self._level:
                    yield operands
