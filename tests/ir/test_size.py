"""Sizes: canonical polynomials, and division that is simplified only where that is exact."""

import itertools
import random

import pytest

from taso_py.ir.size import (
    Dim,
    Lookup,
    Open,
    Poly,
    at_example,
    evaluate,
    floordiv,
    is_never_negative,
    least,
    open_size,
    open_sizes,
    solve,
    substitute,
    substitute_open,
    symbol,
    symbols,
)

M, N, K = symbol("M"), symbol("N"), symbol("K")


def test_equal_polynomials_are_equal_objects() -> None:
    assert (M + N) * (M - N) == M * M - N * N
    assert hash(M + N) == hash(N + M)
    assert M + N != M - N


def test_lookups_are_equal_where_everything_about_them_is() -> None:
    def place(tensor: str, index: Dim, extent: Dim, wraps: Dim = 0) -> Poly:
        return Poly((((Lookup(tensor, (index,), extent, wraps),), 1),))

    row = place("i", M + 1, N)
    assert substitute(place("i", K, N), {"K": M + 1}) == row
    assert substitute(row, {"M": 2, "N": 5}) == place("i", 3, 5) != place("i", 3, 6)
    assert len({row, place("j", M + 1, N), place("i", M, N), place("i", M + 1, K), place("i", M + 1, N, 1)}) == 5
    assert symbols(2 * row + K) == {"!i", "M", "N", "K"}
    assert (row - row, least(row), is_never_negative(row - 1)) == (0, 0, False)


def test_constants_collapse_to_int() -> None:
    assert M - M == 0
    assert type(M - M + 3) is int


@pytest.mark.parametrize(
    ("numerator", "denominator", "quotient"),
    [
        (7, 2, 3),
        (-1, 2, -1),
        (4 * N + 2, 2, 2 * N + 1),
        (N * K + N, N, K + 1),
        (M, 1, M),
        (2 * M, 2 * N, floordiv(M, N)),
        (K * M + K * N, M + N, K),
        (M * M - N * N, M - N, M + N),
        (2 * M - 2 * N, M - N, 2),
    ],
)
def test_exact_divisions_are_carried_out(numerator: Dim, denominator: Dim, quotient: Dim) -> None:
    assert floordiv(numerator, denominator) == quotient


def test_every_operation_agrees_with_integer_arithmetic() -> None:
    rng = random.Random(0)
    operations = [lambda a, b: a + b, lambda a, b: a - b, lambda a, b: a * b]
    for _ in range(300):
        values = {"M": rng.randint(1, 9), "N": rng.randint(1, 9)}
        symbolic: Dim = rng.randint(-3, 3)
        concrete = evaluate(symbolic, {})
        for _ in range(rng.randint(1, 5)):
            name, constant = rng.choice("MN"), rng.randint(-4, 4)
            operation = rng.choice(operations)
            symbolic = operation(symbolic, symbol(name) + constant)
            concrete = operation(concrete, values[name] + constant)
            if rng.random() < 0.3:
                divisor = rng.randint(1, 4)
                symbolic, concrete = floordiv(symbolic, divisor), concrete // divisor
        assert evaluate(symbolic, values) == concrete


def test_division_by_a_sum_agrees_with_integers() -> None:
    for expression in ((M + 2 * N) * (K - M), (M + 2 * N) * M + K, M * N + 2 * N):
        quotient = floordiv(expression, M + 2 * N)
        for m, n, k in itertools.product(range(1, 5), repeat=3):
            values = {"M": m, "N": n, "K": k}
            assert evaluate(quotient, values) == evaluate(expression, values) // (m + 2 * n)


def test_division_by_a_symbol_agrees_with_integers() -> None:
    expression = floordiv(M * N + M + 3, N)
    for m, n in itertools.product(range(1, 6), repeat=2):
        assert evaluate(expression, {"M": m, "N": n}) == (m * n + m + 3) // n


def test_substitution_reaches_into_divisions() -> None:
    assert substitute(floordiv(N - 1, 2) + 1, {"N": 2 * K + 1}) == K + 1


def test_evaluating_needs_every_symbol() -> None:
    with pytest.raises(KeyError, match="no value for N"):
        evaluate(M + N, {"M": 1})


def test_solving_gives_an_integer_for_all_others_or_nothing() -> None:
    assert solve(M - 2 * N, lambda _: True) == ("M", 2 * N)
    assert solve(M - 2 * N, lambda name: name == "N") is None
    assert solve(M * N - 3, lambda _: True) is None
    assert solve(M - floordiv(M, 2), lambda _: True) is None


def test_symbols_are_found_inside_divisions() -> None:
    assert symbols(floordiv(N + 1, K) + M) == {"M", "N", "K"}


BATCH, LENGTH = Open("x.0", 4, 1, None), Open("x.1", 10, 3, 64)
B, L = open_size(BATCH), open_size(LENGTH)


def test_open_sizes_are_chosen_not_bound() -> None:
    size = 2 * B * L + floordiv(L + N, 2)
    assert symbols(size) == {"N"}
    assert open_sizes(size) == {BATCH, LENGTH}
    assert substitute(size, {"N": 2}) == 2 * B * L + floordiv(L + 2, 2)
    assert substitute_open(size, {LENGTH: 6, BATCH: 3}) == 36 + floordiv(N + 6, 2)
    assert at_example(substitute(size, {"N": 2})) == 86
    assert str(B + 1) == "x.0{4 in 1..}+1"
    assert str(2 * L) == "2*x.1{10 in 3..64}"


def test_open_sizes_that_differ_in_range_or_example_are_others() -> None:
    assert open_size(Open("x.0", 5, 1, None)) != B
    assert open_size(Open("x.1", 10, 2, 64)) != L
    assert B - B == 0
    assert B * L - L * B == 0


@pytest.mark.parametrize(
    ("size", "bound"),
    [
        (L - 3, 0),
        (B * L - 3, 0),
        (L - 4, -1),
        (floordiv(L - 1, 2) - 1, 0),
        (floordiv(L, 2) * B - 1, 0),
        (B - L, None),
        (65 - L, None),  # only the greatest value makes it positive
        (M + N - 2, 0),
        (floordiv(L, B), None),
        (7, 7),
    ],
)
def test_what_a_size_is_at_least(size: Dim, bound: int | None) -> None:
    assert least(size) == bound
    assert is_never_negative(size) == (bound is not None and bound >= 0)


def test_the_least_is_never_more_than_any_value() -> None:
    sizes = [B, L, floordiv(3 * L - 2, 4), floordiv(B + L, 3), symbol("N")]
    generator = random.Random(0)
    for _ in range(300):
        total: Dim = generator.randint(-5, 5)
        for _ in range(3):
            total = total + generator.randint(-2, 3) * generator.choice(sizes) * generator.choice([1, *sizes])
        bound = least(total)
        for batch, length, n in itertools.product((1, 2, 9), (3, 4, 11), (1, 5)):
            value = substitute(substitute_open(total, {BATCH: batch, LENGTH: length}), {"N": n})
            assert isinstance(value, int)
            assert bound is None or bound <= value
