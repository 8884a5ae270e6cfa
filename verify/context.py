"""Facts about the integers of a rule, and quick decisions that need no solver.

Invariant: whatever is answered "yes" holds for all integers that satisfy the facts; "no" means "not evident".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from taso_py.ir.size import Atom, Dim, FloorDiv, Lookup, Monomial, Poly, floordiv, symbols, terms

DEPTH = 3
"""Most facts that are added up to show that a guard follows."""

INDEX_MARKS = ("@", "~", "%", "!")
"""First characters of names of indices, as opposed to names of sizes; the last is that of tensors of integers."""

_QUOTIENTS = (0, 1, -1, 2, 3)
"""Values that are tried as the result of a floor division."""


class Context:
    """Lower bounds of symbols, and integers (over the symbols) that are known not to be negative."""

    def __init__(self, lower: Mapping[str, int], facts: Iterable[Dim]) -> None:
        self.lower = dict(lower)
        self.facts: list[Poly] = []
        self.is_contradictory = False
        self._nonnegative: dict[Dim, bool] = {}
        self._follows: dict[Dim, bool] = {}
        for fact in facts:
            self._add(fact)

    def _add(self, fact: Dim) -> None:
        if isinstance(fact, int):
            self.is_contradictory |= fact < 0
            return
        bound = _as_bound(fact)
        if bound is None:
            if fact not in self.facts:
                self.facts.append(fact)
            return
        name, least = bound
        self.lower[name] = max(least, self.lower.get(name, least))

    def with_facts(self, lower: Mapping[str, int], facts: Iterable[Dim]) -> Context:
        """Return this context with more facts."""
        return Context({**self.lower, **lower}, [*self.facts, *facts])

    # -- evident facts

    def nonnegative(self, value: Dim) -> bool:
        """Return whether the lower bounds of the symbols alone show ``value >= 0``."""
        if isinstance(value, int):
            return value >= 0
        known = self._nonnegative.get(value)
        if known is None:
            known = self._nonnegative[value] = self._is_nonnegative(value)
        return known

    def _is_nonnegative(self, value: Poly) -> bool:
        least = 0
        for monomial, coefficient in value.terms:
            if monomial and coefficient < 0:
                return False
            bound = self.lower_bound(monomial)
            if bound is None:
                return False
            least += coefficient * bound
        return least >= 0

    def lower_bound(self, monomial: Monomial) -> int | None:
        """Return a lower bound of a product of nonnegative atoms; None if one may be negative."""
        product = 1
        for atom in monomial:
            bound = self._least(atom)
            if bound is None or bound < 0:
                return None
            product *= bound
        return product

    def _least(self, atom: Atom) -> int | None:
        if isinstance(atom, Lookup):
            return 0
        return self._least_quotient(atom) if isinstance(atom, FloorDiv) else self.lower.get(str(atom))

    def _least_quotient(self, atom: FloorDiv) -> int | None:
        positive = self.nonnegative(atom.denominator - 1)
        return 0 if positive and self.nonnegative(atom.numerator) else None

    def is_natural(self, atom: Atom) -> bool:
        """Return whether an atom is evidently not negative."""
        return self.lower_bound((atom,)) is not None

    def follows(self, value: Dim, known: Sequence[Dim] = ()) -> bool:
        """Return whether ``value >= 0`` evidently is a sum of at most ``DEPTH`` facts or guards ``known``.

        The rest has to be evidently nonnegative. A fact may be multiplied by a symbol that is not negative.
        """
        if self.nonnegative(value):
            return True
        if isinstance(value, int):
            return False
        answer = self._follows.get(value)
        if answer is None:
            answer = self._follows[value] = self._follows_from(value, self._with_quotients(value, self.facts), DEPTH)
        if answer or not known:
            return answer
        return self._follows_from(value, self._with_quotients(value, [*known, *self.facts]), DEPTH)

    def _with_quotients(self, value: Poly, facts: Sequence[Dim]) -> Sequence[Dim]:
        """Return the facts and what they imply for floor divisions ``f = n//d`` that occur, with a positive ``d``.

        ``0 <= n - d*f < d``; ``n >= m*d`` gives ``f >= m``, and ``n < m*d`` gives ``f < m``.
        """
        if not has_division(value):
            return facts
        found: list[Dim] = []
        for atom in dict.fromkeys(value.atoms()):
            if not isinstance(atom, FloorDiv) or not self.nonnegative(atom.denominator - 1):
                continue
            quotient = Poly((((atom,), 1),))
            rest = atom.numerator - atom.denominator * quotient
            found += [rest, atom.denominator - 1 - rest]
            for fact in facts:
                least = floordiv(atom.numerator - fact, atom.denominator)
                if not has_division(least):
                    found.append(quotient - least)
                beyond = atom.numerator + fact + 1
                most = floordiv(beyond, atom.denominator)
                if most * atom.denominator == beyond:
                    found.append(most - 1 - quotient)
        return [*found, *facts]

    def _follows_from(self, value: Dim, facts: Sequence[Dim], depth: int) -> bool:
        if self.nonnegative(value):
            return True
        if isinstance(value, int) or depth == 0:
            return False
        monomial, coefficient = self._obstacle(value)
        if abs(coefficient) == 1 and len(monomial) == 1 and isinstance(monomial[0], FloorDiv):
            linear = self._without_division(value, monomial[0], coefficient)
            if linear is not None:
                return self._follows_from(linear, facts, depth)
        for fact in facts:
            if coefficients(fact).get(monomial, 0) * coefficient > 0:
                if self._follows_from(value - fact, facts, depth - 1):
                    return True
            elif len(monomial) > 1:
                multiple = self._multiple(fact, monomial, coefficient)
                if multiple is not None and self._follows_from(value - multiple, facts, depth - 1):
                    return True
        return False

    def _multiple(self, fact: Dim, monomial: Monomial, sign: int) -> Dim | None:
        """Return the fact times a nonnegative atom such that the product has the monomial with the given sign."""
        for place, atom in enumerate(monomial):
            rest = monomial[:place] + monomial[place + 1 :]
            if coefficients(fact).get(rest, 0) * sign > 0 and self.is_natural(atom):
                return fact * Poly((((atom,), 1),))
        return None

    def _obstacle(self, value: Poly) -> tuple[Monomial, int]:
        """Return the monomial that keeps ``value`` from being evidently nonnegative."""
        for monomial, coefficient in value.terms:
            if monomial and (coefficient < 0 or self.lower_bound(monomial) is None):
                return monomial, coefficient
        return next(term for term in value.terms if term[0])

    def excludes(self, value: Dim, known: Sequence[Dim] = ()) -> bool:
        """Return whether ``value >= 0`` evidently never holds."""
        return self.follows(-1 * value - 1, known)

    # -- floor divisions

    def linear(self, guard: Dim) -> Dim:
        """Return an equivalent guard with fewer floor divisions: ``n//d <= m`` exactly where ``n <= m*d + d - 1``."""
        while has_division(guard) and isinstance(guard, Poly):
            found = (
                self._without_division(guard, monomial[0], coefficient)
                for monomial, coefficient in guard.terms
                if abs(coefficient) == 1 and len(monomial) == 1 and isinstance(monomial[0], FloorDiv)
            )
            replaced = next((value for value in found if value is not None), None)
            if replaced is None:
                return guard
            guard = replaced
        return guard

    def _without_division(self, guard: Poly, atom: FloorDiv, sign: int) -> Dim | None:
        """Return an equivalent of ``rest + sign * atom``; None with another division or without a positive divisor."""
        rest = guard - sign * Poly((((atom,), 1),))
        if has_division(rest) or not self.nonnegative(atom.denominator - 1):
            return None
        if sign > 0:
            return atom.numerator + rest * atom.denominator
        return (rest + 1) * atom.denominator - 1 - atom.numerator

    def divide_out(self, value: Dim, known: Sequence[Dim] = ()) -> Dim:
        """Return ``value`` with those floor divisions carried out whose quotient is evident."""
        if isinstance(value, int) or not has_division(value):
            return value
        total: Dim = 0
        for monomial, coefficient in value.terms:
            product: Dim = coefficient
            for atom in monomial:
                product = product * self._without_divisions(atom, known)
            total = total + product
        return total

    def _without_divisions(self, atom: Atom, known: Sequence[Dim]) -> Dim:
        if isinstance(atom, FloorDiv):
            return self._divide(atom, known)
        if isinstance(atom, Lookup):
            atom = replace(atom, index=tuple(self.divide_out(i, known) for i in atom.index))
        return Poly((((atom,), 1),))

    def _divide(self, atom: FloorDiv, known: Sequence[Dim]) -> Dim:
        numerator, denominator = (
            self.divide_out(atom.numerator, known),
            self.divide_out(atom.denominator, known),
        )
        quotient = floordiv(numerator, denominator)
        if not isinstance(quotient, Poly) or not self.follows(denominator - 1, known):
            return quotient
        total: Dim = 0
        for monomial, coefficient in quotient.terms:
            product: Dim = coefficient
            for part in monomial:
                is_open = isinstance(part, FloorDiv)
                product = product * (self._quotient(part, known) if is_open else Poly((((part,), 1),)))
            total = total + product
        return total

    def _quotient(self, atom: FloorDiv, known: Sequence[Dim]) -> Dim:
        for quotient in (*_QUOTIENTS, *_long_quotients(atom)):
            rest = atom.numerator - quotient * atom.denominator
            if self.follows(rest, known) and self.follows(atom.denominator - 1 - rest, known):
                return quotient
        inner = self._inner_division(atom.numerator)
        if inner is None:
            return Poly((((atom,), 1),))
        rest = atom.numerator - Poly((((inner,), 1),))
        return self._divide(
            FloorDiv(inner.numerator + rest * inner.denominator, inner.denominator * atom.denominator), known
        )

    def _inner_division(self, numerator: Dim) -> FloorDiv | None:
        """Return ``n//d`` of a numerator ``n//d + r``, its only division: ``(n//d + r)//e == (n + r*d)//(d*e)``."""
        found = [(monomial, factor) for monomial, factor in terms(numerator) if any(_is_division(a) for a in monomial)]
        if len(found) != 1 or len(found[0][0]) != 1 or found[0][1] != 1:
            return None
        atom = found[0][0][0]
        return atom if isinstance(atom, FloorDiv) and self.nonnegative(atom.denominator - 1) else None


def _is_division(atom: Atom) -> bool:
    return isinstance(atom, FloorDiv)


def _long_quotients(atom: FloorDiv) -> Iterator[Dim]:
    """Yield candidate quotients from a term of each side: ``q`` for ``(q*M + r) // (M + N)`` and ``(q*M + r) // M``.

    For ``(i*M + r) // (D*M)`` it is ``i // D``.
    """
    divisor = [term for term in terms(atom.denominator) if term[0]]
    if len(divisor) == 1:
        for term in terms(atom.numerator):
            yield from _cancel_common_factors(term[0], divisor[0][0])
        return
    for monomial, factor in divisor:
        lead = Poly(((monomial, factor),))
        for term in terms(atom.numerator):
            quotient = floordiv(Poly((term,)), lead) if term[0] else 0
            if quotient * lead == Poly((term,)):
                yield quotient


def _cancel_common_factors(numerator: Monomial, denominator: Monomial) -> Iterator[Dim]:
    """Yield the division of products without their common factors, if they have any."""
    left, divisor = list(numerator), list(denominator)
    for atom in denominator:
        if atom in left:
            left.remove(atom)
            divisor.remove(atom)
    if left and divisor and len(divisor) < len(denominator):
        yield floordiv(Poly(((tuple(left), 1),)), Poly(((tuple(divisor), 1),)))


def _as_bound(fact: Poly) -> tuple[str, int] | None:
    """Return the name and bound of a fact of the form ``name >= least``; None for any other fact."""
    found = coefficients(fact)
    named = [(monomial, coefficient) for monomial, coefficient in found.items() if monomial]
    if len(named) != 1 or len(named[0][0]) != 1 or named[0][1] < 1:
        return None
    (atom,), coefficient = named[0]
    return (atom, -(found.get((), 0) // coefficient)) if isinstance(atom, str) else None


@lru_cache(maxsize=1 << 16)
def coefficients(value: Dim) -> Mapping[Monomial, int]:
    """Return the coefficient of each monomial."""
    return dict(terms(value))


@lru_cache(maxsize=1 << 16)
def has_division(value: Dim) -> bool:
    """Return whether a floor division occurs."""
    return isinstance(value, Poly) and any(map(_is_divided, value.atoms()))


def _is_divided(atom: Atom) -> bool:
    return isinstance(atom, FloorDiv) or (isinstance(atom, Lookup) and any(map(has_division, atom.index)))


def mentions(value: Dim, names: Iterable[str]) -> bool:
    """Return whether one of the names occurs."""
    return not symbols(value).isdisjoint(names)
