"""Sizes: integers, or polynomials with integer coefficients over named symbols.

Tensor dimensions, operator attributes (strides, paddings, split points) and the indices of operator definitions are
all of the one type ``Dim = int | Poly``. A rule speaks of symbols, which matching binds; a model of open sizes
(:class:`Open`), which its callers substitute_open anew with every call and nothing binds.

Invariants: a ``Poly`` is immutable, in canonical form (sorted monomials, no zero coefficients) and never constant: a
constant result collapses to ``int``. Hence two sizes are equal as polynomials exactly when they are equal as objects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import gcd
from typing import Any, Self, TypeAlias


@dataclass(frozen=True, slots=True)
class FloorDiv:
    """An atom: ``numerator // denominator`` where the division could not be carried out."""

    numerator: Dim
    denominator: Dim

    def __str__(self) -> str:
        return f"(({self.numerator})//({self.denominator}))"


@dataclass(frozen=True, slots=True)
class Open:
    """An atom: a size of a model's inputs that callers substitute_open."""

    name: str
    """The dimension it stands for: ``x.0`` is the first dimension of the input ``x``, ``x.0 // 2`` half of that."""
    example: int
    """Its value in the example inputs, at which latencies are measured."""
    least: int
    """Its lower bound, one or more."""
    most: int | None
    """Its upper bound, None if there is none."""

    def __str__(self) -> str:
        name = f"({self.name})" if " " in self.name else self.name
        return f"{name}{{{self.example} in {self.range}}}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the size that has this text."""
        name, _, told = text[:-1].rpartition("{")
        example, _, bounds = told.partition(" in ")
        least, _, most = bounds.partition("..")
        return cls(name[1:-1] if name[0] == "(" else name, int(example), int(least), int(most) if most else None)

    @property
    def range(self) -> str:
        """The bounds as text: ``2..64``, or ``2..`` without an upper bound."""
        return f"{self.least}..{'' if self.most is None else self.most}"


@dataclass(frozen=True, slots=True)
class Lookup:
    """An atom: the place among ``extent`` that an element of a tensor of integers stands for, at least 0 and less.

    Nothing else is known of it: lookups are equal where tensor, index, extent and the meaning of negative integers are.
    """

    tensor: str
    index: tuple[Dim, ...]
    extent: Dim
    wraps: Dim
    """1 if negative integers count from the end, 0 if there are none."""

    @property
    def sizes(self) -> tuple[Dim, ...]:
        """The integers that it depends on."""
        return (*self.index, self.extent, self.wraps)

    def __str__(self) -> str:
        return f"{self.tensor}[{','.join(map(str, self.index))}]<{self.extent},{self.wraps}>"


Atom: TypeAlias = str | FloorDiv | Open | Lookup
Monomial: TypeAlias = tuple[Atom, ...]


@dataclass(frozen=True, eq=False)
class Poly:
    """A polynomial that is not constant; build one with :func:`symbol` and arithmetic."""

    terms: tuple[tuple[Monomial, int], ...]
    """Sorted (monomial, coefficient) pairs; the empty monomial is the constant term."""

    @cached_property
    def _hash(self) -> int:
        return hash(self.terms)

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def name(self) -> str | None:
        """The symbol's name if the polynomial is a single symbol, else None."""
        if len(self.terms) != 1:
            return None
        ((monomial, factor),) = self.terms
        first = monomial[0]
        return first if factor == 1 and len(monomial) == 1 and isinstance(first, str) else None

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Poly) and self.terms == other.terms)

    def __add__(self, other: Dim) -> Dim:
        total = dict(self.terms)
        for monomial, coefficient in _terms(other):
            total[monomial] = total.get(monomial, 0) + coefficient
        return _collect(total)

    __radd__ = __add__

    def __neg__(self) -> Dim:
        return self * -1

    def __sub__(self, other: Dim) -> Dim:
        total = dict(self.terms)
        for monomial, coefficient in _terms(other):
            total[monomial] = total.get(monomial, 0) - coefficient
        return _collect(total)

    def __rsub__(self, other: Dim) -> Dim:
        return -1 * self + other

    def __mul__(self, other: Dim) -> Dim:
        if isinstance(other, int):  # the order of the monomials stays
            return Poly(tuple([(monomial, other * a) for monomial, a in self.terms])) if other else 0
        total: dict[Monomial, int] = {}
        for left, a in self.terms:
            for right, b in _terms(other):
                product = tuple(sorted(left + right, key=str))
                total[product] = total.get(product, 0) + a * b
        return _collect(total)

    __rmul__ = __mul__

    def __floordiv__(self, other: Dim) -> Dim:
        return floordiv(self, other)

    def __rfloordiv__(self, other: Dim) -> Dim:
        return floordiv(other, self)

    def __mod__(self, other: Dim) -> Dim:
        return self - other * floordiv(self, other)

    @cached_property
    def symbols(self) -> frozenset[str]:
        """The names of the symbols that occur, inside other atoms too.

        A lookup depends on more than sizes: so it has a name that is no size's, "!" and that of its tensor.
        """
        found: set[str] = set()
        for atom in self.atoms():
            if isinstance(atom, str):
                found.add(atom)
            elif isinstance(atom, FloorDiv):
                found |= symbols(atom.numerator) | symbols(atom.denominator)
            elif isinstance(atom, Lookup):
                found.add(f"!{atom.tensor}")
                found = found.union(*map(symbols, atom.sizes))
        return frozenset(found)

    @cached_property
    def open(self) -> frozenset[Open]:
        """The open sizes that occur, inside floor divisions too."""
        found: set[Open] = set()
        for atom in self.atoms():
            if isinstance(atom, Open):
                found.add(atom)
            elif isinstance(atom, FloorDiv):
                found |= open_sizes(atom.numerator) | open_sizes(atom.denominator)
        return frozenset(found)

    def atoms(self) -> Iterator[Atom]:
        """Yield every atom of every monomial, with repetitions."""
        for monomial, _ in self.terms:
            yield from monomial

    def __str__(self) -> str:
        return self._text

    @cached_property
    def _text(self) -> str:
        text = ""
        for monomial, coefficient in sorted(self.terms, key=lambda term: (-len(term[0]), [str(a) for a in term[0]])):
            factors = [str(atom) for atom in monomial]
            if abs(coefficient) != 1 or not factors:
                factors.insert(0, str(abs(coefficient)))
            sign = "-" if coefficient < 0 else ("+" if text else "")
            text += sign + "*".join(factors)
        return text

    __repr__ = __str__


Dim: TypeAlias = int | Poly


def _terms(value: Dim) -> tuple[tuple[Monomial, int], ...]:
    if isinstance(value, Poly):
        return value.terms
    return (((), value),) if value else ()


def _collect(total: Mapping[Monomial, int]) -> Dim:
    kept = [(monomial, coefficient) for monomial, coefficient in total.items() if coefficient]
    if not kept:
        return 0
    if len(kept) == 1 and not kept[0][0]:
        return kept[0][1]
    if len(kept) > 1:
        kept.sort(key=lambda term: [str(atom) for atom in term[0]])
    return Poly(tuple(kept))


def symbol(name: str) -> Poly:
    """Return the size variable ``name``."""
    return Poly((((name,), 1),))


def symbols(value: Dim) -> frozenset[str]:
    """Return the names of the symbols that occur in a size."""
    return value.symbols if isinstance(value, Poly) else frozenset()


def open_size(size: Open) -> Poly:
    """Return the polynomial that consists of one open size."""
    return Poly((((size,), 1),))


def open_sizes(value: Dim) -> frozenset[Open]:
    """Return the open sizes that occur in a size."""
    return value.open if isinstance(value, Poly) else frozenset()


def terms(value: Dim) -> tuple[tuple[Monomial, int], ...]:
    """Return the (monomial, coefficient) pairs of a size; none for zero."""
    return _terms(value)


def floordiv(numerator: Dim, denominator: Dim) -> Dim:
    """Return ``numerator // denominator`` for a positive denominator, simplified where that is exact for every value.

    The part of the numerator that the denominator divides term by term leaves the division:
    ``(a + q*d) // d == a // d + q``.
    """
    if isinstance(numerator, int) and isinstance(denominator, int):
        return numerator // denominator
    if denominator == 1:
        return numerator
    whole = _divide_exactly(numerator, denominator)
    if whole is not None:
        return whole
    quotient: Dim = 0
    rest: Dim = 0
    divisor = _terms(denominator)
    for monomial, coefficient in _terms(numerator):
        divided = _divide_term(monomial, coefficient, divisor[0]) if len(divisor) == 1 else None
        if divided is None:
            rest = rest + _collect({monomial: coefficient})
        else:
            quotient = quotient + divided
    if rest == 0:
        return quotient
    if isinstance(rest, int) and isinstance(denominator, int):
        return quotient + rest // denominator
    rest, denominator = _cancel(rest, denominator)
    return quotient + Poly((((FloorDiv(rest, denominator),), 1),))


def _divide_exactly(numerator: Dim, denominator: Dim) -> Dim | None:
    """Return the exact quotient by a sum of several terms, or None if there is a remainder."""
    if not isinstance(denominator, Poly) or len(denominator.terms) == 1:
        return None
    quotient: Dim = 0
    # Long division (e.g. Cox, Little and O'Shea, Ideals, Varieties, and Algorithms, section 2.3) by the greatest term;
    # a term that it does not divide is a remainder.
    lead = max(denominator.terms, key=_degree)
    while numerator != 0:
        divided = _divide_term(*max(_terms(numerator), key=_degree), lead)
        if divided is None:
            return None
        quotient = quotient + divided
        numerator = numerator - divided * denominator
    return quotient


def _degree(term: tuple[Monomial, int]) -> tuple[int, list[str]]:
    """Sort key of a monomial order: number of atoms, then their names from the last; multiplication preserves it."""
    return len(term[0]), sorted(map(str, term[0]), reverse=True)


def _divide_term(monomial: Monomial, coefficient: int, divisor: tuple[Monomial, int]) -> Dim | None:
    """Return the exact quotient of one term by another, or None."""
    atoms, factor = divisor
    if coefficient % factor:
        return None
    left = list(monomial)
    for atom in atoms:
        if atom not in left:
            return None
        left.remove(atom)
    return _collect({tuple(left): coefficient // factor})


def _cancel(numerator: Dim, denominator: Dim) -> tuple[Dim, Dim]:
    """Divide both by the greatest common positive integer factor of all coefficients."""
    common = 0
    for _, coefficient in _terms(numerator) + _terms(denominator):
        common = gcd(common, coefficient)
    if common <= 1:
        return numerator, denominator
    scale: Callable[[Dim], Dim] = lambda value: _collect({m: c // common for m, c in _terms(value)})  # noqa: E731
    return scale(numerator), scale(denominator)


def substitute(value: Dim, bindings: Mapping[str, Dim]) -> Dim:
    """Return ``value`` with symbols replaced, simplified; symbols without a binding stay."""
    if isinstance(value, int) or value.symbols.isdisjoint(bindings):
        return value
    return _replaced(value, bindings.get)


def substitute_open(value: Dim, sizes: Mapping[Open, Dim]) -> Dim:
    """Return ``value`` with open sizes replaced; those without a binding stay."""
    if isinstance(value, int) or value.open.isdisjoint(sizes):
        return value
    return _replaced(value, sizes.get)


def at_example(value: Dim) -> Dim:
    """Return ``value`` with every open size set to its value in the example inputs."""
    if isinstance(value, int) or not value.open:
        return value
    return substitute_open(value, {size: size.example for size in value.open})


def _replaced(value: Poly, replacement: Callable[[Any], Dim | None]) -> Dim:
    """Return ``value`` with each atom replaced for which ``replacement`` gives a size."""
    total: Dim = 0
    for monomial, coefficient in value.terms:
        product: Dim = 1
        for atom in monomial:
            factor = _replaced_atom(atom, replacement)
            product = factor if product == 1 else product * factor
        # Most sizes are a single symbol, which needs no arithmetic.
        product = product if coefficient == 1 else coefficient * product
        total = product if total == 0 else total + product
    return total


def _replaced_atom(atom: Atom, replacement: Callable[[Any], Dim | None]) -> Dim:
    if isinstance(atom, FloorDiv):
        sides = (atom.numerator, atom.denominator)
        return floordiv(*(_replaced(side, replacement) if isinstance(side, Poly) else side for side in sides))
    if isinstance(atom, Lookup):
        *index, extent, wraps = [
            _replaced(size, replacement) if isinstance(size, Poly) else size for size in atom.sizes
        ]
        return Poly((((Lookup(atom.tensor, tuple(index), extent, wraps),), 1),))
    bound = replacement(atom)
    return Poly((((atom,), 1),)) if bound is None else bound


def evaluate(value: Dim, bindings: Mapping[str, int]) -> int:
    """Return the integer value of ``value`` under ``bindings``.

    Raises:
        KeyError: a symbol has no binding.
    """
    if isinstance(value, int):
        return value
    total = 0
    for monomial, product in value.terms:
        for atom in monomial:
            product *= _value_of(atom, bindings)
        total += product
    return total


def _value_of(atom: Atom, bindings: Mapping[str, int]) -> int:
    if isinstance(atom, FloorDiv):
        return evaluate(atom.numerator, bindings) // evaluate(atom.denominator, bindings)
    if isinstance(atom, str) and atom in bindings:
        return bindings[atom]
    raise KeyError(f"no value for {atom}")


def is_never_negative(value: Dim) -> bool:
    """Return whether ``value >= 0`` is evident, given that symbols are at least 1 and open sizes within their bounds.

    Sufficient, not necessary: upper bounds of open sizes are not used.
    """
    bound = least(value)
    return bound is not None and bound >= 0


def least(value: Dim) -> int | None:
    """Return an evident lower bound of a size, or None; see :func:`is_never_negative`."""
    if isinstance(value, int):
        return value
    excess: Dim = 0
    for monomial, coefficient in value.terms:
        product: Dim = coefficient
        for atom in monomial:
            bound = _least_of(atom)
            if bound is None:
                return None
            # In terms of what the atom exceeds its bound by, which is not negative. The name is no other size's.
            product = product * (bound + symbol(f"{atom} - {bound}"))
        excess = excess + product
    if any(monomial and coefficient < 0 for monomial, coefficient in _terms(excess)):
        return None
    return next((coefficient for monomial, coefficient in _terms(excess) if not monomial), 0)


def _least_of(atom: Atom) -> int | None:
    if isinstance(atom, FloorDiv):
        bound = least(atom.numerator)
        return bound // atom.denominator if bound is not None and isinstance(atom.denominator, int) else None
    if isinstance(atom, Lookup):
        return 0
    return atom.least if isinstance(atom, Open) else 1


def solve(difference: Dim, candidates: Callable[[str], bool]) -> tuple[str, Dim] | None:
    """Solve ``difference == 0`` for one symbol that satisfies ``candidates``.

    Only a symbol that occurs exactly once, alone in its monomial and with coefficient 1 or -1, is solved for, so the
    solution is an integer for all values of the others. Returns the symbol and its value, or None.
    """
    for monomial, coefficient in _terms(difference):
        if len(monomial) != 1 or abs(coefficient) != 1 or not isinstance(monomial[0], str):
            continue
        name = monomial[0]
        rest = difference - coefficient * symbol(name)
        if candidates(name) and name not in symbols(rest):
            return name, rest * -coefficient
    return None
