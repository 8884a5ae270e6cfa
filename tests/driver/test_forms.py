"""Further forms in which models write what has a cheaper form, with the shipped rules at default limits."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, TypeVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.driver.test_practice import (
    HEADS,
    IMAGE,
    KEYS,
    QUERIES,
    ROWS,
    TOKENS,
    VALUES,
    Case,
    check,
    normalization,
    randn,
)

Norm = TypeVar("Norm", nn.BatchNorm1d, nn.BatchNorm3d)
Q, K, V = HEADS, HEADS + 1, HEADS + 2


def _drawn(norm: Norm) -> Norm:
    """The normalization with numbers of its own for each feature."""
    with torch.no_grad():
        for tensor in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
            assert tensor is not None
            tensor.uniform_(0.5, 2)
    return norm


def norm_of_features(count: int) -> nn.BatchNorm1d:
    return _drawn(nn.BatchNorm1d(count))


def norm_of_volumes(count: int) -> nn.BatchNorm3d:
    return _drawn(nn.BatchNorm3d(count))


def _both(m: Any, x: Tensor) -> Tensor:
    return m.b(m.a(x))


def _last_row(m: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The last row of a layer behind attention, whose heads are side by side."""
    joined = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(2, 64, 128)
    return m.a(joined)[:, -1:]


def _einsums(m: Any, q: Tensor, k: Tensor, v: Tensor, *, letters: str = "bh{}d") -> Tensor:
    one, other = letters.format("q"), letters.format("k")
    scores = torch.einsum(f"{one},{other}->bhqk", q, k) * 0.25
    return torch.einsum(f"bhqk,{other}->{one}", scores.softmax(-1), v)


def _stable_softmax(m: Any, x: Tensor) -> Tensor:
    powers = (x - x.amax(-1, keepdim=True)).exp()
    return powers / powers.sum(-1, keepdim=True)


def _interleaved(m: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k.repeat_interleave(4, 1), v.repeat_interleave(4, dim=-3))


def _masked(m: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    mask = torch.full((64, 64), -math.inf, dtype=q.dtype).triu(1)
    return ((q @ k.mT) * 0.125 + mask).softmax(-1) @ v


CASES = {
    "the last row behind heads side by side": Case(
        _last_row, (Q, K, V), "attention contiguous linear permute reshape slice", {"a": nn.Linear(128, 16)}
    ),
    "attention by einsums": Case(_einsums, (Q, K, V), "attention"),
    "attention by einsums of heads behind rows": Case(
        partial(_einsums, letters="b{}hd"),
        tuple(x.transpose(1, 2).contiguous() for x in (Q, K, V)),
        "attention permute permute permute permute",
    ),
    "heads repeated beside each other": Case(_interleaved, (QUERIES, KEYS, VALUES), "attention reshape reshape"),
    "attention with a mask for all heads": Case(_masked, (Q, K, V), "attention"),
    "softmax of what the greatest is taken from": Case(_stable_softmax, (ROWS,), "softmax"),
    "softmax of a shift by a number": Case(lambda m, x: (x - 3.5).softmax(-1), (ROWS,), "softmax"),
    "softmax of rows shifted": Case(lambda m, x, y: (x + y).softmax(-1), (ROWS, randn(64, 1)), "softmax"),
    "a layer of normalized features": Case(
        _both, (ROWS,), "linear", {"a": norm_of_features(96), "b": nn.Linear(96, 24)}
    ),
    "a layer without bias of normalized features": Case(
        _both, (ROWS,), "linear", {"a": norm_of_features(96), "b": nn.Linear(96, 24, bias=False)}
    ),
    "a convolution of a normalized image": Case(
        _both, (IMAGE,), "conv2d", {"a": normalization(16), "b": nn.Conv2d(16, 8, 3, 2, dilation=2)}
    ),
    "a pointwise convolution of a normalized image": Case(
        _both, (IMAGE,), "conv2d", {"a": normalization(16), "b": nn.Conv2d(16, 8, 1, bias=False)}
    ),
    "cosines of angles side by side": Case(lambda m, x: (torch.cat([x, x], -1).cos(), x.cos()), (ROWS,), "concat cos"),
    "sines of neighbouring angles": Case(
        lambda m, x: (x.repeat_interleave(2, -1).sin(), x.sin()), (ROWS,), "contiguous expand reshape reshape sin"
    ),
    "a normalized transposed convolution": Case(
        _both,
        (IMAGE,),
        "conv_transpose2d",
        {"a": nn.ConvTranspose2d(16, 8, 4, 2, 1, bias=False), "b": normalization(8)},
    ),
    "a transposed convolution with padded output, normalized": Case(
        _both,
        (IMAGE,),
        "conv_transpose2d",
        {"a": nn.ConvTranspose2d(16, 8, 3, 2, 1, output_padding=1), "b": normalization(8)},
    ),
    "a normalized convolution of a volume": Case(
        _both, (randn(2, 4, 5, 6, 7),), "conv3d", {"a": nn.Conv3d(4, 8, 3, 1, 1, bias=False), "b": norm_of_volumes(8)}
    ),
    "a normalized convolution of a volume in groups": Case(
        _both,
        (randn(2, 4, 5, 6, 7),),
        "conv3d",
        {"a": nn.Conv3d(4, 8, (1, 3, 3), 2, groups=4), "b": norm_of_volumes(8)},
    ),
    "a normalized one-dimensional convolution": Case(
        _both, (TOKENS,), "conv2d reshape reshape", {"a": nn.Conv1d(32, 16, 3), "b": norm_of_features(16)}
    ),
}
NEAR_MISSES = {
    "a product of elements by an einsum": Case(
        lambda m, x, y: torch.einsum("bhqd,bhqd->bhqd", x, y).softmax(-1), (Q, K), "mul softmax"
    ),
    "softmax of shifts along the rows": Case(
        lambda m, x: (x - m.v).softmax(-1), (ROWS,), "softmax sub", {"v": randn(96)}
    ),
    "cosines of different angles side by side": Case(
        lambda m, x, y: (torch.cat([x, y], -1).cos(), x.cos()), (ROWS, ROWS + 1), "concat cos cos"
    ),
    "softmax of a multiple": Case(lambda m, x: (x * 2).softmax(-1), (ROWS,), "mul softmax"),
    "a transposed convolution in groups, normalized": Case(
        _both,
        (IMAGE,),
        "batch_norm conv_transpose2d",
        {"a": nn.ConvTranspose2d(16, 8, 2, 2, groups=2), "b": normalization(8)},
    ),
    "a convolution of a volume, activated and normalized": Case(
        lambda m, x: m.b(F.relu(m.a(x))),
        (randn(2, 4, 5, 6, 7),),
        "batch_norm conv3d relu",
        {"a": nn.Conv3d(4, 8, 3), "b": norm_of_volumes(8)},
    ),
    "a padded convolution of a normalized image": Case(
        _both, (IMAGE,), "batch_norm conv2d", {"a": normalization(16), "b": nn.Conv2d(16, 8, 3, padding=1)}
    ),
    "a layer of features that are normalized and activated": Case(
        lambda m, x: m.b(F.relu(m.a(x))),
        (ROWS,),
        "batch_norm linear relu",
        {"a": norm_of_features(96), "b": nn.Linear(96, 24)},
    ),
}


@pytest.mark.parametrize("name", [*CASES, *NEAR_MISSES])
def test_what_runs_after_a_search(name: str) -> None:
    check({**CASES, **NEAR_MISSES}[name])
