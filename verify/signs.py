"""Cases by sign: sums that are assumed to be positive or not, and sums of which that would decide a relu.

A relu is linear where the sign of its operand is known. So an equation with relus is proved in cases: a sum is positive,
or it is at most zero.

Invariant: a case is about one real number, a sum in which no bound index is free, so that the two cases of a sum leave
nothing out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from verify.terms import Sum, Term, close, product_key, term_symbols

MOST_ASSUMED = 3
"""Most sums whose signs are assumed at once."""


@dataclass(frozen=True)
class Assumption:
    """A sum that is greater than zero, or is not."""

    value: Sum
    is_positive: bool


@dataclass
class Signs:
    """The signs that a case assumes, and the sums that it leaves open."""

    assumed: Sequence[Assumption] = ()
    undecided: dict[Sum, None] = field(default_factory=dict[Sum, None])
    """Sums whose sign would decide a relu, in the order in which they were met."""

    def of(self, value: Sum, is_nonnegative: Callable[[Sequence[Term]], bool]) -> int:
        """Return 1 if a closed sum is at least zero in this case, -1 if it is at most zero, 0 if that is open."""
        for assumption in self.assumed:
            for sign in (1, -1):
                rest = _without(scaled(value, Fraction(sign)), assumption)
                if rest is not None and is_nonnegative(rest):
                    return sign
        if not any(name.startswith(("~", "%")) for term in value for name in term_symbols(term)):
            self.undecided.setdefault(value)
        return 0

    def cases(self) -> Iterator[Signs]:
        """Yield the two cases of the first sum that is left open; none if there is none, or too much is assumed."""
        if self.undecided and len(self.assumed) < MOST_ASSUMED:
            value = next(iter(self.undecided))
            yield from (Signs((*self.assumed, Assumption(value, is_positive))) for is_positive in (True, False))


def scaled(value: Iterable[Term], scale: Fraction) -> Sum:
    """Return a closed sum times a number that is not zero."""
    return tuple(term._replace(coefficient=scale * term.coefficient) for term in value)


def _without(value: Sum, assumption: Assumption) -> Sum | None:
    """Return a sum less what is at least zero by an assumption, a multiple of its value; None if it has no part of it."""
    known = assumption.value if assumption.is_positive else scaled(assumption.value, Fraction(-1))
    leading = next((term for term in known if term.factors), None)
    if leading is None:
        return None
    ratio = sum(
        (term.coefficient / leading.coefficient for term in value if _is_multiple(term, leading)), start=Fraction(0)
    )
    return close([*value, *scaled(known, -ratio)]) if ratio > 0 else None


def _is_multiple(one: Term, other: Term) -> bool:
    return (one.bound, one.guards, product_key(one)) == (other.bound, other.guards, product_key(other))
