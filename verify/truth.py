"""Truth values: statements that are true or false, as guards of the terms that they let through.

The truth of an input, or of a comparison, is an integer of its own: at least one where it is true, at most zero where
it is false. So a choice is two sums under opposite guards, and whatever handles the cases of guards handles choices:
they leave the arguments of functions, move with slices, and a solver decides whether two sums agree in all cases.

Comparisons are decided in cases only where all laws may be used, since they are decided by the signs of differences, as
if there were no NaN. Elsewhere a comparison is a statement about its two operands, equal to itself only.

Invariant: one integer stands for one statement, in which no bound index is free. A statement about a bound index is a
factor, 1 or 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from taso_py.ir.size import Dim, symbol
from taso_py.ops.scalar import Relation
from verify.laws import Laws, ProofLevel, content, has_pole
from verify.signs import Signs, scaled
from verify.terms import (
    Call,
    Factor,
    Sum,
    Term,
    close,
    constant,
    factor_key,
    factor_symbols,
    has_bound_index,
    product_of,
    term_key,
)


class Truths:
    """The statements of one proof."""

    def __init__(self, laws: Laws, signs: Signs) -> None:
        self._laws = laws
        self._signs = signs
        self._names: dict[str, str] = {}
        self.statements: dict[str, Factor] = {}
        """The statements in guards of results, by the names of their integers, in the order in which they were met."""

    def guard(self, statement: str) -> Dim:
        """Return a guard that holds where a statement, named by a text, is true."""
        return symbol(self._name(statement)) - 1

    def _name(self, statement: str) -> str:
        return self._names.setdefault(statement, f"?{len(self._names)}")

    def of(self, statement: Factor) -> Sum:
        """Return 1 where an element or a call that is a statement is true, 0 elsewhere."""
        if has_bound_index(factor_symbols(statement)):
            return product_of(statement)
        text = factor_key(statement)
        self.statements.setdefault(self._name(text), statement)
        return (Term(Fraction(1), (), (self.guard(text),)),)

    def choice(self, truth: Sum, chosen: Sum, other: Sum) -> Sum:
        """Return a choice between closed sums by a statement about a bound index: a function of the three."""
        if chosen == other:
            return chosen
        if not other and chosen == constant(1):
            return truth
        if not chosen and other == constant(1):
            return negation(truth)
        return product_of(Call("choice", (truth, chosen, other)))

    def compared(self, relation: Relation, left: Sum, right: Sum) -> Sequence[Term]:
        """Return the truth of a comparison of two closed sums without outer guards."""
        difference = close([*left, *scaled(right, Fraction(-1))])
        if self._laws.level is ProofLevel.ALGEBRA and not has_pole(difference):
            if relation is Relation.GREATER:
                return self._positive(difference)
            below = negation(self._positive(scaled(difference, Fraction(-1))))
            if relation is Relation.GREATER_EQUAL:
                return below
            above = negation(self._positive(difference))
            return [self._laws.multiply(one, other) for one in below for other in above]
        if relation is Relation.EQUAL:
            left, right = sorted((left, right), key=lambda sum_: [*map(term_key, sum_)])
        return self.of(Call(relation.value, (left, right)))

    def _positive(self, value: Sum) -> Sum:
        """Return whether a closed sum is greater than zero."""
        if not value:
            return ()
        scale, _, rest = content(value, self._laws.is_positive)
        direction = close(rest if scale > 0 else scaled(rest, Fraction(-1)))
        decided = self._signs.is_positive(direction, self._laws.is_nonnegative_sum, self._laws.is_positive_sum)
        if decided is not None:
            return constant(int(decided))
        return self.of(Call("positive", (direction,)))


def negation(truth: Sum) -> Sum:
    """Return the truth of the opposite of a statement that :meth:`Truths.of` returned, or of a number."""
    match truth:
        case (Term(one, (), (guard,), ()),):
            return (Term(one, (), (-1 * guard - 1,)),)
        case _:
            return close([*constant(1), *scaled(truth, Fraction(-1))])
