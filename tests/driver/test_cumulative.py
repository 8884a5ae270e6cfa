"""Small models that compute running sums, with the shipped rules at default limits."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.driver.test_practice import INTEGERS, ROWS, TOKENS, UP, Case, check, randn

OTHER = randn(64, 96) + 1
PAIR = (ROWS, OTHER)

CASES = {
    "the last running sum": Case(lambda m, x: x.cumsum(-1)[..., -1:], (TOKENS,), "sum"),
    "the last running sums of tokens": Case(lambda m, x: x.cumsum(1)[:, -1], (TOKENS,), "reshape sum"),
    "a sum of running sums": Case(lambda m, x, y: x.cumsum(-1) + y.cumsum(-1), PAIR, "add cumsum"),
    "a difference of running sums": Case(lambda m, x, y: x.cumsum(0) - y.cumsum(0), PAIR, "cumsum sub"),
    "running sums over the features of a layer": Case(lambda m, x: m.a(x).cumsum(-1), (ROWS,), "linear", {"a": UP}),
    "a running sum that is added up": Case(lambda m, x: x.cumsum(1).sum(-1), (TOKENS,), "cumsum sum"),
    "running sums of tokens in two orders": Case(lambda m, x: x.flip(-1).cumsum(1).flip(-1), (TOKENS,), "cumsum"),
    "joined running sums": Case(lambda m, x, y: torch.cat([x.cumsum(-1), y.cumsum(-1)]), PAIR, "concat cumsum"),
    "a scaled running sum before a layer": Case(
        lambda m, x: m.a((x * 0.5).cumsum(1)), (TOKENS,), "cumsum linear", {"a": nn.Linear(64, 48)}
    ),
    "running sums of an embedding": Case(
        lambda m, i: m.e(i).cumsum(-1), (INTEGERS,), "take", {"e": nn.Embedding(50, 96)}
    ),
}
"""Models, and the operators that are left."""

NEAR_MISSES = {
    "the last but one running sum": Case(lambda m, x: x.cumsum(-1)[..., -2:-1], (TOKENS,), "cumsum slice"),
    "running sums along different axes": Case(lambda m, x, y: x.cumsum(0) + y.cumsum(1), PAIR, "add cumsum cumsum"),
    "a product of running sums": Case(lambda m, x, y: x.cumsum(-1) * y.cumsum(-1), PAIR, "cumsum cumsum mul"),
    "a running sum backwards": Case(lambda m, x: x.flip(-1).cumsum(-1).flip(-1), (ROWS,), "cumsum flip flip"),
    "factors of columns": Case(lambda m, x, y: (x * y).cumsum(-1), (ROWS, OTHER[0]), "cumsum mul"),
    "running integers": Case(lambda m, i: i.cumsum(-1) + i.cumsum(-1).flip(-1), (INTEGERS,), "add flip opaque"),
}
"""Models that look alike, of which nothing may be left out."""


@pytest.mark.parametrize("name", [*CASES, *NEAR_MISSES])
def test_what_runs_after_a_search(name: str) -> None:
    check({**CASES, **NEAR_MISSES}[name])
