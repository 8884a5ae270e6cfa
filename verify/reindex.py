"""Bound indices over a product of sizes: split where they are divided, merged where they are not.

An index ``p`` of ``E*D`` values corresponds to a pair ``(a, b)`` of ``E`` and ``D`` values, ``p = a*D + b``. A reshape
that splits an axis divides such an index; in terms of the pair nothing is divided.

Invariant: the bound indices before and after are in one-to-one correspondence wherever the guards hold.
"""

from __future__ import annotations

from collections.abc import Iterator

from taso_py.ir.size import Dim, FloorDiv, Lookup, Poly, floordiv, symbol, symbols, terms
from verify.context import INDEX_MARKS, Context, has_division
from verify.terms import Term, factor_symbols, indices, substitute_term, unit_coefficient


def split(term: Term, context: Context) -> Term | None:
    """Return the term with one bound index split that is divided by a factor of its range; None if there is none."""
    divided = [index for index in indices(term.factors) if has_division(index)]
    if not divided or not term.bound:
        return None
    for name in term.bound:
        extent = _extent(term, name)
        if extent is None:
            continue
        for divisor in _divisors(divided, name):
            count = floordiv(extent, divisor)
            if count == 1 or count * divisor != extent or not context.follows(divisor - 1):
                continue
            return _split_index(term, name, count, divisor)
    return None


def _split_index(term: Term, name: str, count: Dim, divisor: Dim) -> Term:
    major, minor = f"{name}/", f"{name}%"
    moved = substitute_term(term, {name: symbol(major) * divisor + symbol(minor)})
    old = {symbol(major) * divisor + symbol(minor), count * divisor - 1 - symbol(major) * divisor - symbol(minor)}
    guards = [guard for guard in moved.guards if guard not in old]
    guards += [symbol(major), count - 1 - symbol(major), symbol(minor), divisor - 1 - symbol(minor)]
    bound = tuple(part for other in term.bound for part in ((major, minor) if other == name else (other,)))
    return moved._replace(bound=bound, guards=tuple(guards))


def merge(term: Term) -> Term | None:
    """Return the term with a pair of bound indices merged that is only read as ``a*D + b``; None if there is none."""
    if len(term.bound) < 2 or any(map(has_division, indices(term.factors))):
        return None
    for minor in term.bound:
        divisor = _extent(term, minor)
        if divisor is None:
            continue
        for major in term.bound:
            count = _extent(term, major) if major != minor else None
            if count is None or not any(_is_pair(index, major, minor, divisor) for index in indices(term.factors)):
                continue
            plain = substitute_term(term, {minor: symbol(minor) - divisor * symbol(major)})
            guards = [guard for guard in term.guards if symbols(guard).isdisjoint((major, minor))]
            if any(major in factor_symbols(factor) for factor in plain.factors) or len(guards) + 4 < len(term.guards):
                continue
            guards += [symbol(minor), count * divisor - 1 - symbol(minor)]
            return plain._replace(bound=tuple(b for b in term.bound if b != major), guards=tuple(guards))
    return None


def quotient(term: Term, context: Context) -> Term | None:
    """Return the term without a bound index that is a quotient: ``0 <= r - D*a < D`` says that ``a`` is ``r // D``."""
    for name in term.bound:
        if any(name in factor_symbols(factor) for factor in term.factors):
            continue
        about = [guard for guard in term.guards if name in symbols(guard)]
        for low in about:
            for high in about:
                divisor = low + high + 1
                rest = low + divisor * symbol(name)
                if (
                    divisor == 1
                    or name in symbols(divisor)
                    or name in symbols(rest)
                    or not context.follows(divisor - 1)
                ):
                    continue
                others = tuple(guard for guard in term.guards if guard not in (low, high))
                plain = substitute_term(term._replace(guards=others), {name: floordiv(rest, divisor)})
                guards = tuple(map(context.linear, plain.guards))
                if not any(map(has_division, guards)):
                    return plain._replace(bound=tuple(b for b in term.bound if b != name), guards=guards)
    return None


def _extent(term: Term, name: str) -> Dim | None:
    """Return ``E`` if the guards say ``0 <= name < E``, else None."""
    if symbol(name) not in term.guards:
        return None
    uppers = (guard + symbol(name) + 1 for guard in term.guards if unit_coefficient(guard, name) == -1)
    return next((extent for extent in uppers if not any(s.startswith(INDEX_MARKS) for s in symbols(extent))), None)


def _is_pair(index: Dim, major: str, minor: str, divisor: Dim) -> bool:
    """Return whether an index is ``major*divisor + minor`` plus a rest without either."""
    rest = index - symbol(major) * divisor - symbol(minor)
    return symbols(rest).isdisjoint((major, minor))


def _divisors(indices_: list[Dim], name: str) -> Iterator[Dim]:
    for index in indices_:
        for atom in index.atoms() if isinstance(index, Poly) else ():
            if isinstance(atom, FloorDiv):
                if any(monomial == (name,) for monomial, _ in terms(atom.numerator)):
                    yield atom.denominator
                yield from _divisors([atom.numerator], name)
            elif isinstance(atom, Lookup):
                yield from _divisors([*atom.index], name)
