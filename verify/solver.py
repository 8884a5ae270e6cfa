"""Questions about integers for Z3: quantifier-free and linear, under a limit of steps.

A product of symbols, and a floor division, is an integer variable of its own. That only forgets facts, so that "no
integers satisfy this" stays true. Useful forgotten facts are restored as lemmas, each true for all integers: the
inequalities that define a floor division by a positive number, and products of inequalities (``f >= 0`` and ``s >= 0``
give ``f*s >= 0``) for the products that occur.

Questions are written as SMT-LIB text (Barrett et al., SMT-LIB 2.6), which is readable, and which Z3 parses faster than
its Python interface builds terms.

Invariant: an answer "impossible" or "equal" holds for all integers; any other answer, a limit reached included, is "not
shown".
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence
from fractions import Fraction
from functools import cached_property
from math import lcm
from typing import Any, TypeAlias

import z3

from taso_py.ir.size import Atom, Dim, Lookup, Monomial, Open, Poly, symbol, terms
from verify.context import Context
from verify.limits import Budget

Summand: TypeAlias = tuple[Fraction, tuple[Dim, ...]]
"""A coefficient, and the guards under which it counts."""


class Solver:
    """Decides statements about integers under the facts of a context."""

    def __init__(self, context: Context, budget: Budget) -> None:
        self._context = context
        self._budget = budget
        bounds: list[Dim] = [symbol(name) - least for name, least in context.lower.items()]
        self._facts: list[Dim] = [*bounds, *context.facts]

    @cached_property
    def _z3(self) -> Any:
        """A Z3 context of its own, made at the first question: many proofs ask none."""
        return z3.Context()

    def impossible(self, guards: Sequence[Dim]) -> bool:
        """Return whether no integers satisfy all guards."""
        return self._unsatisfiable(guards, [], "true")

    def implied(self, known: Sequence[Dim], alternatives: Sequence[Sequence[Dim]]) -> bool:
        """Return whether at least one list of guards holds wherever the known guards hold."""
        occurring = [guard for guards in alternatives for guard in guards]
        claim = f"(not (or false {' '.join(map(_conjunction, alternatives))}))"
        return self._unsatisfiable(known, occurring, claim)

    def vanishes(self, summands: Sequence[Summand], known: Sequence[Dim] = ()) -> bool:
        """Return whether the sum of the coefficients whose guards hold is zero for all integers."""
        scale = lcm(*(coefficient.denominator for coefficient, _ in summands))
        common = set(summands[0][1]).intersection(*(guards for _, guards in summands))
        parts = [(int(c * scale), [g for g in guards if g not in common]) for c, guards in summands]
        counted = " ".join(f"(ite {_conjunction(guards)} {_number(coefficient)} 0)" for coefficient, guards in parts)
        shared = [*known, *sorted(common, key=str)]
        occurring = [guard for _, guards in parts for guard in guards]
        return self._unsatisfiable(shared, occurring, f"(not (= 0 (+ 0 {counted})))")

    def _unsatisfiable(self, guards: Sequence[Dim], occurring: Sequence[Dim], claim: str) -> bool:
        self._budget.take_query()
        true = [*self._relevant([*guards, *occurring]), *guards]
        statements = [*true, *_definitions([*true, *occurring], self._context)]
        lemmas = _products(statements, occurring, self._context)
        asserted = [_holds(statement) for statement in statements]
        asserted += [f"(=> {_conjunction(antecedents)} {_holds(product)})" for antecedents, product in lemmas]
        used = [
            *statements,
            *occurring,
            *(value for antecedents, product in lemmas for value in (*antecedents, product)),
        ]
        names = sorted({_name(monomial) for value in used for monomial, _ in terms(value) if monomial})
        lines = [f"(declare-const {name} Int)" for name in names]
        lines += [f"(assert {formula})" for formula in dict.fromkeys([*asserted, claim])]
        solver = z3.SimpleSolver(ctx=self._z3)
        solver.set("rlimit", self._budget.limits.rlimit)
        solver.from_string("\n".join(lines))
        return bool(solver.check() == z3.unsat)

    def _relevant(self, guards: Iterable[Dim]) -> list[Dim]:
        """Return the facts connected to the guards through common symbols."""
        reached = {name for guard in guards for name in _names(guard)}
        left, used = list(self._facts), list[Dim]()
        while True:
            connected = [fact for fact in left if not reached.isdisjoint(_names(fact))]
            if not connected:
                return used
            used += connected
            reached.update(name for fact in connected for name in _names(fact))
            left = [fact for fact in left if fact not in connected]


def _name(monomial: Monomial) -> str:
    return f"|{'*'.join(map(str, monomial))}|"


def _number(value: int) -> str:
    return str(value) if value >= 0 else f"(- {-value})"


def _holds(value: Dim) -> str:
    parts = [f"(* {_number(c)} {_name(m)})" if m else _number(c) for m, c in terms(value)]
    return f"(<= 0 (+ 0 {' '.join(parts)}))"


def _conjunction(guards: Sequence[Dim]) -> str:
    return f"(and true {' '.join(map(_holds, guards))})"


def _names(value: Dim) -> frozenset[str]:
    return value.symbols if isinstance(value, Poly) else frozenset()


def _definitions(values: Sequence[Dim], context: Context) -> list[Dim]:
    """Return ``0 <= n - d*(n//d) < d`` for the floor divisions that occur with an evidently positive denominator.

    And that lookups are within their extents.
    """
    found: dict[Atom, None] = {}
    pending = list(values)
    statements: list[Dim] = []
    while pending:
        value = pending.pop()
        for atom in value.atoms() if isinstance(value, Poly) else ():
            if isinstance(atom, str | Open) or atom in found:
                continue
            found[atom] = None
            if isinstance(atom, Lookup):
                place = Poly((((atom,), 1),))
                statements += [place, atom.extent - 1 - place]
                pending.append(atom.extent)
                continue
            pending += [atom.numerator, atom.denominator]
            if context.follows(atom.denominator - 1):
                rest = atom.numerator - atom.denominator * Poly((((atom,), 1),))
                statements += [rest, atom.denominator - 1 - rest]
                pending += statements[-2:]
    return statements


def _products(
    statements: Sequence[Dim], occurring: Sequence[Dim], context: Context
) -> list[tuple[tuple[Dim, ...], Dim]]:
    """Return lemmas ``f >= 0, s >= 0 -> f*s >= 0`` as (antecedents, consequent) about products that occur."""
    multiples = {(m, abs(c)) for value in [*statements, *occurring] for m, c in terms(value) if len(m) > 1}
    products = {monomial for monomial, _ in multiples}
    if not products:
        return []
    atoms: dict[Atom, None] = dict.fromkeys(atom for product in sorted(products, key=str) for atom in product)
    lemmas: list[tuple[tuple[Dim, ...], Dim]] = []
    always = set(statements)
    everything = dict.fromkeys([*statements, *occurring, *(-1 * guard - 1 for guard in occurring)])
    for atom in atoms:
        factor = Poly((((atom,), 1),))
        sign: tuple[Dim, ...] = () if context.is_natural(atom) else (factor,)
        for value in dict.fromkeys([*everything, *_comparisons(atom, multiples)]):
            consequent = value * factor
            if all(monomial in products or len(monomial) <= 1 for monomial, _ in terms(consequent)):
                lemmas.append((sign if value in always else (*sign, value), consequent))
    return lemmas


def _comparisons(atom: Atom, multiples: Collection[tuple[Monomial, int]]) -> list[Dim]:
    """Return ``a - b`` and ``a - b - 1`` for cofactors of an atom: if ``a*s > b*s`` then ``a > b``.

    The multiples of a cofactor are those that occur with any atom.
    """
    cofactors = {_without(monomial, atom) for monomial, _ in multiples if atom in monomial}
    found = {
        Poly(((cofactor, count),))
        for monomial, count in multiples
        for other in monomial
        for cofactor in [_without(monomial, other)]
        if cofactor in cofactors
    }
    ordered = sorted(found, key=str)
    return [a - b - step for a, b in itertools.permutations(ordered, 2) for step in (0, 1)]


def _without(monomial: Monomial, atom: Atom) -> Monomial:
    place = monomial.index(atom)
    return monomial[:place] + monomial[place + 1 :]
