"""The table of terms of one family: production, operands, type and values of each.

A term is a variable, or a production applied to terms; shared subterms are counted once, so that a term is a directed
acyclic graph with a single sink and its size is the number of its operator instances.

Invariant: operands have smaller numbers than the terms that use them; every term has at most one output.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from taso_py.generate.fingerprint import Hasher, samples_of
from taso_py.generate.vocabulary import DATA, EITHER, GIVEN, WEIGHT, Family, Production, Variables
from taso_py.ir.errors import ShapeError
from taso_py.ir.operator import Constant, Input, Operator
from taso_py.ir.types import DType, TensorType
from taso_py.ops.base import TensorOperator
from taso_py.ops.evaluate import Floats, evaluate

VARIABLE = -1
"""Production number of a variable."""

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class TermRow:
    """One row of the table."""

    production: int
    """Index into the family's productions, or ``VARIABLE``."""
    operands: tuple[int, ...]
    type: TensorType
    instances: tuple[int, ...]
    """Operator instances that the term consists of, as numbers of the terms they yield, itself last."""
    variables: int
    """Variables that occur, as a bit set."""
    leaves: int
    """Number of occurrences of variables."""
    repeats: int
    """Variables, without constants, read more than once with shared subterms counted at every use, as a bit set."""
    role: str

    @property
    def size(self) -> int:
        """Number of operator instances."""
        return len(self.instances)

    @property
    def fits(self) -> tuple[str, ...]:
        """The letters of :attr:`Production.roles` that the term fits."""
        return (self.role, EITHER) if self.instances else (self.role, EITHER, GIVEN)


class Terms:
    """The terms of a family that later levels build on, with their values."""

    def __init__(self, family: Family, seed: int) -> None:
        self.family = family
        self.seed = seed
        self.hasher = Hasher(seed, family.domain)
        self.rows: list[TermRow] = []
        self.leaves: list[Operator] = []
        """The operators of the variables: inputs, or constants."""
        self.ranges: list[tuple[int, int]] = []
        """First and last-but-one number of the variables of each shape."""
        self._inputs = 0
        """The variables that are not constants, as a bit set."""
        self._values: dict[TensorType, list[Floats]] = {}
        self._place: list[int] = []
        self._inferred: dict[tuple[int, tuple[TensorType, ...]], tuple[TensorOperator, TensorType] | None] = {}
        for variables in family.variables:
            first = len(self.rows)
            for number in range(1, variables.count + 1):
                self._add_variable(f"{variables.letter}{number}", variables, seed)
            self.ranges.append((first, len(self.rows)))

    def _add_variable(self, name: str, variables: Variables, seed: int) -> None:
        type_ = TensorType(variables.dtype, variables.shape)
        leaf, values = Input(name, type_, sign=variables.sign), samples_of(seed, name, type_, sign=variables.sign)
        if variables.number is not None:
            leaf = Constant(variables.number, DType.FLOAT)
            values = np.repeat(evaluate(leaf, [], [], self.family.domain)[None], len(values), axis=0)
        else:
            self._inputs |= 1 << len(self.rows)
        self.leaves.append(leaf)
        self.append(
            TermRow(
                VARIABLE,
                (),
                type_,
                instances=(),
                variables=1 << len(self.rows),
                leaves=1,
                repeats=0,
                role=variables.role,
            ),
            values,
        )

    def append(self, term: TermRow, values: Floats) -> int:
        """Add a term with its values of shape ``(samples, *shape)``; return its number."""
        column = self._values.setdefault(term.type, [])
        self._place.append(len(column))
        column.append(values)
        self.rows.append(term)
        return len(self.rows) - 1

    def values(self, ids: Ids) -> Floats:
        """Return the values of terms of one type, stacked."""
        column = self._values[self.rows[int(ids[0])].type]
        return np.stack([column[self._place[i]] for i in ids.tolist()])

    def apply(self, production: int, operands: Sequence[int]) -> TermRow:
        """Return the row of a production applied to terms, numbered as if it were the next."""
        parts = [self.rows[operand] for operand in operands]
        found = self.infer(production, tuple(part.type for part in parts))
        if found is None:
            raise ShapeError(f"{self.production(production).op.text} does not accept its operands")
        instances = sorted({i for part in parts for i in part.instances})
        variables = repeats = 0
        for part in parts:
            repeats |= part.repeats | (variables & part.variables & self._inputs)
            variables |= part.variables
        instances.append(len(self.rows))
        role = self.production(production).yields or (DATA if any(part.role == DATA for part in parts) else WEIGHT)
        leaves = sum(part.leaves for part in parts)
        return TermRow(
            production,
            tuple(operands),
            found[1],
            instances=tuple(instances),
            variables=variables,
            leaves=leaves,
            repeats=repeats,
            role=role,
        )

    def production(self, number: int) -> Production:
        """Return a production of the family."""
        return self.family.productions[number]

    def infer(self, production: int, types: tuple[TensorType, ...]) -> tuple[TensorOperator, TensorType] | None:
        """Return the operator and its output type for operands of these types; None if it does not accept them.

        Fewer types than operands ask whether the first operands are acceptable, where the operator can tell.
        """
        key = production, types
        if key not in self._inferred:
            self._inferred[key] = self._infer(self.production(production), types)
        return self._inferred[key]

    def _infer(self, production: Production, types: tuple[TensorType, ...]) -> tuple[TensorOperator, TensorType] | None:
        try:
            op = production.at(types)
            type_ = op.infer(types)[0]
        except ShapeError:
            return None
        return (op, type_) if np.prod(type_.sizes) <= self.family.largest else None
