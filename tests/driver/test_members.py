"""Models of many parts that are alike: each is searched with the shipped rules at the default limits."""

from __future__ import annotations

from functools import partial, reduce
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.driver.test_practice import Case, check, randn

Parts = dict[str, nn.Module | Tensor]


def members(count: int, *sizes: int) -> Parts:
    """Networks of two layers."""
    one, two, three = sizes
    return {f"m{i}": nn.Sequential(nn.Linear(one, two), nn.ReLU(), nn.Linear(two, three)) for i in range(count)}


def _images(count: int) -> Parts:
    """Networks of two convolutions."""
    first, second = partial(nn.Conv2d, 3, 8, 3, stride=2), partial(nn.Conv2d, 8, 8, 3, padding=1)
    return {f"m{i}": nn.Sequential(first(), nn.ReLU(), second(), nn.ReLU()) for i in range(count)}


def _classifier() -> nn.Module:
    """A network for images as it is trained."""
    layers: list[nn.Module] = []
    for channels in (3, 8):
        norm = nn.BatchNorm2d(8)
        norm.running_mean, norm.running_var = torch.randn(8) / 4, torch.rand(8) + 0.5
        layers += [nn.Conv2d(channels, 8, 3, padding=1, bias=False), norm, nn.LeakyReLU(0.1), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))


def _experts(m: Any, x: Tensor) -> Tensor:
    shares = torch.softmax(m.gate(x), -1)
    experts = [part for name, part in m.named_children() if name != "gate"]
    return reduce(torch.add, [shares[:, i : i + 1] * expert(x) for i, expert in enumerate(experts)])


def _heads(m: Any, x: Tensor) -> Tensor:
    """Attention head by head, each with layers of its own."""
    layers = dict(m.named_children())
    heads = [[layers[f"{name}{i}"](x) for name in "qkv"] for i in range(len(layers) // 3)]
    return torch.cat([torch.softmax(q @ k.mT / 4, -1) @ v for q, k, v in heads], -1)


def _cell(m: Any, x: Tensor, h: Tensor) -> Tensor:
    """A step of an LSTM, each gate with layers of its own."""
    i, f, g, o = (getattr(m, f"x{gate}")(x) + getattr(m, f"h{gate}")(h) for gate in "ifgo")
    return torch.sigmoid(o) * torch.tanh(torch.sigmoid(f) * h + torch.sigmoid(i) * torch.tanh(g))


CASES = {
    "the mean of an ensemble": Case(
        lambda m, x: torch.stack([part(x) for part in m.children()]).mean(0),
        (randn(4, 32),),
        "add linear matmul mean permute relu reshape",
        members(10, 32, 16, 4),
    ),
    "a network for each variable": Case(
        lambda m, x: torch.cat([part(x[:, i, None]) for i, part in enumerate(m.children())], 1).sum(1),
        (randn(4, 6),),
        "add add matmul mul permute permute relu reshape sum",
        members(6, 1, 16, 1),
    ),
    "a network for each row": Case(
        lambda m, x: torch.stack([part(x[i]) for i, part in enumerate(m.children())]),
        (randn(4, 3, 8),),
        "add add matmul matmul relu",
        members(4, 8, 16, 2),
    ),
    "the mean of an ensemble for images": Case(
        lambda m, x: torch.stack([part(x).mean((-1, -2)) for part in m.children()]).mean(0),
        (randn(2, 3, 15, 15),),
        "conv2d conv2d mean mean permute relu relu reshape reshape reshape",
        _images(5),
    ),
    "a network for each image": Case(
        lambda m, x: torch.cat([part(x[:, i]).mean((-1, -2)) for i, part in enumerate(m.children())], 1),
        (randn(1, 4, 3, 15, 15),),
        "concat conv2d conv2d mean relu relu" + " reshape" * 4 + " slice" * 4,
        _images(4),
    ),
    "an ensemble of classifiers of images": Case(
        lambda m, x: torch.stack([torch.softmax(part(x), -1) for part in m.children()]).mean(0),
        (randn(2, 3, 16, 16),),
        "add conv2d conv2d leaky_relu leaky_relu matmul max_pool2d max_pool2d"
        " mean mean permute reshape reshape reshape softmax",
        {f"m{i}": _classifier() for i in range(5)},
    ),
    "experts": Case(
        _experts,
        (randn(8, 16),),
        "add linear matmul mul permute permute relu reshape reshape slice slice softmax sum",
        {"gate": nn.Linear(16, 9), **members(9, 16, 32, 16)},
    ),
    "heads": Case(
        _heads,
        (randn(1, 24, 32),),
        "linear matmul matmul mul" + " permute" * 5 + " reshape" * 8 + " slice" * 3 + " softmax",
        {f"{name}{i}": nn.Linear(32, 16) for i in range(4) for name in "qkv"},
    ),
    "gates": Case(
        _cell,
        (randn(4, 32), randn(4, 32)),
        "add add linear linear mul mul mul sigmoid slice slice slice slice tanh tanh",
        {f"{name}{gate}": nn.Linear(32, 32) for name in "xh" for gate in "ifgo"},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_alike_is_computed_at_once(name: str) -> None:
    check(CASES[name])
