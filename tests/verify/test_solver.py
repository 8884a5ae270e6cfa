from __future__ import annotations

from fractions import Fraction

import pytest

from taso_py.ir.size import Lookup, Poly, floordiv, symbol
from verify.context import Context
from verify.limits import Budget, ProofLimits, Refused
from verify.solver import Solver

A, J, M, N, S, H, K = (symbol(name) for name in ("@0", "~1", "M", "N", "S", "H", "K"))
SIZES = {"M": 1, "N": 1, "S": 1, "H": 1, "K": 1, "@0": 0}
ONE = Fraction(1)


def solver(*facts: object, limits: ProofLimits | None = None) -> Solver:
    return Solver(Context(SIZES, facts), Budget(limits or ProofLimits()))  # pyright: ignore[reportArgumentType]


def test_two_halves_make_a_whole() -> None:
    halves = [(ONE, (N - 1 - A,)), (ONE, (A - N,)), (-ONE, ())]
    assert solver().vanishes(halves)
    assert not solver().vanishes(halves[1:])


def test_fractions_cancel() -> None:
    third = Fraction(1, 3)
    assert solver().vanishes([(third, (A - N,)), (2 * third, (A - N,)), (-ONE, (A - N,))])


def test_known_guards_are_used() -> None:
    assert solver().vanishes([(ONE, (A - N,))], [N - 1 - A])
    assert not solver().vanishes([(ONE, (A - N,))])


def test_a_window_stays_inside_for_every_stride() -> None:
    count = floordiv(H - K, S)
    windows = solver(H - K, count - A)
    inside = [J, K - 1 - J]
    assert windows.implied(inside, [[H - 1 - (A * S + J)]])
    assert not windows.implied(inside, [[H - 2 - (A * S + J)]])


def test_products_of_sizes_are_positive() -> None:
    assert solver().implied([], [[M * N - 1]])
    assert solver().implied([], [[M * N - M]])
    assert not solver().implied([], [[M * N - M - 1]])


def test_products_with_a_guarded_index() -> None:
    assert solver().implied([J], [[J * S - J]])
    assert not solver().implied([], [[J * S - J]])


def test_floor_divisions_by_sizes() -> None:
    quotient = floordiv(A, N)
    assert solver(M * N - 1 - A).implied([], [[M - 1 - quotient]])
    assert not solver(M * N - 1 - A).implied([], [[M - 2 - quotient]])


def test_alternatives_cover() -> None:
    assert solver().implied([], [[A - N], [N - A]])
    assert not solver().implied([], [[A - N], [N - 2 - A]])
    assert not solver().implied([], [])
    assert solver().implied([A - N, N - 1 - A], [])


def test_what_is_impossible() -> None:
    assert solver().impossible([A - N, N - 1 - A])
    assert not solver().impossible([A - N])


def test_questions_are_counted() -> None:
    limited = solver(limits=ProofLimits(queries=1))
    limited.impossible([A - N])
    with pytest.raises(Refused, match="more than 1 questions"):
        limited.impossible([A - N])


def test_a_question_that_takes_too_many_steps_is_not_answered() -> None:
    assert not solver(limits=ProofLimits(rlimit=1)).implied([], [[A - N], [N - A]])


def test_of_a_lookup_its_extent_is_known_and_nothing_else() -> None:
    row, other, deep = (Poly((((Lookup("i", (index,), N, 0),), 1),)) for index in (A, J, floordiv(A * S + J, S)))
    assert solver().implied([], [[row, N - 1 - row]])
    assert not solver().implied([], [[row - 1]])
    assert not solver().implied([], [[N - 2 - row]])
    assert not solver().implied([A - J, J - A], [[row - other, other - row]])  # not substituted
    halves = [(ONE, (M - 1 - row,)), (ONE, (row - M,)), (-ONE, ())]
    assert solver().vanishes(halves)
    assert not solver().vanishes([(ONE, (M - 1 - row,)), (ONE, (other - M,)), (-ONE, ())])
    context = Context(SIZES, [S - 1 - J])
    assert context.nonnegative(row)
    assert context.divide_out(row * M + deep, [J]) == row * (M + 1)
