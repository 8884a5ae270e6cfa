"""Sizes: canonical polynomials, and division that is simplified only where that is exact."""

import itertools
import random

import pytest

from taso_py.ir.size import Dim, evaluate, floordiv, solve, substitute, symbol, symbols

M, N, K = symbol("M"), symbol("N"), symbol("K")


def test_equal_polynomials_are_equal_objects() -> None:
    assert (M + N) * (M - N) == M * M - N * N
    assert hash(M + N) == hash(N + M)
    assert M + N != M - N


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
