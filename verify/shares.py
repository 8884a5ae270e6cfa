"""Shares of a whole: ``sum(x) * 1/sum(x) = 1`` where the sum is greater than zero, as in the rows of a softmax.

Invariant: a sum is cancelled only if all its terms are greater than zero and there is at least one.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from taso_py.ir.size import Dim
from verify.context import mentions
from verify.laws import Laws
from verify.terms import Call, Sum, Term, close, factor_symbols, unit_coefficient


def without_shares(term: Term, laws: Laws, known: Sequence[Dim]) -> Term:
    """Return the term without the products of a sum and its own reciprocal."""
    if not term.bound:
        return term
    for factor in term.factors:
        if not isinstance(factor, Call) or factor.function != "reciprocal":
            continue
        (whole,) = factor.arguments
        if not factor.symbols.isdisjoint(term.bound) or not _is_positive(whole, laws, known):
            continue
        rest = list(term.factors)
        rest.remove(factor)
        for name in term.bound:
            part, left = _split_product(term._replace(factors=tuple(rest)), name)
            if close([part]) == whole:
                return without_shares(left, laws, known)
    return term


def _is_positive(whole: Sum, laws: Laws, known: Sequence[Dim]) -> bool:
    """Return whether a sum is evidently greater than zero: one positive product over an index that has a value."""
    if len(whole) != 1 or len(whole[0].bound) != 1 or whole[0].coefficient <= 0:
        return False
    (term,), (name,) = whole, whole[0].bound
    signs = [unit_coefficient(guard, name) for guard in term.guards]
    lowest = [guard for guard, sign in zip(term.guards, signs, strict=True) if sign == 1]
    highest = [guard for guard, sign in zip(term.guards, signs, strict=True) if sign == -1]
    # Integers between bounds with unit coefficients exist when no lower bound is above an upper one.
    exists = all(laws.context.follows(low + high, known) for low in lowest for high in highest)
    return 0 not in signs and bool(lowest and highest) and exists and all(map(laws.is_positive, term.factors))


def _split_product(term: Term, name: str) -> tuple[Term, Term]:
    """Return the term as a product: factors that depend on a bound index, directly or through others, and the rest."""
    names = {name}
    while True:
        factors = [factor for factor in term.factors if factor_symbols(factor) & names]
        guards = [guard for guard in term.guards if mentions(guard, names)]
        reached = {b for b in term.bound if any(b in factor_symbols(f) for f in factors) or _any_mentions(guards, b)}
        if reached <= names:
            break
        names |= reached
    part = Term(Fraction(1), tuple(b for b in term.bound if b in names), tuple(guards), tuple(factors))
    outside = tuple(factor for factor in term.factors if factor not in factors)
    left = Term(term.coefficient, tuple(b for b in term.bound if b not in names), (), outside)
    return part, left._replace(guards=tuple(guard for guard in term.guards if guard not in guards))


def _any_mentions(guards: Sequence[Dim], name: str) -> bool:
    return any(mentions(guard, (name,)) for guard in guards)
