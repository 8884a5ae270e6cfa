"""Identities in small models, and what is computed on fewer elements, with the shipped rules at default limits."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.driver.test_practice import IMAGE, INTEGERS, KERNEL, ROWS, TOKENS, Case, check, randn

OTHER = randn(64, 96) + 1
PAIR = (ROWS, OTHER)
CHANNELS = randn(96)

CASES = {
    "the greater of the same": Case(lambda m, x: torch.maximum(x, torch.maximum(x, x)), (ROWS,), ""),
    "limits that absorb each other": Case(lambda m, x, y: torch.minimum(torch.maximum(x, y), x), PAIR, ""),
    "a magnitude of a square": Case(lambda m, x: (x * x).abs(), (ROWS,), "mul"),
    "a rectified exponential": Case(lambda m, x: F.relu(x.exp()), (ROWS,), "exp"),
    "a cosine of a negation": Case(lambda m, x: torch.cos(-x), (ROWS,), "cos"),
    "a negated difference": Case(lambda m, x, y: -(x - y), PAIR, "sub"),
    "a quotient of negations": Case(lambda m, x, y: (-x) / (-y), PAIR, "div"),
    "a smaller by negations": Case(lambda m, x, y: -torch.maximum(-x, -y), PAIR, "minimum"),
    "a reciprocal of a reciprocal": Case(lambda m, x: 1 / (1 / x), (OTHER.abs() + 1,), ""),
    "not greater": Case(lambda m, x, y: torch.where(~(x > y), x, y), PAIR, "minimum"),
    "a greater of shifted values": Case(
        lambda m, x, y, z: torch.maximum(x + z, y + z), (*PAIR, OTHER**2), "add maximum"
    ),
    "a part of what is summed": Case(lambda m, x: x.sum(-1)[:, 4:8], (TOKENS,), "slice sum"),
    "the greatest of what is rectified": Case(lambda m, x: F.relu(x).amax(-1), (TOKENS,), "max relu"),
    "a sum of what is joined": Case(lambda m, x, y: torch.cat([x, y], 1).sum(1), PAIR, "add sum sum"),
    "padding after padding": Case(lambda m, x: F.pad(F.pad(x, (1, 2)), (3, 0)), (ROWS,), "pad"),
    "an activation of a padded image before a layer": Case(
        lambda m, x: m.a(F.relu(F.pad(x, (1, 1, 1, 1)))), (IMAGE,), "conv2d relu", {"a": nn.Conv2d(16, 8, 3)}
    ),
    "a number before a layer": Case(lambda m, x: m.a(x * 0.5), (IMAGE,), "conv2d", {"a": KERNEL}),
    "rows that are looked up, before a product": Case(
        lambda m, i: m.e(i) @ m.w, (INTEGERS[0],), "take", {"e": nn.Embedding(50, 32), "w": randn(32, 16)}
    ),
    "a window of the whole image": Case(lambda m, x: F.max_pool2d(x, 12, 1), (IMAGE,), "max"),
    "functions of what is repeated": Case(lambda m, x: torch.exp(x.expand(64, 96)), (CHANNELS,), "exp expand"),
}
"""Models, and the operators that are left."""

NEAR_MISSES = {
    "limits of different values": Case(
        lambda m, x, y: torch.minimum(torch.maximum(x, y), x + y), PAIR, "add maximum minimum"
    ),
    "a sine of a negation": Case(lambda m, x: torch.sin(-x), (ROWS,), "mul sin"),
    "a function that moves zero, of a padded image": Case(
        lambda m, x: m.a(F.sigmoid(F.pad(x, (1, 1, 1, 1)))), (IMAGE,), "conv2d pad sigmoid", {"a": nn.Conv2d(16, 8, 3)}
    ),
    "the greatest of what is reflected": Case(lambda m, x: torch.abs(x).amax(-1), (TOKENS,), "abs max"),
}
"""Models that look alike, of which nothing may be left out."""


@pytest.mark.parametrize("name", [*CASES, *NEAR_MISSES])
def test_what_runs_after_a_search(name: str) -> None:
    check({**CASES, **NEAR_MISSES}[name])
