"""Where an element is no number: the target must be defined wherever the source is.

A pole is a reciprocal, a square root or the reciprocal of one, or a maximum, that is computed on the way to an element:
the greatest of no values is minus infinity. One of the target does no harm if its argument is evidently greater than
zero, or its window evidently not empty; or if the source has it too: then the source is not defined where the target is
not. Poles are compared after normalisation, since ``1/(a*b)`` has those of ``1/a * 1/b``.

Invariant: what is left out of the source's poles, or added to the target's, can only make more rules fail.
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
"""How the names of bound indices begin while a sum is not closed."""


class Poles:
    """The poles of one element."""

    def __init__(self, laws: Laws, maxima: Maxima) -> None:
        self._laws = laws
        self._maxima = maxima
        self._found: dict[Term, None] = {}

    def note(self, value: Iterable[Term], known: Sequence[Dim]) -> None:
        """Takes note of the poles in a value that is computed where the known guards hold."""
        for term in value:
            for factor in term.factors:
                if isinstance(factor, Call) and self._is_pole(factor, known):
                    self._found.setdefault(_pole(factor, known))

    def _is_pole(self, call: Call, known: Sequence[Dim]) -> bool:
        """Whether a call may be no number somewhere."""
        if call.function == "max":
            return not self._maxima.is_inhabited(call.arguments[0], known)
        return call.function in POLES and not self._is_harmless(call, known)

    def _is_harmless(self, pole: Call, known: Sequence[Dim]) -> bool:
        """Whether the argument is evidently greater than zero: nowhere less, and with a term that is greater."""
        (argument,) = pole.arguments
        return self._laws.is_nonnegative_sum(argument) and any(
            all(map(self._laws.is_positive, term.factors)) and self._maxima.is_inhabited([term], known)
            for term in argument
        )

    def exactly(self) -> list[Term]:
        """The poles under the guards under which they are met; without those of which more guards would be needed."""
        freed = (self._maxima.without_unused(pole, ()) for pole in self._found)
        return _tidy(pole for pole in freed if _used(pole) == pole.bound)

    def at_most(self) -> list[Term]:
        """The poles under guards that hold wherever they are met."""
        return _tidy(_weakened(self._maxima.without_unused(pole, ())) for pole in self._found)


def _pole(call: Call, known: Sequence[Dim]) -> Term:
    names = call.symbols.union(*map(symbols, known))
    bound = tuple(sorted(name for name in names if name.startswith(_FRESH)))
    return Term(Fraction(1), bound, tuple(dict.fromkeys(known)), (call,))


def _used(pole: Term) -> tuple[str, ...]:
    return tuple(name for name in pole.bound if name in factor_symbols(pole.factors[0]))


def _weakened(pole: Term) -> Term:
    """Without the indices that the pole does not depend on, and what is known of them."""
    used = _used(pole)
    others = set(pole.bound).difference(used)
    return pole._replace(bound=used, guards=tuple(guard for guard in pole.guards if not mentions(guard, others)))


def _tidy(poles: Iterable[Term]) -> list[Term]:
    tidied = map(canonical, poles)
    return list(dict.fromkeys(pole for pole in tidied if pole is not None))
