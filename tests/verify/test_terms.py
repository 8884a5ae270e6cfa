from __future__ import annotations

import itertools
import math
from fractions import Fraction

import pytest

from taso_py.ir.size import Dim, Lookup, Poly, substitute, symbol
from taso_py.ops.scalar import Read
from verify.terms import (
    Call,
    Term,
    canonical,
    close,
    has_bound_index,
    has_like_terms,
    height,
    product_key,
    rename_bound,
    substitute_term,
    term_key,
    term_symbols,
    tighten,
    unit_coefficient,
)

A, J, K, M, N = (symbol(name) for name in ("@0", "~1", "~2", "M", "N"))


def read(variable: str, *index: Dim) -> Read:
    return Read(variable, index)


def term(*factors: Read | Call, bound: tuple[str, ...] = (), guards: tuple[Dim, ...] = (), by: int = 1) -> Term:
    return Term(Fraction(by), bound, guards, factors)


@pytest.mark.parametrize(
    ("guard", "tightened"),
    [(2 * A - 1, A - 1), (2 * A + 1, A), (3 * A - 3 * N, A - N), (A - N, A - N), (7, 7), (-2 * A + 5, 2 - A)],
)
def test_guards_are_tightened_to_integers(guard: Dim, tightened: Dim) -> None:
    assert tighten(guard) == tightened


def test_a_shifted_sum_is_the_same_sum() -> None:
    plain = term(read("x", A, J), read("w", J), bound=("~1",), guards=(J, N - 1 - J))
    shifted = term(read("x", A, K + 3), read("w", K + 3), bound=("~2",), guards=(K + 3, N - 4 - K))
    assert canonical(plain) == canonical(shifted)


def test_sums_over_lookups_are_named_by_what_is_looked_up() -> None:
    def row(*index: Dim) -> Poly:
        return Poly((((Lookup("i", index, N, 0),), 1),))

    plain = term(read("t", row(J, K), A), bound=("~1", "~2"), guards=(J, M - 1 - J, K, N - 1 - K))
    other = term(read("t", row(K, J + 2), A), bound=("~1", "~2"), guards=(K, M - 1 - K, J + 2, N - 3 - J))
    assert canonical(plain) == canonical(other)
    exchanged = term(read("t", row(J, K), A), bound=("~1", "~2"), guards=(K, M - 1 - K, J, N - 1 - J))
    assert canonical(plain) != canonical(exchanged)
    assert unit_coefficient(J + row(J), "~1") == 0  # no bijection
    assert has_bound_index(term_symbols(term(read("t", row(J)))))


def test_a_reversed_sum_is_the_same_sum() -> None:
    plain = term(read("x", J), bound=("~1",), guards=(J, N - 1 - J))
    back = term(read("x", N - 1 - J), bound=("~1",), guards=(J, N - 1 - J))
    assert canonical(plain) == canonical(back)


def test_the_order_of_factors_and_bound_indices_does_not_matter() -> None:
    factors = [read("x", A, J), read("x", J, K), read("x", K, A)]
    forms = {
        canonical(term(*order, bound=bound))
        for order in itertools.permutations(factors)
        for bound in (("~1", "~2"), ("~2", "~1"))
    }
    assert len(forms) == 1


SUMS = [
    term(read("x", A, J), read("x", K, A), bound=("~1", "~2"), guards=(J, N - 1 - J, K, 5 - K, J - K - 1)),
    term(read("x", J, K), read("x", K, J), read("w", J), bound=("~1", "~2"), guards=(J, K, N - J, 7 - K)),
    term(
        Call("relu", (close([term(read("x", 0, J)), term(read("x", K, 0))]),)),
        bound=("~1", "~2"),
        guards=(J, N - 1 - J, K, M - 1 - K),
    ),
    term(
        Call("relu", (close([term(read("x", J, A)), term(read("x", A, K))]),)),
        read("w", J, K),
        bound=("~1", "~2"),
        guards=(J, N - 1 - J, K, M - 1 - K),
    ),
]


@pytest.mark.parametrize("number", range(len(SUMS)))
def test_a_canonical_term_stays_the_same_sum_whatever_its_indices_are_called(number: int) -> None:
    """Canonical names are given anew, perhaps to other indices: none of them may become one with another."""
    sum_ = SUMS[number]
    form = canonical(sum_)
    assert form is not None
    again = canonical(form)
    assert again is not None
    assert _values(again) == _values(form) == _values(sum_)
    for names in itertools.permutations(("%0.0", "%0.1", "%1.0", "%1.1"), 2):
        renamed = canonical(rename_bound(sum_, iter(names)))
        assert renamed is not None
        assert _values(renamed) == _values(sum_)


def _values(term_: Term) -> dict[int, float]:
    """What a term is at some places, for fixed operands."""
    return {at: _value(term_, {"@0": at, "N": 4, "M": 2}) for at in range(4)}


def _value(term_: Term, sizes: dict[str, int]) -> float:
    total = 0.0
    for place in itertools.product(range(-1, 9), repeat=len(term_.bound)):
        at = sizes | dict(zip(term_.bound, place, strict=True))
        if all(_integer(guard, at) >= 0 for guard in term_.guards):
            total += float(term_.coefficient) * math.prod(_factor(factor, at) for factor in term_.factors)
    return round(total, 6)


def _factor(factor: object, at: dict[str, int]) -> float:
    if isinstance(factor, Read):
        seed = sum(ord(c) for c in factor.variable)
        index = [_integer(i, at) for i in factor.index]
        return math.sin(seed + sum((7 * place + 3) * i for place, i in enumerate(index)))
    assert isinstance(factor, Call)
    (argument,) = factor.arguments
    return max(0.0, sum(_value(part, at) for part in argument))


def _integer(value: Dim, at: dict[str, int]) -> int:
    found = substitute(value, at)
    assert isinstance(found, int)
    return found


def test_different_contractions_differ() -> None:
    straight = term(read("a", A, J), read("b", J, K), bound=("~1", "~2"))
    crossed = term(read("a", A, J), read("b", K, J), bound=("~1", "~2"))
    assert canonical(straight) != canonical(crossed)


def test_a_guard_that_never_holds_makes_zero() -> None:
    assert canonical(term(read("x", A), guards=(-1,))) is None
    assert close([term(read("x", A), guards=(2, -1))]) == ()


def test_like_terms_add_up() -> None:
    x = term(read("x", A))
    assert close([x, x]) == (x._replace(coefficient=Fraction(2)),)
    assert close([x, x._replace(coefficient=Fraction(-1))]) == ()
    assert has_like_terms([x, x])
    assert not has_like_terms([x, term(read("x", A), guards=(A - N,))])


def test_names_inside_calls_are_not_captured() -> None:
    inner = close([term(read("x", A, J), bound=("~1",))])
    outer = canonical(term(Call("exp", (inner,)), read("y", J), bound=("~1",)))
    assert outer is not None
    assert outer.bound == ("%1.0",)
    assert [t.bound for t in inner] == [("%0.0",)]
    moved = substitute_term(term(Call("exp", (inner,))), {"@0": symbol("%1.0")})
    assert term_symbols(moved) == {"%1.0"}
    assert height(moved.factors) == 1


def test_renaming_keeps_the_canonical_form() -> None:
    plain = term(read("x", A, J), bound=("~1",), guards=(J,))
    assert canonical(rename_bound(plain, iter(["~9"]))) == canonical(plain)


def test_text_tells_terms_apart() -> None:
    plain = term(read("x", A, J), bound=("~1",), guards=(J,), by=-2)
    assert term_key(plain) == "-2 sum ~1: [~1]x[@0,~1]"
    assert product_key(plain) == "x[@0,~1]^1"
    assert product_key(term()) == "1^0"


@pytest.mark.parametrize(
    ("value", "found"), [(J + N, 1), (N - J, -1), (2 * J, 0), (J + J * N, 0), (J // N + J, 0), (N + 0, 0)]
)
def test_unit_coefficients(value: Dim, found: int) -> None:
    assert unit_coefficient(value, "~1") == found
