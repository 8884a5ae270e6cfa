"""Equality of sums: whether a sum is zero for all values of the variables and all integers that satisfy the facts.

Terms are grouped by their factors. Since elements of variables and calls are independent unknowns, a sum is zero if in
each group the coefficients whose guards hold add up to zero, at every index. Groups that fail are examined once more
with calls identified whose arguments are equal under the guards of their terms.

Invariant: "zero" is certain; any other answer means "not shown".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from fractions import Fraction

from taso_py.ir.size import Dim
from verify.solver import Solver
from verify.terms import Call, Sum, Term, close, product_key

_DEPTH = 3
"""Depth of nested calls that are compared by meaning."""


class Equality:
    """Decides equality of sums with the help of a solver."""

    def __init__(self, solver: Solver) -> None:
        self._solver = solver

    def remainder(self, sum_: Sum, known: Sequence[Dim] = (), depth: int = _DEPTH) -> Term | None:
        """Return None if a closed sum is shown to be zero wherever the known guards hold, else a remaining term."""
        left = self._remaining(sum_, known)
        if not left or depth == 0 or not _has_call(left[-1]):
            return left[-1] if left else None
        merged = close(self._with_representatives(left, known, depth))
        if merged != close(left):
            left = self._remaining(merged, known)
        return left[-1] if left else None

    def are_equal(self, left: Sum, right: Sum, known: Sequence[Dim], depth: int) -> bool:
        """Return whether two closed sums are shown to be equal wherever the known guards hold."""
        return self.remainder(close([*left, *negative(right)]), known, depth) is None

    def _remaining(self, sum_: Sum, known: Sequence[Dim]) -> list[Term]:
        """Return the terms of groups not shown to cancel, up to the first that nothing can make cancel."""
        groups: defaultdict[str, list[Term]] = defaultdict(list)
        for term in sum_:
            groups[product_key(term)].append(term)
        left: list[Term] = []
        for group in groups.values():
            if not self._solver.vanishes([(term.coefficient, term.guards) for term in group], known):
                left += group
                if not _has_call(group[0]):
                    break  # only calls can still turn out to be equal
        return left

    def _with_representatives(self, sum_: Sequence[Term], known: Sequence[Dim], depth: int) -> list[Term]:
        """Return the terms with each call replaced by the first one that equals it under the term's guards."""
        seen: list[Call] = []
        result: list[Term] = []
        for term in sum_:
            here = [*known, *term.guards]
            factors = list(term.factors)
            for place, factor in enumerate(factors):
                if not isinstance(factor, Call):
                    continue
                usable = (call for call in seen if _is_usable(call, factor, term))
                equal = next((call for call in usable if self._same(call, factor, here, depth)), None)
                if equal is None:
                    seen.append(factor)
                else:
                    factors[place] = equal
            result.append(term._replace(factors=tuple(factors)))
        return result

    def _same(self, left: Call, right: Call, known: Sequence[Dim], depth: int) -> bool:
        if left == right:
            return True
        if left.function != right.function or len(left.arguments) != len(right.arguments):
            return False
        if left.function == "max":
            return self._same_branches(left.arguments[0], right.arguments[0], known, depth)
        pairs = zip(left.arguments, right.arguments, strict=True)
        return all(self.are_equal(a, b, known, depth - 1) for a, b in pairs)

    def _same_branches(self, left: Sum, right: Sum, known: Sequence[Dim], depth: int) -> bool:
        """Return whether two maxima range over equal values, each under guards that the other side covers."""
        branches = self._with_representatives([*left, *right], known, depth)
        sides: dict[str, tuple[list[Sequence[Dim]], list[Sequence[Dim]]]] = {}
        for place, branch in enumerate(branches):
            both = sides.setdefault(product_key(branch), ([], []))
            both[place >= len(left)].append(branch.guards)
        return all(self._covered(a, b, known) and self._covered(b, a, known) for a, b in sides.values())

    def uncovered(self, parts: Sequence[Term], whole: Sequence[Term]) -> Term | None:
        """Return a part whose factors the whole lacks, or has under fewer guards only; None if there is none."""
        named = self._with_representatives([*whole, *parts], (), _DEPTH)
        guards: defaultdict[str, list[Sequence[Dim]]] = defaultdict(list)
        for term in named[: len(whole)]:
            guards[product_key(term)].append(term.guards)
        for term in named[len(whole) :]:
            if not self._covered([term.guards], guards[product_key(term)], ()):
                return term
        return None

    def _covered(self, one: Sequence[Sequence[Dim]], other: Sequence[Sequence[Dim]], known: Sequence[Dim]) -> bool:
        return all(self._solver.implied([*known, *guards], other) for guards in one)


def _has_call(term: Term) -> bool:
    return any(isinstance(factor, Call) for factor in term.factors)


def _is_usable(call: Call, instead_of: Call, term: Term) -> bool:
    """Return whether a call may replace another in a term: it mentions no foreign bound index and is not nested deeper.

    Otherwise the names that the term's bound indices get by its height might not be free.
    """
    bound = {name for name in call.symbols if name.startswith("%")}
    return bound.issubset(term.bound) and call.height <= instead_of.height


def negative(sum_: Sequence[Term]) -> list[Term]:
    """Return every term with the opposite coefficient."""
    return [term._replace(coefficient=Fraction(-1) * term.coefficient) for term in sum_]
