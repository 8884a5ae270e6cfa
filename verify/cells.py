"""Guards: removal of redundant ones, elimination of indices that they define, and the cases they make.

Invariant: a simplified term has the same value as the given one wherever the known guards hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import TypeAlias

from taso_py.ir.size import Dim, Poly, symbol, symbols, terms
from taso_py.ops.scalar import Read, SizeOf
from verify.context import INDEX_MARKS, Context, has_division, mentions
from verify.limits import Budget, Refused
from verify.reindex import merge, quotient, split
from verify.terms import (
    Call,
    Factor,
    Term,
    close,
    close_branches,
    factor_symbols,
    indices,
    reads,
    substitute_term,
    tidy_guards,
    unit_coefficient,
)

Cell: TypeAlias = tuple[tuple[Dim, ...], list[list[Term]]]
"""Guards, and the sums where these hold: no guard remains that could be decided outside a sum."""


class Cells:
    """Simplifies terms in a context and splits sums into cases."""

    def __init__(self, context: Context, budget: Budget) -> None:
        self.context = context
        self._budget = budget

    def necessary(self, guards: Iterable[Dim], known: Sequence[Dim]) -> tuple[Dim, ...] | None:
        """Return the guards not implied by the known ones or each other; None if they evidently never hold together."""
        settled = [self.context.linear(self.context.divide_out(guard, known)) for guard in guards]
        kept = tidy_guards(settled)
        if kept is None:
            return None
        for guard in kept:
            others = [*(other for other in kept if other is not guard), *known]
            if self.context.excludes(guard, others):
                return None
            if self.context.follows(guard, others):
                kept = tuple(other for other in kept if other is not guard)
        return kept

    def simplify(self, term: Term, known: Sequence[Dim]) -> Term | None:
        """Return the term with fewer guards and bound indices; None if it is zero."""
        self._budget.take_work(reads(term))
        while True:
            guards = self.necessary(term.guards, known)
            if guards is None:
                return None
            term = term._replace(guards=guards)
            reduced = self._use_equality(term)
            if reduced is None:
                break
            term = reduced
        settled = self._divide_out(term, known)
        if term.bound:
            moved = split(settled, self.context) or merge(settled) or quotient(settled, self.context)
            if moved is not None:
                return self.simplify(moved, known)
        return settled if settled.guards == guards else self.simplify(settled, known)

    def simplify_all(self, sum_: Iterable[Term], known: Sequence[Dim]) -> list[Term]:
        """Return every term simplified, without zeros."""
        return [simple for term in sum_ if (simple := self.simplify(term, known)) is not None]

    def _use_equality(self, term: Term) -> Term | None:
        """Replace an index that two opposite guards define; a bound one disappears. None if there is none."""
        present = set(term.guards)
        for guard in term.guards:
            if -1 * guard not in present:
                continue
            name = _defined_name(guard, term.bound)
            if name is None:
                continue
            sign = unit_coefficient(guard, name)
            rest = tuple(other for other in term.guards if other not in (guard, -1 * guard))
            binding = {name: (guard - sign * symbol(name)) * -sign}
            if name in term.bound:
                bound = tuple(other for other in term.bound if other != name)
                return substitute_term(term._replace(bound=bound, guards=rest), binding)
            if any(mentions(other, (name,)) for other in rest) or any(name in factor_symbols(f) for f in term.factors):
                replaced = substitute_term(term._replace(guards=rest), binding)
                return replaced._replace(guards=(*replaced.guards, guard, -1 * guard))
        return None

    def _divide_out(self, term: Term, known: Sequence[Dim]) -> Term:
        """Carry out the floor divisions that the term's guards make evident."""
        here = [*known, *term.guards]
        factors = tuple(self._divide_out_factor(factor, here) for factor in term.factors)
        guards = tuple(
            self.context.divide_out(g, [*known, *(o for o in term.guards if o is not g)]) if has_division(g) else g
            for g in term.guards
        )
        return term._replace(factors=factors, guards=guards)

    def _divide_out_factor(self, factor: Factor, known: Sequence[Dim]) -> Factor:
        match factor:
            case Read(variable, index) if any(map(has_division, index)):
                return Read(variable, tuple(self.context.divide_out(i, known) for i in index))
            case Call(function, arguments) if any(map(has_division, indices([factor]))):
                closing = close_branches if function == "max" else close
                settled = (closing(self._divide_out(inner, known) for inner in argument) for argument in arguments)
                return Call(function, tuple(settled))
            case _:
                return factor

    def count_unused(self, term: Term, known: Sequence[Dim]) -> list[Term]:
        """Return the term with each bound index that no factor mentions replaced by its number of values, if known."""
        for name in term.bound:
            if any(name in factor_symbols(factor) for factor in term.factors):
                continue
            about = [guard for guard in term.guards if mentions(guard, (name,))]
            signs = sorted(unit_coefficient(guard, name) for guard in about)
            if signs != [-1, 1]:
                continue
            rest = tuple(guard for guard in term.guards if guard not in about)
            count = about[0] + about[1] + 1
            if mentions_index(count) or not self.context.follows(count, [*known, *rest]):
                continue
            bound = tuple(other for other in term.bound if other != name)
            left = term._replace(bound=bound, guards=rest)
            return [
                final
                for size in size_terms(count)
                for final in self.count_unused(
                    left._replace(coefficient=left.coefficient * size.coefficient, factors=left.factors + size.factors),
                    known,
                )
            ]
        return [term]

    def split(self, sums: Sequence[Sequence[Term]], known: Sequence[Dim]) -> list[Cell]:
        """Return the cases of several sums taken together: disjoint cells that cover all, without outer guards.

        Raises:
            Refused: there are more cells than the limit.
        """
        leaves: list[Cell] = []
        stack: list[Cell] = [((), [list(sum_) for sum_ in sums])]
        while stack:
            guards, parts = stack.pop()
            here = [*known, *guards]
            parts = [self.simplify_all(part, here) for part in parts]
            guard = next((g for part in parts for term in part for g in outer_guards(term)), None)
            if guard is None:
                leaves.append((guards, parts))
                if len(leaves) + len(stack) > self._budget.limits.cells:
                    raise Refused(f"more than {self._budget.limits.cells} cases")
                continue
            outside = -1 * guard - 1
            without = [[term for term in part if guard not in term.guards] for part in parts]
            stack.append(((*guards, outside), without))
            stack.append(((*guards, guard), parts))
        return leaves


def _defined_name(guard: Dim, bound: Sequence[str]) -> str | None:
    """Return the index that ``guard == 0`` defines: a bound one if possible, else the last by name."""
    names = [
        n for n in sorted(symbols(guard), reverse=True) if n.startswith(INDEX_MARKS) and unit_coefficient(guard, n)
    ]
    return next((name for name in names if name in bound), names[0] if names else None)


def outer_guards(term: Term) -> list[Dim]:
    """Return the guards that mention none of the term's bound indices."""
    return [guard for guard in term.guards if not mentions(guard, term.bound)]


def with_guards(sum_: Iterable[Term], guards: Sequence[Dim]) -> list[Term]:
    """Return every term restricted by further guards."""
    if not guards:
        return list(sum_)
    return [term._replace(guards=tuple(dict.fromkeys((*term.guards, *guards)))) for term in sum_]


def mentions_index(value: Dim) -> bool:
    """Return whether an integer depends on more than sizes."""
    return any(name.startswith(INDEX_MARKS) for name in symbols(value))


def size_terms(value: Dim) -> list[Term]:
    """Return an integer over sizes as a real number: the sum of its monomials, each a product of sizes."""
    return [
        Term(Fraction(coefficient), (), (), tuple(SizeOf(Poly((((atom,), 1),))) for atom in monomial))
        for monomial, coefficient in terms(value)
    ]
