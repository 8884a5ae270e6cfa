"""Maxima over windows: the greatest of the values of branches.

A maximum is ``Call("max", (branches,))``; a branch is a term ``sum bound: [guards] value(sum)`` read as "the greatest
value over all bound indices where the guards hold". An empty maximum is minus infinity.

Invariant: guards that do not depend on a bound index are outside of the maximum, so that a maximum of a concatenation
is a choice between maxima.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction

from taso_py.ir.size import Dim, symbol
from verify.cells import Cells
from verify.context import mentions
from verify.laws import Laws, ProofLevel, content
from verify.signs import scaled
from verify.solver import Solver
from verify.terms import (
    Call,
    Sum,
    Term,
    close,
    close_branches,
    factor_symbols,
    product_of,
    rename_bound,
    substitute_term,
    term_symbols,
    unit_coefficient,
)

_INCREASING = frozenset({"exp", "sigmoid", "tanh"})
_MOST_CANDIDATES = 36
"""Most positions of a window that are tried as one that is always inside."""


class Maxima:
    """Builds maxima and moves relu into them."""

    def __init__(
        self,
        cells: Cells,
        laws: Laws,
        solver: Solver,
        fresh: Iterator[str],
        closing: Callable[[Sequence[Term], Sequence[Dim]], Sum],
    ) -> None:
        self._cells = cells
        self._laws = laws
        self._solver = solver
        self._fresh = fresh
        self._closing = closing

    def over(
        self, bound: Sequence[str], guards: Sequence[Dim], body: Sequence[Term], known: Sequence[Dim]
    ) -> list[Term]:
        """Return the maximum of a sum over bound indices, as a choice between maxima."""
        branches: list[Term] = []
        for inside, (value,) in self._cells.split([body], [*known, *guards]):
            frame = Term(Fraction(1), tuple(bound), (*guards, *inside))
            branches += self._branches(frame, self._closing(value, [*known, *guards, *inside]))
        return self._choice(branches, known)

    def _branches(self, frame: Term, value: Sum) -> Iterator[Term]:
        """Yield a value as branches; a maximum of maxima is one maximum."""
        inner = as_maximum(value)
        if inner is None:
            yield frame._replace(factors=(Call("value", (value,)),))
            return
        for branch in inner:
            moved = rename_bound(branch, self._fresh)
            yield moved._replace(bound=frame.bound + moved.bound, guards=frame.guards + moved.guards)

    def _choice(self, branches: Sequence[Term], known: Sequence[Dim]) -> list[Term]:
        result: list[Term] = []
        for outside, (alive,) in self._cells.split([branches], known):
            used = [self.without_unused(branch, [*known, *outside]) for branch in alive]
            value = _single_value(used)
            terms = value if value is not None else self._maximum(used, [*known, *outside])
            result += [rename_bound(term._replace(guards=term.guards + outside), self._fresh) for term in terms]
        return result

    def _maximum(self, branches: Sequence[Term], known: Sequence[Dim]) -> Sequence[Term]:
        """Return a maximum, by ``max(c + s*x) = c + s*max(x)`` for a positive ``s`` if ``c`` and ``s`` are fixed."""
        plain = product_of(Call("max", (close_branches(branches),)))
        if self._laws.level is not ProofLevel.ALGEBRA:
            return plain
        increasing = self._moved_out_of_increasing(branches, known)
        if increasing is None and len(branches) == 2 and not any(branch.bound or branch.guards for branch in branches):
            return self._greater(*(_value(branch) for branch in branches))
        if increasing is not None or len(branches) != 1:
            return plain if increasing is None else increasing
        (branch,) = branches
        value = _value(branch)
        fixed = [term for term in value if term_symbols(term).isdisjoint(branch.bound)]
        moving = close(term for term in value if term not in fixed)
        if not moving:
            return plain
        scale, outside, rest = content(
            moving, lambda f: self._laws.is_positive(f) and factor_symbols(f).isdisjoint(branch.bound)
        )
        if scale < 0:
            scale, rest = -scale, close(term._replace(coefficient=-term.coefficient) for term in rest)
        scaled = branch._replace(factors=(Call("value", (rest,)),))
        greatest = Call("max", (close_branches([scaled]),))
        return [*fixed, Term(scale, (), (), (*outside, greatest))]

    def _greater(self, one: Sum, other: Sum) -> list[Term]:
        """Apply ``max(a, b) = b + relu(a - b)``."""
        difference = close([*one, *scaled(other, Fraction(-1))])
        return [*other, *self._laws.apply("relu", difference)]

    def _moved_out_of_increasing(self, branches: Sequence[Term], known: Sequence[Dim]) -> list[Term] | None:
        """Apply ``max(f(x)) = f(max(x))`` for an increasing ``f`` unless the maximum may be empty; else return None."""
        calls = [_only_call(branch) for branch in branches]
        functions = {call.function if call else "" for call in calls}
        if len(functions) != 1 or not functions <= _INCREASING:
            return None
        if not self.is_inhabited(close_branches(branches), known):
            return None
        inner = [
            branch._replace(factors=(Call("value", call.arguments),))
            for branch, call in zip(branches, calls, strict=True)
            if call is not None
        ]
        return self._laws.apply(functions.pop(), close(self._maximum(inner, known)))

    def without_unused(self, branch: Term, known: Sequence[Dim]) -> Term:
        """Drop bound indices on which the value does not depend: it is enough that they have a value.

        They have one if no lower bound is above an upper one, since the bounds are integers (Fourier-Motzkin).
        """
        for name in branch.bound:
            about = [guard for guard in branch.guards if mentions(guard, (name,))]
            signs = [unit_coefficient(guard, name) for guard in about]
            if any(name in factor_symbols(factor) for factor in branch.factors) or set(signs) != {1, -1}:
                continue
            lowest = [guard for guard, sign in zip(about, signs, strict=True) if sign > 0]
            highest = [guard for guard, sign in zip(about, signs, strict=True) if sign < 0]
            rest = [guard for guard in branch.guards if guard not in about]
            guards = self._cells.necessary([*rest, *(low + high for low in lowest for high in highest)], known)
            if guards is not None:
                bound = tuple(other for other in branch.bound if other != name)
                return self.without_unused(branch._replace(bound=bound, guards=guards), known)
        return branch

    def relu(self, argument: Sum, known: Sequence[Dim]) -> list[Term] | None:
        """Apply ``relu(s * max(..)) = s * max(relu(..))`` for a nonnegative ``s``, a number unless in algebra.

        Return None unless the argument is of this form and the maximum evidently not empty.
        """
        match argument:
            case (Term(scale, (), (), factors),) if scale > 0:
                maxima = [factor for factor in factors if isinstance(factor, Call) and factor.function == "max"]
            case _:
                return None
        if len(maxima) != 1 or not self.is_inhabited(maxima[0].arguments[0], known):
            return None
        others = list(factors)
        others.remove(maxima[0])
        if others and not (self._laws.level is ProofLevel.ALGEBRA and all(map(self._laws.leaves_relu, others))):
            return None
        moved: list[Term] = []
        for branch in maxima[0].arguments[0]:
            frame = rename_bound(branch, self._fresh)
            inner = close(self._laws.apply("relu", _value(frame)))
            moved.append(frame._replace(factors=(Call("value", (inner,)),)))
        outside = Term(scale, (), (), tuple(others))
        return [self._laws.multiply(outside, term) for term in self._choice(moved, known)]

    def is_inhabited(self, branches: Sequence[Term], known: Sequence[Dim]) -> bool:
        """Return whether some branch provably has an index inside, perhaps one where guards hold with equality."""
        ranges = (self.without_unused(branch._replace(factors=()), known) for branch in branches)
        if any(not (range_.bound or range_.guards) for range_ in ranges):
            return True
        places = itertools.chain.from_iterable(_places(branch) for branch in branches)
        alternatives = [place.guards for place in itertools.islice(places, _MOST_CANDIDATES)]
        return self._solver.implied(known, alternatives)


def as_maximum(value: Sum) -> Sum | None:
    """Return the branches if a sum is nothing but a maximum, else None."""
    match value:
        case (Term(Fraction(numerator=1, denominator=1), (), (), (Call("max", (branches,)),)),):
            return branches
        case _:
            return None


def _value(branch: Term) -> Sum:
    """Return the value of a branch."""
    (value,) = (factor.arguments[0] for factor in branch.factors if isinstance(factor, Call))
    return value


def _single_value(branches: Sequence[Term]) -> Sum | None:
    """Return the value of a maximum of one element, else None."""
    match branches:
        case [Term(_, (), (), (Call("value", (value,)),))]:
            return value
        case _:
            return None


def _only_call(branch: Term) -> Call | None:
    """Return the call if the value of a branch is nothing else, else None."""
    match branch.factors:
        case (Call("value", ((Term(Fraction(numerator=1, denominator=1), (), (), (Call() as call,)),),)),):
            return call
        case _:
            return None


def _places(branch: Term) -> Iterator[Term]:
    """Yield the branch with each bound index set so that one of its guards holds with equality."""
    if not branch.bound:
        yield branch
        return
    name = branch.bound[0]
    rest = branch._replace(bound=branch.bound[1:])
    for guard in branch.guards:
        sign = unit_coefficient(guard, name)
        if sign:
            yield from _places(substitute_term(rest, {name: (guard - sign * symbol(name)) * -sign}))
