"""Questions about integers that are put to Z3: quantifier-free and linear, under a limit of steps.

A product of symbols, and a floor division, is an integer variable of its own. That only forgets facts, so that "no
integers satisfy this" stays true. What is useful of the forgotten facts is given back as lemmas, each true for all
integers: the inequalities that define a floor division by a positive number, and products of inequalities
(``f >= 0`` and ``s >= 0`` give ``f*s >= 0``) for the products that occur.

Invariant: an answer "impossible" or "equal" holds for all integers; any other answer, a limit reached included, is
"not shown".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from functools import cached_property
from math import lcm
from typing import Any, TypeAlias

import z3

from taso_py.ir.size import Atom, Dim, FloorDiv, Monomial, Poly, symbol, terms
from verify.context import Context
from verify.limits import Budget

Summand: TypeAlias = tuple[Fraction, tuple[Dim, ...]]
"""A coefficient, and the guards under which it counts."""
_Formula: TypeAlias = Any  # z3 has no annotations


class Solver:
    """Decides statements about integers under the facts of a context."""

    def __init__(self, context: Context, budget: Budget) -> None:
        self._context = context
        self._budget = budget
        self._variables: dict[Monomial, _Formula] = {}
        bounds: list[Dim] = [symbol(name) - least for name, least in context.lower.items()]
        self._facts: list[Dim] = [*bounds, *context.facts]

    @cached_property
    def _z3(self) -> _Formula:
        """A Z3 context of its own, made when the first question is put: many proofs put none."""
        return z3.Context()

    def impossible(self, guards: Sequence[Dim]) -> bool:
        """Whether no integers satisfy all guards."""
        return self._unsatisfiable(guards, [], lambda: z3.BoolVal(True, self._z3))

    def implied(self, known: Sequence[Dim], alternatives: Sequence[Sequence[Dim]]) -> bool:
        """Whether at least one list of guards holds wherever the known guards hold."""
        occurring = [guard for guards in alternatives for guard in guards]
        return self._unsatisfiable(
            known, occurring, lambda: z3.Not(z3.Or([self._conjunction(guards) for guards in alternatives], self._z3))
        )

    def vanishes(self, summands: Sequence[Summand], known: Sequence[Dim] = ()) -> bool:
        """Whether the sum of the coefficients whose guards hold is zero for all integers."""
        scale = lcm(*(coefficient.denominator for coefficient, _ in summands))
        common = set(summands[0][1]).intersection(*(guards for _, guards in summands))
        parts = [(int(c * scale), [g for g in guards if g not in common]) for c, guards in summands]

        def differs() -> _Formula:
            zero = z3.IntVal(0, self._z3)
            counted = [
                z3.If(self._conjunction(guards), z3.IntVal(coefficient, self._z3), zero)
                for coefficient, guards in parts
            ]
            return z3.Sum(counted) != 0

        shared = sorted(common, key=str)
        return self._unsatisfiable([*known, *shared], [guard for _, guards in parts for guard in guards], differs)

    def _unsatisfiable(self, guards: Sequence[Dim], occurring: Sequence[Dim], claim: Any) -> bool:
        self._budget.take_query()
        solver = z3.SolverFor("QF_LIA", ctx=self._z3)
        solver.set("rlimit", self._budget.limits.rlimit)
        facts = self._relevant([*guards, *occurring])
        true = [*facts, *guards]
        for statement in [*true, *_definitions([*true, *occurring], self._context)]:
            solver.add(self._linear(statement) >= 0)
        for antecedents, product in _products(true, occurring, self._context):
            solver.add(z3.Implies(self._conjunction(antecedents), self._linear(product) >= 0))
        solver.add(claim())
        return bool(solver.check() == z3.unsat)

    def _relevant(self, guards: Iterable[Dim]) -> list[Dim]:
        """The facts connected to the guards through common symbols."""
        reached = {name for guard in guards for name in _names(guard)}
        left, used = list(self._facts), list[Dim]()
        while True:
            connected = [fact for fact in left if not reached.isdisjoint(_names(fact))]
            if not connected:
                return used
            used += connected
            reached.update(name for fact in connected for name in _names(fact))
            left = [fact for fact in left if fact not in connected]

    def _conjunction(self, guards: Sequence[Dim]) -> _Formula:
        return z3.And([self._linear(guard) >= 0 for guard in guards] + [z3.BoolVal(True, self._z3)])

    def _linear(self, value: Dim) -> _Formula:
        parts = [
            self._variable(monomial) * coefficient if monomial else z3.IntVal(coefficient, self._z3)
            for monomial, coefficient in terms(value)
        ]
        return z3.Sum(parts) if parts else z3.IntVal(0, self._z3)

    def _variable(self, monomial: Monomial) -> _Formula:
        known = self._variables.get(monomial)
        if known is None:
            known = self._variables[monomial] = z3.Int("*".join(map(str, monomial)), self._z3)
        return known


def _names(value: Dim) -> frozenset[str]:
    return value.symbols if isinstance(value, Poly) else frozenset()


def _definitions(values: Sequence[Dim], context: Context) -> list[Dim]:
    """``0 <= n - d*(n//d) < d`` for the floor divisions that occur and whose denominator is evidently positive."""
    found: dict[FloorDiv, None] = {}
    pending = list(values)
    statements: list[Dim] = []
    while pending:
        value = pending.pop()
        for atom in value.atoms() if isinstance(value, Poly) else ():
            if not isinstance(atom, FloorDiv) or atom in found:
                continue
            found[atom] = None
            pending += [atom.numerator, atom.denominator]
            if context.follows(atom.denominator - 1):
                rest = atom.numerator - atom.denominator * Poly((((atom,), 1),))
                statements += [rest, atom.denominator - 1 - rest]
                pending += statements[-2:]
    return statements


def _products(true: Sequence[Dim], occurring: Sequence[Dim], context: Context) -> list[tuple[tuple[Dim, ...], Dim]]:
    """Lemmas ``f >= 0, s >= 0 -> f*s >= 0`` as (antecedents, consequent) that speak of products which occur."""
    statements = [*true, *_definitions([*true, *occurring], context)]
    products = {m for value in [*statements, *occurring] for m, _ in terms(value) if len(m) > 1}
    if not products:
        return []
    atoms: dict[Atom, None] = dict.fromkeys(atom for product in sorted(products, key=str) for atom in product)
    lemmas: list[tuple[tuple[Dim, ...], Dim]] = []
    always = set(statements)
    everything = dict.fromkeys([*statements, *occurring, *(-1 * guard - 1 for guard in occurring)])
    for atom in atoms:
        factor = Poly((((atom,), 1),))
        sign: tuple[Dim, ...] = () if context.is_natural(atom) else (factor,)
        for value in everything:
            consequent = value * factor
            if all(monomial in products or len(monomial) <= 1 for monomial, _ in terms(consequent)):
                lemmas.append((sign if value in always else (*sign, value), consequent))
    return lemmas
