"""Rotary position embeddings, in the forms in which models write them, with the shipped rules at the default limits."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.driver.test_practice import HEADS, Case, check, randn

ANGLES: dict[str, nn.Module | Tensor] = {
    **{name: randn(64, 32) + shift for shift, name in enumerate(("cos", "sin"))},
    **{name: randn(64, 16) + shift for shift, name in enumerate("cs")},
}


def _exchanged(x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat([-second, first], -1)


def _exchanged_neighbours(x: Tensor) -> Tensor:
    return torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)


def _rotated(m: Any, x: Tensor, *, exchange: Callable[[Tensor], Tensor] = _exchanged) -> Tensor:
    return x * m.cos + exchange(x) * m.sin


def _rotated_by_inputs(m: Any, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
    """Queries and keys, by angles that are computed elsewhere."""
    return tuple(x * cos + _exchanged(x) * sin for x in (q, k))


def _rotated_halves(m: Any, x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat([first * m.c - second * m.s, second * m.c + first * m.s], -1)


def _rotated_neighbours(m: Any, x: Tensor) -> Tensor:
    first, second = x[..., ::2], x[..., 1::2]
    return torch.stack([first * m.c - second * m.s, first * m.s + second * m.c], -1).flatten(-2)


CASES = {
    "rotated halves": Case(_rotated, (HEADS,), "add concat mul mul slice slice", ANGLES),
    "halves rotated by the angles of each row": Case(
        _rotated,
        (HEADS,),
        "add concat mul mul slice slice",
        {name: angle[None, None] for name, angle in ANGLES.items() if isinstance(angle, Tensor)},
    ),
    "rotated halves of heads behind rows": Case(
        _rotated,
        (HEADS.transpose(1, 2).contiguous(),),
        "add concat mul mul slice slice",
        {name: angle[:, None] for name, angle in ANGLES.items() if isinstance(angle, Tensor)},
    ),
    "rotated neighbours": Case(
        partial(_rotated, exchange=_exchanged_neighbours),
        (HEADS,),
        "add concat mul mul reshape reshape reshape slice slice",
        ANGLES,
    ),
    "halves rotated by angles from elsewhere": Case(
        _rotated_by_inputs,
        (HEADS, HEADS + 1, randn(64, 32), randn(64, 32) + 1),
        "add add concat concat mul mul mul mul mul slice slice slice slice",
    ),
    "halves rotated one by one": Case(_rotated_halves, (HEADS,), "add concat mul mul slice slice", ANGLES),
}
NEAR_MISSES = {
    "neighbours rotated one by one": Case(
        _rotated_neighbours,
        (HEADS,),
        "add concat mul mul mul mul reshape reshape reshape slice slice sub",
        ANGLES,
    ),
    "halves exchanged and shifted": Case(
        lambda m, x: x * m.cos + (_exchanged(x) + m.sin), (HEADS,), "add add concat mul mul slice slice", ANGLES
    ),
    "halves rotated by each other": Case(
        lambda m, x: torch.cat([x[..., :16] * m.c - x[..., 16:] * m.s, x[..., 16:] * (m.c + m.s)], -1),
        (HEADS,),
        "concat mul mul mul slice slice sub",
        ANGLES,
    ),
}


@pytest.mark.parametrize("name", [*CASES, *NEAR_MISSES])
def test_what_runs_after_a_search(name: str) -> None:
    check({**CASES, **NEAR_MISSES}[name])
