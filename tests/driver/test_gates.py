"""Gates, layer scales, norms and their parameters as models write them, with the shipped rules at default limits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.driver.test_practice import Case, check, randn

ROWS, IMAGE, LAST = randn(64, 96), randn(2, 16, 19, 10), randn(2, 28, 29, 96)
QUERIES = [randn(1, 4, 8, 64) + shift for shift in range(3)]
FEW, SQUARE, KERNEL = nn.Linear(96, 24), nn.Linear(96, 96), nn.Conv2d(16, 32, 3)


def _response(x: Tensor) -> Tensor:
    """How much each channel responds, beside the others (Woo et al. 2023, section 3)."""
    norm = x.norm(p=2, dim=(1, 2), keepdim=True)
    return norm / (norm.mean(-1, keepdim=True) + 1e-6)


def _responding(m: Any, x: Tensor) -> Tensor:
    return m.a(x + torch.addcmul(m.v, m.w, x * _response(x)))


def _responding_written_out(m: Any, x: Tensor) -> Tensor:
    return m.a(x + (m.v + m.w * (x * _response(x))))


def _across_channels(m: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention between channels (El-Nouby et al. 2021, section 3)."""
    q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
    return ((q @ k.transpose(-2, -1)) * m.t).softmax(-1) @ v


def _added_scores(m: Any, mask: Tensor, q: Tensor, k: Tensor, v: Tensor, *, alpha: float = 1) -> Tensor:
    return torch.baddbmm(mask, q, k.transpose(1, 2), alpha=alpha).softmax(-1) @ v


_MATRICES = tuple(randn(8, 16, 32) + shift for shift in range(3))
CASES = {
    "response normalization": Case(
        _responding,
        (LAST,),
        "add add addcmul div linear mean mul vector_norm",
        {"a": FEW, "v": randn(1, 1, 1, 96), "w": randn(1, 1, 1, 96)},
    ),
    "response normalization, written out": Case(
        _responding_written_out,
        (LAST,),
        "add add div linear mean mul mul vector_norm",
        {"a": FEW, "v": randn(96), "w": randn(96)},
    ),
    "attention between channels": Case(
        _across_channels,
        tuple(QUERIES),
        "div div matmul matmul maximum maximum mul permute permute softmax vector_norm vector_norm",
        {"t": randn(4, 1, 1)},
    ),
    "attention to scores that are added": Case(_added_scores, (randn(8, 16, 16), *_MATRICES), "attention"),
    "attention to scaled scores that are added": Case(
        lambda m, *x: _added_scores(m, *x, alpha=0.125), (randn(1, 16, 16), *_MATRICES), "attention"
    ),
    "a multiple of a layer": Case(lambda m, x: torch.add(x, m.a(x), alpha=0.5), (ROWS,), "linear", {"a": SQUARE}),
    "a scaled layer in one call": Case(
        lambda m, x: torch.addcmul(x, m.w, m.a(x)), (ROWS,), "linear", {"a": SQUARE, "w": randn(96)}
    ),
    "scaled features in one call": Case(
        lambda m, x: m.a(torch.addcmul(m.v, x, m.w)),
        (ROWS[:8],),
        "linear",
        {"a": SQUARE, "v": randn(96), "w": randn(96)},
    ),
    "channels of a batch of one": Case(
        lambda m, x: m.a(x) * m.w + m.v,
        (IMAGE,),
        "conv2d",
        {"a": KERNEL, "w": randn(1, 32, 1, 1), "v": randn(1, 32, 1, 1)},
    ),
    "features with axes of one": Case(
        lambda m, x: m.a(x * m.w + m.v), (ROWS[None],), "linear", {"a": FEW, "w": randn(1, 1, 96), "v": randn(1, 96)}
    ),
    "a norm that is written out": Case(lambda m, x: (x * x).sum(-1).sqrt(), (ROWS,), "vector_norm"),
}


@pytest.mark.parametrize("name", CASES)
def test_what_runs_after_a_search(name: str) -> None:
    check(CASES[name])
