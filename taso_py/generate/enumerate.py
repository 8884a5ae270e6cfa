"""Enumeration, level by level, of every term of a family up to a number of operators, grouped by fingerprint.

Only one representative of each class is built upon. The last level stores fingerprints, and terms only where two share
one. The last level has only terms whose variables of each shape are the first ones, since all others are renamings; in
a large family so does the level before it, as a term built upon such a term adds parts of it and variables.

Invariant: each production is evaluated once for the same operands (up to order, where it is commutative); the result
depends on nothing but family, size and seed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from taso_py.generate.combine import Batch, Combinations
from taso_py.generate.fingerprint import USELESS, Keys
from taso_py.generate.terms import VARIABLE, Ids, Terms
from taso_py.generate.vocabulary import Family
from taso_py.ir.types import TensorType
from taso_py.ops.evaluate import Floats, evaluate

CHUNK_ELEMENTS = 1 << 21
"""Number of output elements that are evaluated at once."""


@dataclass(frozen=True)
class Split:
    """A term that computes two smaller ones at once: its halves along an axis."""

    term: int
    axis: int
    halves: tuple[int, int]
    """Representatives of the terms that the halves are equal to."""


@dataclass
class Enumeration:
    """The terms of a family, grouped by what they compute."""

    terms: Terms
    classes: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    """Term numbers by fingerprint, the representative first; of the last level, only those with a shared
    fingerprint."""
    splits: list[Split] = field(default_factory=list[Split])
    counts: list[int] = field(default_factory=list[int])
    """Number of terms evaluated at each level."""


def enumerate_terms(family: Family, seed: int, operators: int | None = None) -> Enumeration:
    """Enumerate a family up to ``operators`` instances; by default, and at most, the family's own number."""
    most = family.operators if operators is None else min(operators, family.operators)
    found = Enumeration(Terms(family, seed))
    terms = found.terms
    for number in range(len(terms.rows)):
        found.classes[int(terms.hasher.keys(terms.values(np.array([number])))[0])] = [number]
    for level in range(1, most + 1):
        _Level(found, level, most).run()
    return found


@dataclass
class _Kept:
    """A batch of the last level with its fingerprints."""

    batch: Batch
    keys: Keys


class _Level:
    """The terms with a given number of operators."""

    def __init__(self, found: Enumeration, level: int, last: int) -> None:
        self._found, self._terms, self._is_last = found, found.terms, level == last
        family = found.terms.family
        # The halves of a split term may well be renamings.
        self._is_named_in_order = self._is_last or (level == last - 1 and family.is_large and not family.split_axes)
        most = None if found.terms.family.every else 1
        built_upon = sorted(number for members in found.classes.values() for number in members[:most])
        self._combinations = Combinations(found.terms, built_upon, level)
        self._kept: list[_Kept] = []
        self._count = 0
        self._variables = np.array([row.variables for row in found.terms.rows], dtype=np.int64)
        self._leaves = np.array([row.leaves for row in found.terms.rows], dtype=np.int64)

    def run(self) -> None:
        for batch in self._combinations.batches():
            for chunk in self._chunks(batch):
                self._evaluate(chunk)
        if self._is_last:
            self._gather()
        self._found.counts.append(self._count)

    def _chunks(self, batch: Batch) -> Iterator[Batch]:
        operands = batch.operands
        if self._is_named_in_order:
            operands = operands[self._is_prefix(np.bitwise_or.reduce(self._variables[operands], axis=1))]
        inferred = self._terms.infer(batch.production, batch.types)
        elements = 1 if inferred is None else int(np.prod(inferred[1].sizes))
        step = max(1, CHUNK_ELEMENTS // (elements * 16))
        for start in range(0, len(operands), step):
            yield Batch(batch.production, batch.types, operands[start : start + step])

    def _is_prefix(self, variables: Ids) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Return a mask of the sets that use, of each shape, the first variables without gaps."""
        good = np.ones(len(variables), dtype=np.bool_)
        for first, end in self._terms.ranges:
            used = (variables >> first) & ((1 << (end - first)) - 1)
            good &= (used & (used + 1)) == 0
        return good

    def _evaluate(self, batch: Batch) -> None:
        inferred = self._terms.infer(batch.production, batch.types)
        if inferred is None:
            return
        op, type_ = inferred
        columns = [self._terms.values(batch.operands[:, position]) for position in range(batch.operands.shape[1])]
        values = evaluate(op, columns, batch.types, self._terms.family.domain)
        keys = self._terms.hasher.keys(values)
        self._count += len(keys)
        numbers: dict[int, int] = {}
        if self._is_last:
            self._kept.append(_Kept(batch, keys))
        else:
            numbers = self._append(batch, values, keys)
        self._split(batch, type_, values, keys=keys, numbers=numbers)

    def _append(self, batch: Batch, values: Floats, keys: Keys) -> dict[int, int]:
        """Add the terms of a batch; return their numbers by row."""
        numbers: dict[int, int] = {}
        for row, (operands, key) in enumerate(zip(batch.operands.tolist(), keys.tolist(), strict=True)):
            if key != USELESS:
                numbers[row] = self._terms.append(self._terms.apply(batch.production, operands), values[row])
                self._found.classes.setdefault(key, []).append(numbers[row])
        return numbers

    def _split(self, batch: Batch, type_: TensorType, values: Floats, keys: Keys, numbers: dict[int, int]) -> None:
        """Record which terms of a batch compute two known terms at once, reading each variable once."""
        if self._terms.production(batch.production).joins_or_splits:
            return
        once = self._leaves[batch.operands].sum(axis=1) == np.bitwise_count(
            np.bitwise_or.reduce(self._variables[batch.operands], axis=1)
        )
        rows = np.flatnonzero(once & (keys != USELESS))
        for axis in self._terms.family.split_axes:
            if not len(rows) or -axis > type_.rank or type_.sizes[axis] % 2:
                continue
            first, second = (self._terms.hasher.keys(h) for h in np.split(values[rows], 2, axis=axis))
            for row, *halves in zip(rows.tolist(), first.tolist(), second.tolist(), strict=True):
                known = [self._found.classes[half][0] for half in halves if half in self._found.classes]
                if len(known) == 2 and all(self._terms.rows[half].production != VARIABLE for half in known):
                    number = numbers.get(row)
                    if number is None:
                        number = numbers[row] = self._register(batch, row)
                    self._found.splits.append(Split(number, axis, (known[0], known[1])))

    def _register(self, batch: Batch, row: int) -> int:
        """Add a term of the last level, which nothing is built upon, without values."""
        term = self._terms.apply(batch.production, batch.operands[row].tolist())
        return self._terms.append(term, np.zeros(0))

    def _gather(self) -> None:
        """Add those terms of the last level that share a fingerprint with another term."""
        if not self._kept:
            return
        keys = np.concatenate([kept.keys for kept in self._kept])
        known = np.fromiter(self._found.classes, dtype=np.uint64, count=len(self._found.classes))
        _, inverse, counts = np.unique(keys, return_inverse=True, return_counts=True)
        wanted = ((counts[inverse] > 1) | np.isin(keys, known)) & (keys != USELESS)
        start = 0
        for kept in self._kept:
            for row in np.flatnonzero(wanted[start : start + len(kept.keys)]).tolist():
                self._found.classes.setdefault(int(kept.keys[row]), []).append(self._register(kept.batch, row))
            start += len(kept.keys)
