from __future__ import annotations

from fractions import Fraction

import pytest

from taso_py.ir.size import Dim, floordiv, symbol
from taso_py.ops.scalar import Read
from verify.context import Context
from verify.reindex import merge, quotient, split
from verify.terms import Term

P, A, B, M, N, I0 = (symbol(name) for name in ("~1", "~2", "~3", "M", "N", "@0"))
CONTEXT = Context({"M": 1, "N": 1, "@0": 0}, [])


def term(index: tuple[Dim, ...], bound: tuple[str, ...], *guards: Dim) -> Term:
    return Term(Fraction(1), bound, guards, (Read("x", index),))


def test_an_index_that_is_divided_is_taken_apart() -> None:
    divided = term((floordiv(P, N), P - floordiv(P, N) * N), ("~1",), P, M * N - 1 - P)
    found = split(divided, CONTEXT)
    assert found is not None
    major, minor = map(symbol, found.bound)
    assert set(found.guards) == {major, M - 1 - major, minor, N - 1 - minor}


@pytest.mark.parametrize(
    "kept",
    [
        term((floordiv(P, M + 1),), ("~1",), P, M * N - 1 - P),
        term((floordiv(P, N),), ("~1",), P, M * N - 2 - P),
        term((floordiv(P, N),), ("~1",), P, N - 1 - P),
        term((P,), ("~1",), P, M * N - 1 - P),
    ],
)
def test_an_index_of_another_range_is_not_taken_apart(kept: Term) -> None:
    assert split(kept, CONTEXT) is None


def test_a_pair_that_is_read_as_one_is_put_together() -> None:
    found = merge(term((A * N + B,), ("~2", "~3"), A, M - 1 - A, B, N - 1 - B))
    assert found == term((B,), ("~3",), B, M * N - 1 - B)


@pytest.mark.parametrize(
    "kept",
    [
        term((A * N + B, A), ("~2", "~3"), A, M - 1 - A, B, N - 1 - B),
        term((A * N + B,), ("~2", "~3"), A, M - 1 - A, B, N - 2 - B),
        term((A * N + B,), ("~2", "~3"), A, M - 1 - A, B, N - 1 - B, I0 - A),
        term((A * M + B,), ("~2", "~3"), A, M - 1 - A, B, N - 1 - B),
    ],
)
def test_a_pair_that_is_more_than_one_is_kept(kept: Term) -> None:
    assert merge(kept) is None


def test_an_index_that_is_a_quotient_disappears() -> None:
    found = quotient(term((P,), ("~1", "~2"), P - 2 * A, 1 - P + 2 * A, A, M - 1 - A), CONTEXT)
    assert found is not None
    assert found.bound == ("~1",)
    assert set(found.guards) == {P, 2 * M - 1 - P}
    assert quotient(term((P,), ("~1", "~2"), P - 2 * A, 2 - P + 2 * A, A, M - 1 - A - 2 * P), CONTEXT) is None
