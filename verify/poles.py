"""Poles: elements that are not numbers; the target must be defined wherever the source is.

A pole is a reciprocal, a square root or the reciprocal of one, or a maximum, that is computed on the way to an element:
the greatest of no values is minus infinity. A pole of the target is harmless if its argument is evidently greater than
zero, or its window evidently not empty; or if the source has it too: then the source is not defined where the target is
not. Poles are compared after normalization, since ``1/(a*b)`` has the poles of ``1/a * 1/b``.

Invariant: the source's poles are under-approximated and the target's over-approximated, which can only make more rules
fail.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction

from taso_py.ir.size import Dim, symbols
from verify.context import mentions
from verify.laws import POLES, Laws
from verify.maximum import Maxima
from verify.terms import Call, Term, canonical, factor_symbols

_FRESH = "~"
"""First character of names of bound indices while a sum is not closed."""


class Poles:
    """The poles of one element."""

    def __init__(self, laws: Laws, maxima: Maxima) -> None:
        self._laws = laws
        self._maxima = maxima
        self._found: dict[Term, None] = {}

    def note(self, value: Iterable[Term], known: Sequence[Dim]) -> None:
        """Record the poles in a value that is computed where the known guards hold."""
        for term in value:
            for factor in term.factors:
                if isinstance(factor, Call) and self._is_pole(factor, known):
                    self._found.setdefault(_pole(factor, known))

    def _is_pole(self, call: Call, known: Sequence[Dim]) -> bool:
        """Return whether a call may be undefined or infinite somewhere."""
        if call.function == "max":
            return not self._maxima.is_inhabited(call.arguments[0], known)
        return call.function in POLES and not self._is_harmless(call, known)

    def _is_harmless(self, pole: Call, known: Sequence[Dim]) -> bool:
        """Return whether the argument is evidently greater than zero: nonnegative, and with a positive term."""
        (argument,) = pole.arguments
        return self._laws.is_nonnegative_sum(argument) and any(
            all(map(self._laws.is_positive, term.factors)) and self._maxima.is_inhabited([term], known)
            for term in argument
        )

    def under_approximation(self) -> list[Term]:
        """Return the poles under the guards under which they occur, without those that would need further guards."""
        freed = (self._maxima.without_unused(pole, ()) for pole in self._found)
        return _tidy(pole for pole in freed if _used_indices(pole) == pole.bound)

    def over_approximation(self) -> list[Term]:
        """Return the poles under weaker guards, which hold wherever the poles occur."""
        return _tidy(_weakened(self._maxima.without_unused(pole, ())) for pole in self._found)


def _pole(call: Call, known: Sequence[Dim]) -> Term:
    names = call.symbols.union(*map(symbols, known))
    bound = tuple(sorted(name for name in names if name.startswith(_FRESH)))
    return Term(Fraction(1), bound, tuple(dict.fromkeys(known)), (call,))


def _used_indices(pole: Term) -> tuple[str, ...]:
    return tuple(name for name in pole.bound if name in factor_symbols(pole.factors[0]))


def _weakened(pole: Term) -> Term:
    """Return the pole without the indices that it does not depend on and their guards."""
    used = _used_indices(pole)
    others = set(pole.bound).difference(used)
    return pole._replace(bound=used, guards=tuple(guard for guard in pole.guards if not mentions(guard, others)))


def _tidy(poles: Iterable[Term]) -> list[Term]:
    tidied = map(canonical, poles)
    return list(dict.fromkeys(pole for pole in tidied if pole is not None))
