"""Sums of guarded products: the normal form in which the prover compares the two sides of a substitution.

A term is ``coefficient * sum over bound indices of [guards] * product of factors``. A guard is an integer that must not
be negative; a bound index ranges over all integers, so that its range is part of the guards. A factor is an element of
a variable, an integer as a real number, a named constant, or a call of a function whose arguments are sums again.

Invariant: the arguments of a ``Call`` are closed: their terms are canonical, so that calls are equal when their keys
are. Bound names inside a call start with the height of its term, names outside are higher or not of this form;
substitution can therefore not capture.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import factorial, gcd
from typing import NamedTuple, TypeAlias

from taso_py.ir.size import Dim, Lookup, Poly, substitute, symbol, symbols, terms
from taso_py.ops.scalar import Irrational, Read, SizeOf

MOST_ORDERS = 120
"""Most orders of factors of one shape tried for a canonical one; beyond, equal terms may not be recognized."""


@dataclass(frozen=True, eq=False)
class Call:
    """A function of sums: ``relu``, ``exp``, ``reciprocal``, ``max`` (of the values of its only argument's terms)."""

    function: str
    arguments: tuple[Sum, ...]

    @cached_property
    def key(self) -> str:
        """Text that is equal exactly for equal calls."""
        inner = " | ".join(" + ".join(map(term_key, argument)) for argument in self.arguments)
        return f"{self.function}({inner})"

    @cached_property
    def symbols(self) -> frozenset[str]:
        """Names that occur free."""
        return frozenset().union(*(term_symbols(term) for argument in self.arguments for term in argument))

    @cached_property
    def height(self) -> int:
        """Depth of nested calls."""
        return 1 + max((height(term.factors) for argument in self.arguments for term in argument), default=0)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Call) and self.key == other.key)

    def __hash__(self) -> int:
        return hash(self.key)

    def __str__(self) -> str:
        return self.key


Factor: TypeAlias = Read | SizeOf | Irrational | Call


class Term(NamedTuple):
    """One summand."""

    coefficient: Fraction
    bound: tuple[str, ...] = ()
    guards: tuple[Dim, ...] = ()
    """Integers that are at least zero wherever the term is not zero."""
    factors: tuple[Factor, ...] = ()


Sum: TypeAlias = tuple[Term, ...]


def constant(value: Fraction | int) -> Sum:
    """Return a number as a sum."""
    return (Term(Fraction(value)),) if value else ()


def product_of(*factors: Factor) -> Sum:
    """Return a product of factors as a sum."""
    return (Term(Fraction(1), (), (), factors),)


# -- text, names


def factor_key(factor: Factor) -> str:
    """Return text that is equal exactly for equal factors."""
    match factor:
        case Read(variable, index):
            return f"{variable}[{','.join(map(str, index))}]"
        case SizeOf(value):
            return f"size({value})"
        case Irrational(name):
            return f"irrational({name})"
        case Call():
            return factor.key


def product_key(term: Term) -> str:
    """Return the factors of a term as text, without coefficient and guards; ``1`` for none."""
    return f"{'*'.join(map(factor_key, term.factors)) or '1'}^{len(term.bound)}"


def term_key(term: Term) -> str:
    """Return the whole term as text."""
    guards = " ".join(f"[{guard}]" for guard in term.guards)
    bound = f"sum {' '.join(term.bound)}: " if term.bound else ""
    return f"{term.coefficient} {bound}{guards}{'*'.join(map(factor_key, term.factors)) or '1'}"


def factor_symbols(factor: Factor) -> frozenset[str]:
    """Return the index and size names that occur free in a factor."""
    match factor:
        case Read(_, index):
            return frozenset().union(*map(symbols, index))
        case SizeOf(value):
            return symbols(value)
        case Irrational():
            return frozenset()
        case Call():
            return factor.symbols


def term_symbols(term: Term) -> frozenset[str]:
    """Return the names that occur free in a term."""
    found = frozenset[str]().union(*map(factor_symbols, term.factors), *map(symbols, term.guards))
    return found.difference(term.bound)


def has_bound_index(names: Iterable[str]) -> bool:
    """Return whether one of the names is that of a bound index."""
    return any(name.startswith(("~", "%")) for name in names)


def height(factors: Iterable[Factor]) -> int:
    """Return the greatest height of a call among the factors."""
    return max((factor.height for factor in factors if isinstance(factor, Call)), default=0)


# -- substitution


def substitute_factor(factor: Factor, bindings: Mapping[str, Dim]) -> Factor:
    """Return a factor with index names replaced; arguments of calls are closed again."""
    match factor:
        case Read(variable, index):
            return Read(variable, tuple(substitute(i, bindings) for i in index))
        case Call(function, arguments) if not factor.symbols.isdisjoint(bindings):
            closing = close_branches if function == "max" else close
            return Call(function, tuple(closing(substitute_sum(argument, bindings)) for argument in arguments))
        case _:
            return factor


def substitute_term(term: Term, bindings: Mapping[str, Dim]) -> Term:
    """Return a term with free index names replaced."""
    guards = tuple(substitute(guard, bindings) for guard in term.guards)
    return term._replace(guards=guards, factors=tuple(substitute_factor(f, bindings) for f in term.factors))


def substitute_sum(terms_: Iterable[Term], bindings: Mapping[str, Dim]) -> list[Term]:
    """Return every term with free index names replaced."""
    return [substitute_term(term, bindings) for term in terms_]


def rename_bound(term: Term, fresh: Iterator[str]) -> Term:
    """Return the term with new names for its bound indices."""
    if not term.bound:
        return term
    names = {name: next(fresh) for name in term.bound}
    renamed = substitute_term(term, {name: symbol(new) for name, new in names.items()})
    return renamed._replace(bound=tuple(names.values()))


# -- canonical form


def close(terms_: Iterable[Term]) -> Sum:
    """Return the canonical form of a sum: canonical terms, like terms added up, in a fixed order."""
    total: dict[tuple[str, tuple[Dim, ...]], Term] = {}
    for term in terms_:
        tidied = canonical(term)
        if tidied is None:
            continue
        place = (product_key(tidied), tidied.guards)
        before = total.get(place)
        coefficient = tidied.coefficient + (before.coefficient if before else 0)
        total[place] = tidied._replace(coefficient=coefficient)
    return tuple(sorted((term for term in total.values() if term.coefficient), key=term_key))


def has_like_terms(terms_: Iterable[Term]) -> bool:
    """Return whether closing the sum adds up coefficients."""
    places = [(product_key(term), term.guards) for term in map(canonical, terms_) if term is not None]
    return len(set(places)) < len(places)


def close_branches(branches: Iterable[Term]) -> Sum:
    """Return the canonical form of the branches of a maximum: as a sum's, but duplicates count once."""
    tidied = (canonical(branch) for branch in branches)
    return tuple(sorted({branch for branch in tidied if branch is not None}, key=term_key))


def tighten(guard: Dim) -> Dim:
    """Return an equivalent guard whose coefficients have no common factor: ``2*i - 1 >= 0`` is ``i - 1 >= 0``."""
    if isinstance(guard, int):
        return guard
    common = 0
    offset = 0
    for monomial, coefficient in guard.terms:
        if monomial:
            common = gcd(common, coefficient)
        else:
            offset = coefficient
    if common <= 1:
        return guard
    reduced: Dim = offset // common
    for monomial, coefficient in guard.terms:
        if monomial:
            reduced = reduced + Poly(((monomial, coefficient // common),))
    return reduced


def tidy_guards(guards: Iterable[Dim]) -> tuple[Dim, ...] | None:
    """Return tightened guards, sorted, without duplicates and trivial ones; None if one can never hold."""
    kept: set[Dim] = set()
    for guard in map(tighten, guards):
        if isinstance(guard, Poly):
            kept.add(guard)
        elif guard < 0:
            return None
    return tuple(sorted(kept, key=str))


def canonical(term: Term) -> Term | None:
    """Return the term with factors, guards and bound indices in canonical form; None if a guard can never hold.

    Bound indices are named in the order in which the factors mention them, and shifted so that the first index that
    mentions one with coefficient 1 or -1 becomes that name alone. Where several orders of factors are possible, the
    one with the least text is taken.
    """
    best: tuple[str, Term] | None = None
    term = _renamed_apart(term)
    for factors in _orders(term):
        bindings, names = _names(factors, term.bound)
        renamed = substitute_term(term._replace(factors=factors), bindings) if bindings else term
        guards = tidy_guards(renamed.guards)
        if guards is None:
            return None
        ordered = tuple(sorted(renamed.factors, key=factor_key))
        candidate = Term(term.coefficient, names, guards, ordered)
        if not term.bound:
            return candidate
        key = f"{product_key(candidate)} {guards}"
        if best is None or key < best[0]:
            best = key, candidate
    assert best is not None, "there is at least one order"
    return best[1]


def _renamed_apart(term: Term) -> Term:
    """Return the term with bound indices renamed apart from canonical names, which are being assigned.

    The names sort as canonical ones do, so that a canonical term keeps the order of what is inside its calls.
    """
    level = height(term.factors)
    return rename_bound(term, (f"%{level}.{number}'" for number in itertools.count()))


def _orders(term: Term) -> Iterator[tuple[Factor, ...]]:
    """Yield the orders of factors to try: sorted by shape, all orders among factors of one shape (if not too many)."""
    if not term.bound:
        yield term.factors
        return
    bound = frozenset(term.bound)
    shapes = {factor: _shape(factor, bound) for factor in term.factors}
    ordered = sorted(term.factors, key=lambda factor: shapes[factor])
    groups = [list(group) for _, group in itertools.groupby(ordered, key=lambda factor: shapes[factor])]
    count = 1
    for group in groups:
        count *= factorial(len(group))
    if count == 1 or count > MOST_ORDERS:
        yield tuple(ordered)
        return
    choices = [sorted(set(itertools.permutations(group)), key=lambda o: [*map(factor_key, o)]) for group in groups]
    for choice in itertools.product(*choices):
        yield tuple(itertools.chain.from_iterable(choice))


def _shape(factor: Factor, bound: frozenset[str]) -> str:
    """Return the factor's text without the indices that mention a bound name."""
    match factor:
        case Read(variable, index):
            shown = ("?" if symbols(i) & bound else str(i) for i in index)
            return f"{variable}[{','.join(shown)}]"
        case Call(function, arguments) if factor.symbols & bound:
            inner = (
                "*".join(sorted(_shape(f, bound | frozenset(term.bound)) for f in term.factors))
                for argument in arguments
                for term in argument
            )
            return f"{function}({'+'.join(sorted(inner))})"
        case _:
            return factor_key(factor)


def _names(factors: Sequence[Factor], bound: tuple[str, ...]) -> tuple[dict[str, Dim], tuple[str, ...]]:
    """Return the bound indices in terms of new names, and the new names."""
    level = height(factors)
    bindings: dict[str, Dim] = {}
    left = dict.fromkeys(bound)
    names = tuple(f"%{level}.{number}" for number in range(len(bound)))
    fresh = iter(names)
    for index in indices(factors):
        if not left:
            break
        if symbols(index).isdisjoint(left):
            continue
        index = substitute(index, bindings)
        found = next((name for name in left if unit_coefficient(index, name)), None)
        if found is not None:
            sign = unit_coefficient(index, found)
            new = {found: (symbol(next(fresh)) - (index - sign * symbol(found))) * sign}
            bindings = {name: substitute(value, new) for name, value in bindings.items()} | new
            del left[found]
    for name in left:
        new = {name: symbol(next(fresh))}
        bindings = {known: substitute(value, new) for known, value in bindings.items()} | new
    return bindings, names


def indices(factors: Iterable[Factor]) -> Iterator[Dim]:
    """Yield every index of every element read.

    Those of lookups are included, and those inside calls unless their own bound names occur.
    """
    for factor in factors:
        if isinstance(factor, Read):
            for index in factor.index:
                yield from _with_lookups(index)
        elif isinstance(factor, Call):
            for argument in factor.arguments:
                for term in argument:
                    yield from (i for i in indices(term.factors) if symbols(i).isdisjoint(term.bound))


def _with_lookups(index: Dim) -> Iterator[Dim]:
    """Yield an index, and the indices at which integers are read to find it."""
    yield index
    for atom in index.atoms() if isinstance(index, Poly) else ():
        if isinstance(atom, Lookup):
            for inner in atom.index:
                yield from _with_lookups(inner)


def reads(term: Term) -> int:
    """Return the number of elements that a term reads, those inside calls included; at least one."""
    calls = (factor for factor in term.factors if isinstance(factor, Call))
    inside = sum(reads(part) for call in calls for argument in call.arguments for part in argument)
    return max(1, len(term.factors)) + inside


def unit_coefficient(value: Dim, name: str) -> int:
    """Return 1 or -1 if ``value`` is ``name`` or ``-name`` plus something free of ``name``, else 0."""
    found = 0
    for monomial, coefficient in terms(value):
        if monomial == (name,) and abs(coefficient) == 1:
            found = coefficient
        elif any(name == atom or (not isinstance(atom, str) and name in _atom_symbols(atom)) for atom in monomial):
            return 0
    return found


def _atom_symbols(atom: object) -> frozenset[str]:
    return symbols(Poly((((atom,), 1),)))  # pyright: ignore[reportArgumentType]
