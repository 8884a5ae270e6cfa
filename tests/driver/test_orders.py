"""Small models that read sequences and images in reverse order, with the shipped rules at default limits."""

from __future__ import annotations

from typing import Any

import pytest
import torch.nn.functional as F
from torch import Tensor, nn

from tests.driver.test_practice import (
    IMAGE,
    INTEGERS,
    KERNEL,
    ROWS,
    TOKENS,
    UP,
    Case,
    check,
    layer_norm,
    normalization,
    randn,
)

OTHER = randn(64, 96) + 1
NORMED: dict[str, nn.Module | Tensor] = {
    "a": nn.Conv2d(16, 16, 3, padding=1),
    "n": normalization(16),
    "b": nn.Linear(16, 8),
}


def _backwards(m: Any, x: Tensor) -> Tensor:
    return m.b(F.gelu(m.a(m.n(x.flip(1))))).flip(1)


def _mirrored(m: Any, x: Tensor) -> Tensor:
    return m.b(F.relu(m.n(m.a(x.flip(-1)))).mean((2, 3)))


CASES = {
    "reversed twice": Case(lambda m, x: x.flip(1).flip(1), (TOKENS,), ""),
    "reversed along two axes, and both": Case(lambda m, x: x.flip(0).flip(1).flip((0, 1)), (ROWS,), ""),
    "a block of tokens in reverse order": Case(
        _backwards,
        (TOKENS,),
        "gelu layer_norm linear linear",
        {"n": layer_norm(64), "a": nn.Linear(64, 96), "b": nn.Linear(96, 64)},
    ),
    "two reversed values": Case(lambda m, x, y: (x.flip(-1) * y.flip(-1)).flip(-1), (ROWS, OTHER), "mul"),
    "a sum of a reversed value": Case(lambda m, x: x.flip(-1).sum(-1), (TOKENS,), "sum"),
    "the greatest of reversed tokens": Case(lambda m, x: x.flip(1).amax(1), (TOKENS,), "max"),
    "the first of reversed tokens": Case(lambda m, x: x.flip(-1)[..., -1:], (TOKENS,), "slice"),
    "a reversed sequence, transposed": Case(lambda m, x: x.mT.flip(-1).mT, (TOKENS,), "flip"),
    "a layer of reversed features": Case(lambda m, x: m.a(x.flip(-1)), (ROWS,), "linear", {"a": UP}),
    "reversed features of a layer": Case(lambda m, x: m.a(x).flip(-1), (ROWS,), "linear", {"a": UP}),
    "channels in reverse order": Case(lambda m, x: m.a(x.flip(1)), (IMAGE,), "conv2d", {"a": KERNEL}),
    "channels in reverse order, centred": Case(
        lambda m, x: m.a(x.flip(1) - m.v), (IMAGE,), "conv2d", {"a": nn.Conv2d(16, 8, 1), "v": randn(16, 1, 1)}
    ),
    "a mirrored image that is averaged": Case(_mirrored, (IMAGE,), "conv2d linear mean relu", NORMED),
    "a norm of a reversed row": Case(
        lambda m, x: m.n(x.flip(-1)).flip(-1), (ROWS,), "layer_norm++", {"n": layer_norm(96)}
    ),
    "a reversed embedding": Case(lambda m, i: m.e(i).flip(-1), (INTEGERS,), "take", {"e": nn.Embedding(50, 96)}),
    "probabilities of reversed scores": Case(lambda m, x: x.flip(-1).softmax(-1).flip(-1), (ROWS,), "softmax"),
}
"""Models, and the operators that are left."""

NEAR_MISSES = {
    "reversed along different axes": Case(lambda m, x: x.flip(1).flip(0), (ROWS,), "flip"),
    "one of two values reversed": Case(lambda m, x, y: x.flip(-1) * y, (ROWS, OTHER), "flip mul"),
    "a running sum of a reversed value": Case(lambda m, x: x.flip(-1).cumsum(-1).flip(-1), (ROWS,), "cumsum flip flip"),
    "a convolution in steps of two": Case(
        lambda m, x: m.a(x.flip(-1)).flip(-1), (IMAGE,), "conv2d flip flip", {"a": nn.Conv2d(16, 8, 3, stride=2)}
    ),
    "a sum along the other axis": Case(lambda m, x: x.flip(-1).sum(0), (ROWS,), "flip sum"),
    "causal attention of reversed tokens": Case(
        lambda m, x: F.scaled_dot_product_attention(x.flip(-2), x, x, is_causal=True).flip(-2),
        (randn(2, 4, 8, 16),),
        "attention flip flip",
    ),
}
"""Models that look alike, of which nothing may be left out."""


@pytest.mark.parametrize("name", [*CASES, *NEAR_MISSES])
def test_what_runs_after_a_search(name: str) -> None:
    check({**CASES, **NEAR_MISSES}[name])
