"""Cases by sign: sums that are assumed to be positive or not, and sums of which that would decide something.

A relu is linear where the sign of its operand is known, and a comparison is decided by the sign of a difference. So an
equation with relus and comparisons is proved in cases: a sum is positive, or it is at most zero.

Invariant: a case is about one real number, a sum in which no bound index is free, so that the two cases of a sum leave
nothing out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from verify.terms import Sum, Term, close, has_bound_index, product_key, term_symbols

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
    """Sums whose sign would decide a relu or a comparison, in the order in which they were met."""

    def of(self, value: Sum, is_nonnegative: Callable[[Sequence[Term]], bool]) -> int:
        """Return 1 if a closed sum is at least zero in this case, -1 if it is at most zero, 0 if that is open."""
        for sign in (1, -1) if self.assumed else ():
            if _follows(scaled(value, Fraction(sign)), self.assumed, is_nonnegative):
                return sign
        self._leave_open(value)
        return 0

    def is_positive(
        self,
        value: Sum,
        is_nonnegative: Callable[[Sequence[Term]], bool],
        is_positive: Callable[[Sequence[Term]], bool],
    ) -> bool | None:
        """Return whether a closed sum is greater than zero in this case; None if that is open."""
        if _follows(value, self.assumed, is_nonnegative, is_positive):
            return True
        if _follows(scaled(value, Fraction(-1)), self.assumed, is_nonnegative):
            return False
        self._leave_open(value)
        return None

    def is_zero(self, value: Sum, is_nonnegative: Callable[[Sequence[Term]], bool]) -> bool:
        """Return whether a closed sum is zero in this case: at least zero, and at most zero."""
        return all(_follows(scaled(value, Fraction(sign)), self.assumed, is_nonnegative) for sign in (1, -1))

    def _leave_open(self, value: Sum) -> None:
        if not any(has_bound_index(term_symbols(term)) for term in value):
            self.undecided.setdefault(value)

    def cases(self) -> Iterator[Signs]:
        """Yield the two cases of the first sum that is left open; none if there is none, or too much is assumed."""
        if self.undecided and len(self.assumed) < MOST_ASSUMED:
            value = next(iter(self.undecided))
            yield from (Signs((*self.assumed, Assumption(value, is_positive))) for is_positive in (True, False))


def scaled(value: Iterable[Term], scale: Fraction) -> Sum:
    """Return a closed sum times a number that is not zero."""
    return tuple(term._replace(coefficient=scale * term.coefficient) for term in value)


def _follows(
    value: Sum,
    assumed: Sequence[Assumption],
    is_nonnegative: Callable[[Sequence[Term]], bool],
    is_positive: Callable[[Sequence[Term]], bool] | None = None,
) -> bool:
    """Return whether a sum is a positive combination of assumptions and of what is evidently at least zero.

    With ``is_positive`` one of these has to be greater than zero, so that the sum is.
    """
    if (is_positive or is_nonnegative)(value):
        return True
    for place, assumption in enumerate(assumed):
        others = [*assumed[:place], *assumed[place + 1 :]]
        needed = None if assumption.is_positive else is_positive
        if any(_follows(rest, others, is_nonnegative, needed) for rest in _without(value, assumption)):
            return True
    return False


def _without(value: Sum, assumption: Assumption) -> Iterator[Sum]:
    """Yield a sum less multiples of what an assumption says is at least zero, so that a term of it vanishes."""
    known = assumption.value if assumption.is_positive else scaled(assumption.value, Fraction(-1))
    for term in known:
        ratio = (
            next((other.coefficient for other in value if _is_multiple(other, term)), Fraction(0)) / term.coefficient
        )
        if ratio > 0:
            yield close([*value, *scaled(known, -ratio)])


def _is_multiple(one: Term, other: Term) -> bool:
    return (one.bound, one.guards, product_key(one)) == (other.bound, other.guards, product_key(other))
