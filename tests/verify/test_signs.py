"""Signs that a case assumes decide sums that follow from them, and no others."""

from __future__ import annotations

from fractions import Fraction

import pytest

from taso_py.ir.size import symbol
from taso_py.ops.scalar import Read
from verify.context import Context
from verify.laws import Laws, ProofLevel
from verify.signs import MOST_ASSUMED, Assumption, Signs
from verify.terms import Sum, Term, close


def total(constant: int = 0, **coefficients: int) -> Sum:
    """The sum of multiples of elements and a number."""
    parts = [Term(Fraction(value), (), (), (Read(name, (symbol("@0"),)),)) for name, value in coefficients.items()]
    return close([*parts, *([Term(Fraction(constant))] if constant else [])])


def sign(value: Sum, *assumed: Assumption) -> int:
    signs = Signs(assumed)
    return signs.of(value, Laws(Context({}, ()), ProofLevel.ALGEBRA, signs).is_nonnegative_sum)


X, NOT_X = Assumption(total(x=1), is_positive=True), Assumption(total(x=1), is_positive=False)
ORDERED = (Assumption(total(x=1, y=-1), is_positive=True), Assumption(total(y=1, z=-1), is_positive=True))


@pytest.mark.parametrize(
    ("value", "assumed", "expected"),
    [
        (total(x=2), (X,), 1),
        (total(x=-2), (X,), -1),
        (total(x=1), (NOT_X,), -1),
        (total(x=-3), (NOT_X,), 1),
        (total(3, x=1), (X,), 1),
        (total(-3, x=1), (NOT_X,), -1),
        (total(x=1, z=-1), ORDERED, 1),
        (total(x=-1, z=1), ORDERED, -1),
        (total(-3, x=1), (X,), 0),
        (total(3, x=1), (NOT_X,), 0),
        (total(y=1), (X,), 0),
        (total(x=1, y=1), (X,), 0),
        (total(x=1, z=1), ORDERED, 0),
        (total(x=1), (), 0),
    ],
)
def test_what_follows_is_decided_and_nothing_else(value: Sum, assumed: tuple[Assumption, ...], expected: int) -> None:
    assert sign(value, *assumed) == expected


def above(value: Sum, *assumed: Assumption) -> bool | None:
    signs = Signs(assumed)
    laws = Laws(Context({}, ()), ProofLevel.ALGEBRA, signs)
    return signs.is_positive(value, laws.is_nonnegative_sum, laws.is_positive_sum)


@pytest.mark.parametrize(
    ("value", "assumed", "expected"),
    [
        (total(x=2), (X,), True),
        (total(x=-2), (X,), False),
        (total(x=1), (NOT_X,), False),
        (total(x=-3), (NOT_X,), None),
        (total(3, x=-1), (NOT_X,), True),
        (total(3, x=1), (X,), True),
        (total(-3, x=1), (NOT_X,), False),
        (total(x=1, z=-1), ORDERED, True),
        (total(x=-1, z=1), ORDERED, False),
        (total(x=1, z=1), ORDERED, None),
        (total(x=1, y=-1), (Assumption(total(y=1, x=-1), is_positive=False),), None),
        (total(3), (), True),
        (total(-3), (), False),
        (total(), (), False),
        (total(x=1), (), None),
    ],
)
def test_what_is_greater_than_zero_is_more_than_what_is_not_less(
    value: Sum, assumed: tuple[Assumption, ...], expected: bool | None
) -> None:
    assert above(value, *assumed) is expected


def test_what_is_neither_above_nor_below_zero_is_zero() -> None:
    laws = Laws(Context({}, ()), ProofLevel.ALGEBRA, Signs())
    below, above_ = (Assumption(total(x=sign, y=-sign), is_positive=False) for sign in (1, -1))
    assert Signs((below, above_)).is_zero(total(x=2, y=-2), laws.is_nonnegative_sum)
    assert not Signs((below, above_)).is_zero(total(x=2, y=-1), laws.is_nonnegative_sum)
    assert not Signs((below,)).is_zero(total(x=2, y=-2), laws.is_nonnegative_sum)


def test_the_cases_of_what_is_open_are_both_signs() -> None:
    signs = Signs()
    assert list(signs.cases()) == []
    signs.of(total(x=1), lambda terms: not terms)
    assert [case.assumed for case in signs.cases()] == [(X,), (NOT_X,)]


def test_an_element_at_a_bound_index_has_no_sign_of_its_own() -> None:
    signs = Signs()
    for name in ("~0001", "%0.0"):
        signs.of((Term(Fraction(1), (), (), (Read("x", (symbol(name),)),)),), lambda terms: not terms)
    assert list(signs.cases()) == []


def test_cases_end() -> None:
    signs = Signs([X] * MOST_ASSUMED)
    signs.of(total(y=1), lambda terms: not terms)
    assert list(signs.cases()) == []
