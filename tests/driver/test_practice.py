"""What practitioners expect of small models: each is searched with the shipped rules at the default limits."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fuzz.prices import ModelledCost
from taso_py.backend import UNLIMITED, build, fold
from taso_py.frontend import import_module
from taso_py.ir.node import Node
from taso_py.ops import normalization as norms
from taso_py.rules.database import read_database
from taso_py.rules.match import Matcher
from taso_py.search.backtracking import search


class Model(nn.Module):
    """A function of inputs and of the parts of a model, in float64."""

    def __init__(self, function: Callable[..., Any], parts: dict[str, nn.Module | Tensor]) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            if isinstance(part, nn.Module):
                self.add_module(name, part)
            else:
                self.register_buffer(name, part)
        self.double().eval()

    def forward(self, *args: Tensor) -> Any:
        return self.function(self, *args)


@dataclass(frozen=True)
class Case:
    """A model, and the operators that run after the search, by name, sorted."""

    function: Callable[..., Any]
    args: tuple[Tensor, ...]
    left: str
    parts: dict[str, nn.Module | Tensor] = field(default_factory=dict[str, "nn.Module | Tensor"])
    positive: tuple[str, ...] = ()
    """Inputs that are declared positive."""


@cache
def matcher() -> Matcher:
    return Matcher(read_database())


def randn(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


def normalization(channels: int) -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(channels)
    with torch.no_grad():
        for tensor in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
            assert tensor is not None
            tensor.uniform_(0.5, 2)
    return norm


def layer_norm(size: int) -> nn.LayerNorm:
    norm = nn.LayerNorm(size)
    nn.init.uniform_(norm.weight, 0.5, 2)
    nn.init.uniform_(norm.bias)
    return norm


class RmsNorm(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, 1e-6)


def _limited(x: Tensor) -> Tensor:
    return torch.where(x < -1, -1.0, torch.where(x > 1, 1.0, x))


def _gelu_of_few_digits(m: Any, x: Tensor) -> Tensor:
    return x * 0.5 * (1.0 + torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x)))


def _normalized_in_single(m: Any, x: Tensor) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def _normalized_in_half(m: Any, x: Tensor) -> Tensor:
    mean = (x * x).mean(-1, keepdim=True)
    return (x.float() * torch.rsqrt(mean.float() + 1e-6)).to(x.dtype)


def _leaky(x: Tensor) -> Tensor:
    return torch.where(x > 0, x, 0.01 * x)


def _both(m: Any, x: Tensor) -> Tensor:
    return m.b(m.a(x))


def _attend(m: Any, q: Tensor, k: Tensor, v: Tensor, *, first: int, last: int) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)[:, :, first:last]


def _repeated(m: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    def heads(x: Tensor) -> Tensor:
        batch, count, *rest = x.shape
        return x[:, :, None].expand(batch, count, 4, *rest).reshape(batch, 4 * count, *rest)

    return F.scaled_dot_product_attention(q, heads(k), heads(v), attn_mask=mask)


def _gelu(m: Any, x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _gelu_by_sigmoid(m: Any, x: Tensor, number: float = 1.702) -> Tensor:
    x = m.a(x)
    return m.b(x * torch.sigmoid(number * x))


def _gelu_factored(m: Any, x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(x * math.sqrt(2 / math.pi) * (1 + 0.044715 * x * x)))


def _two_normalized(m: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    return m.b(m.a(x)), m.d(m.c(x))


def _three_layers(m: Any, x: Tensor) -> tuple[Tensor, ...]:
    x = m.a(x)
    return m.b(x), m.c(x), m.d(x)


def _branches(m: Any, x: Tensor) -> Tensor:
    """The sum of a block's branches, each convolution with the normalization of its name after it."""
    parts = dict(m.named_children())
    layers = [name for name in parts if not name.startswith("norm")]
    outputs = [parts[f"norm_{name}"](parts[name](x)) for name in layers]
    total = m.norm(x) if "norm" in parts else outputs.pop()
    for output in outputs:
        total = total + output
    return total


def _block(**layers: nn.Module) -> dict[str, nn.Module | Tensor]:
    """The layers of a block's branches, each with a normalization."""
    return {**layers, **{f"norm_{name}": normalization(16) for name in layers}}


def _adapted(m: Any, x: Tensor) -> Tensor:
    return m.a(x) + 0.5 * m.up(m.down(x))


ROWS, IMAGE = randn(64, 96), randn(2, 16, 12, 12)
TOKENS, HEADS = randn(4, 32, 64), randn(2, 4, 64, 32)
QUERIES, KEYS, VALUES = randn(2, 8, 64, 32), randn(2, 2, 48, 32), randn(2, 2, 48, 32)
MASK = randn(2, 1, 1, 48)
INTEGERS = torch.arange(64).reshape(2, 32) % 50
TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-6, torch.bfloat16: 1e-2, torch.int64: 1e-9}
UP, DOWN = nn.Linear(96, 192), nn.Linear(192, 96)
KERNEL, POINT = nn.Conv2d(16, 32, 3, padding=1, dtype=torch.float64), nn.Conv2d(32, 16, 1)

CASES = {
    "last row of causal attention": Case(partial(_attend, first=63, last=64), (HEADS,) * 3, "attention slice"),
    "first rows of causal attention": Case(
        partial(_attend, first=0, last=16), (HEADS,) * 3, "attention slice slice slice"
    ),
    "one row of causal attention": Case(
        partial(_attend, first=20, last=21), (HEADS,) * 3, "attention slice slice slice"
    ),
    "layer after layer": Case(_both, (ROWS,), "linear", {"a": UP, "b": DOWN}),
    "mean of rows": Case(lambda m, x: m.a(x).mean(1), (TOKENS,), "linear mean", {"a": nn.Linear(64, 128)}),
    "pointwise after convolution": Case(_both, (IMAGE,), "conv2d", {"a": KERNEL, "b": POINT}),
    "convolution after pointwise": Case(
        _both, (IMAGE,), "conv2d", {"a": nn.Conv2d(16, 32, 1), "b": nn.Conv2d(32, 16, 3)}
    ),
    "repeated heads": Case(_repeated, (QUERIES, KEYS, VALUES), "attention reshape reshape"),
    "repeated heads with a mask": Case(_repeated, (QUERIES, KEYS, VALUES, MASK), "attention reshape reshape"),
    "gelu written out": Case(_gelu, (ROWS,), "gelu"),
    "gelu with its operand factored out": Case(_gelu_factored, (ROWS,), "gelu"),
    "hardswish written out": Case(lambda m, x: x * F.relu6(x + 3) / 6, (ROWS,), "hardswish"),
    "hardswish of a gate": Case(lambda m, x: x * ((x + 3).clamp(0, 6) / 6), (ROWS,), "hardswish"),
    "hardsigmoid written out": Case(lambda m, x: F.relu6(x + 3) / 6, (ROWS,), "hardsigmoid"),
    "softplus written out": Case(lambda m, x: torch.log(1 + torch.exp(x)), (ROWS,), "softplus"),
    "softplus by log1p": Case(lambda m, x: torch.log1p(x.exp()), (ROWS,), "softplus"),
    "softplus of the magnitude": Case(lambda m, x: x.clamp(min=0) + torch.log1p((-x.abs()).exp()), (ROWS,), "softplus"),
    "mish written out": Case(lambda m, x: x * torch.tanh(torch.log(1 + torch.exp(x))), (ROWS,), "mish"),
    "relu by a limit": Case(lambda m, x: x.clamp(min=0), (ROWS,), "relu"),
    "relu by a maximum with zeros": Case(lambda m, x: torch.maximum(x, torch.zeros_like(x)), (ROWS,), "relu"),
    "relu6 by limits": Case(lambda m, x: x.clamp(min=0).clamp(max=6), (ROWS,), "hardtanh"),
    "limits in the other order": Case(lambda m, x: x.clamp_max(1).clamp_min(-1), (ROWS,), "hardtanh"),
    "hardswish by limits": Case(lambda m, x: x * (x + 3).clamp_min(0).clamp_max(6) / 6, (ROWS,), "hardswish"),
    "a magnitude by a maximum": Case(lambda m, x: torch.maximum(x, -x), (ROWS,), "abs"),
    "a magnitude by relus": Case(lambda m, x: F.relu(x) + F.relu(-x), (ROWS,), "abs"),
    "a value by its relus": Case(lambda m, x: F.relu(x) - F.relu(-x), (ROWS,), ""),
    "leaky relu by a maximum": Case(lambda m, x: torch.maximum(x, 0.2 * x), (ROWS,), "leaky_relu"),
    "leaky relu by relus": Case(lambda m, x: F.relu(x) - 0.3 * F.relu(-x), (ROWS,), "leaky_relu"),
    "leaky relu in two parts": Case(lambda m, x: x.clamp(min=0) + 1.5 * x.clamp(max=0), (ROWS,), "leaky_relu"),
    "relu by a choice": Case(lambda m, x: torch.where(x > 0, x, 0.0), (ROWS,), "relu"),
    "relu by a choice of zeros": Case(lambda m, x: torch.where(x <= 0, torch.zeros_like(x), x), (ROWS,), "relu"),
    "relu by a filled mask": Case(lambda m, x: x.masked_fill(x < 0, 0), (ROWS,), "relu"),
    "relu by an opposite choice": Case(lambda m, x: torch.where(~(x > 0), 0.0, x), (ROWS,), "relu"),
    "leaky relu by a choice": Case(lambda m, x: torch.where(x > 0, x, 0.2 * x), (ROWS,), "leaky_relu"),
    "relu6 by choices": Case(lambda m, x: torch.where(x < 0, 0.0, torch.where(x > 6, 6.0, x)), (ROWS,), "hardtanh"),
    "limits by choices": Case(lambda m, x: torch.where(x >= 1, 1.0, torch.where(x > -1, x, -1.0)), (ROWS,), "hardtanh"),
    "activations by choices between layers": Case(
        lambda m, x: _leaky(m.b(_limited(m.a(x)))), (ROWS,), "hardtanh leaky_relu linear linear", {"a": UP, "b": DOWN}
    ),
    "a magnitude by a choice": Case(lambda m, x: torch.where(x >= 0, x, -x), (ROWS,), "abs"),
    "elu by a choice": Case(lambda m, x: torch.where(x > 0, x, x.exp() - 1), (ROWS,), "elu"),
    "a maximum by a choice": Case(lambda m, x, y: torch.where(x > y, x, y), (ROWS, ROWS + randn(96, 64).mT), "maximum"),
    "a minimum by a choice": Case(lambda m, x, y: torch.where(x > y, y, x), (ROWS, ROWS + randn(96, 64).mT), "minimum"),
    "an activation of what is chosen": Case(
        lambda m, x, y: torch.where(y > 0.5, F.gelu(x), F.gelu(y)), (ROWS, ROWS + randn(96, 64).mT), "gelu gt where"
    ),
    "choices one in the other": Case(
        lambda m, x, y: torch.where(y > 0.5, torch.where(y > 0.5, x, 2 * x), y), (ROWS, ROWS + 1), "gt where"
    ),
    "padded image": Case(lambda m, x: m.a(F.pad(x, (1, 1, 2, 2))), (IMAGE,), "conv2d", {"a": KERNEL}),
    "shifted rows": Case(lambda m, x: m.a(x + m.v), (ROWS,), "linear", {"a": UP, "v": randn(96)}),
    "grouped convolution and normalization": Case(
        _both, (IMAGE,), "conv2d", {"a": nn.Conv2d(16, 16, 3, padding=1, groups=4, bias=False), "b": normalization(16)}
    ),
    "depthwise convolution and normalization": Case(
        _both, (IMAGE,), "conv2d", {"a": nn.Conv2d(16, 16, 3, padding=1, groups=16), "b": normalization(16)}
    ),
    "columns of a layer": Case(lambda m, x: m.a(x)[:, :24], (ROWS,), "linear", {"a": UP}),
    "channels of a convolution": Case(lambda m, x: m.a(x)[:, :8], (IMAGE,), "conv2d", {"a": KERNEL}),
    "normalized image": Case(
        lambda m, x: m.a((x - m.mean) / m.deviation),
        (IMAGE,),
        "conv2d",
        {"a": nn.Conv2d(16, 8, 3), "mean": randn(16, 1, 1), "deviation": randn(16, 1, 1).abs() + 0.5},
    ),
    "image divided by a number": Case(lambda m, x: m.a(x / 255), (IMAGE,), "conv2d", {"a": KERNEL}),
    "weight of a norm": Case(_both, (ROWS,), "linear rms_norm", {"a": RmsNorm(96), "b": UP}),
    "global pool of a pointwise convolution": Case(
        lambda m, x: F.adaptive_avg_pool2d(m.a(x), 1),
        (IMAGE,),
        "adaptive_avg_pool2d conv2d",
        {"a": nn.Conv2d(16, 64, 1)},
    ),
    "functions joined along the batch": Case(
        lambda m, x, y: torch.cat([F.relu(x), F.relu(y)]), (IMAGE, IMAGE + 1), "concat relu"
    ),
    "negated twice": Case(lambda m, x: m.a(x.neg().neg()), (ROWS,), "linear", {"a": UP}),
    "branches of a block": Case(
        _branches,
        (IMAGE,),
        "conv2d",
        {"norm": normalization(16), **_block(a=nn.Conv2d(16, 16, 1, bias=False), b=nn.Conv2d(16, 16, 3, padding=1))},
    ),
    "depthwise branches of a block": Case(
        _branches,
        (IMAGE,),
        "conv2d",
        {
            "norm": normalization(16),
            **_block(
                a=nn.Conv2d(16, 16, 5, padding=2, groups=16, bias=False),
                b=nn.Conv2d(16, 16, 1, groups=16, bias=False),
                c=nn.Conv2d(16, 16, 5, padding=2, groups=16, bias=False),
            ),
        },
    ),
    "branches that stride": Case(
        _branches,
        (IMAGE,),
        "conv2d",
        _block(a=nn.Conv2d(16, 16, 1, stride=2, bias=False), b=nn.Conv2d(16, 16, 3, stride=2, padding=1)),
    ),
    "branches along rows and columns": Case(
        _branches,
        (IMAGE,),
        "conv2d",
        _block(
            a=nn.Conv2d(16, 16, 3, padding=1),
            b=nn.Conv2d(16, 16, (1, 3), padding=(0, 1)),
            c=nn.Conv2d(16, 16, (3, 1), padding=(1, 0)),
        ),
    ),
    "a layer of low rank beside another": Case(
        _adapted,
        (ROWS,),
        "linear",
        {"a": UP, "down": nn.Linear(96, 4, bias=False), "up": nn.Linear(4, 192, bias=False)},
    ),
    "a layer and its operand": Case(lambda m, x: x + m.a(x), (ROWS,), "linear", {"a": nn.Linear(96, 96)}),
    "an identity beside a matrix": Case(
        lambda m, x: (torch.eye(64, dtype=torch.float64) + x @ x.mT) @ x, (ROWS,), "add linear matmul"
    ),
    "numbers without weights": Case(lambda m, x: x * 2 * 3, (ROWS,), "mul"),
    "sum of sums": Case(lambda m, x: x.sum(-1).sum(-1), (TOKENS,), "sum"),
    "gelu with a number of few digits": Case(_gelu_of_few_digits, (ROWS.float(),), "gelu"),
    "gelu by a sigmoid between layers": Case(_gelu_by_sigmoid, (ROWS,), "linear linear silu", {"a": UP, "b": DOWN}),
    "a norm in single precision": Case(_normalized_in_single, (ROWS.bfloat16(),), "cast cast rms_norm"),
    "columns of a product": Case(lambda m, x: (x @ m.w)[:, :24], (ROWS,), "matmul", {"w": randn(96, 192)}),
    "a quotient by one": Case(lambda m, x: F.relu(x / 1), (ROWS,), "relu"),
    "padding that is cut off": Case(lambda m, x: F.relu(F.pad(x, (1, 2))[:, 1:-2]), (ROWS,), "relu"),
    "padding of an image that is cut off": Case(
        lambda m, x: F.relu(F.pad(x, (2, 1, 1, 1))[:, :, 1:-1, 2:-1]), (IMAGE,), "relu"
    ),
    "unequal padding of a depthwise convolution": Case(
        lambda m, x: m.a(F.pad(x, (0, 1, 0, 1))), (IMAGE,), "conv2d", {"a": nn.Conv2d(16, 16, 3, 2, groups=16)}
    ),
    "averages of a pointwise convolution": Case(
        lambda m, x: F.avg_pool2d(m.a(x), 2), (IMAGE,), "avg_pool2d conv2d", {"a": nn.Conv2d(16, 64, 1)}
    ),
    "a global average before a layer": Case(
        lambda m, x: m.a(F.adaptive_avg_pool2d(x, 1).flatten(1)), (IMAGE,), "linear mean", {"a": nn.Linear(16, 8)}
    ),
    "channels in another order": Case(
        lambda m, x: m.a(x[:, [2, 1, 0]]), (IMAGE[:, :3].contiguous(),), "conv2d", {"a": nn.Conv2d(3, 16, 3)}
    ),
    "features in another order": Case(lambda m, x: m.a(x[:, torch.arange(95, -1, -1)]), (ROWS,), "linear", {"a": UP}),
    "weight and bias of a norm": Case(_both, (ROWS,), "layer_norm linear", {"a": layer_norm(96), "b": UP}),
    "a norm before three layers": Case(
        _three_layers,
        (ROWS,),
        "layer_norm linear slice slice slice",
        {"a": layer_norm(96), "b": UP, "c": nn.Linear(96, 96), "d": nn.Linear(96, 48)},
    ),
    "two norms of one operand before layers": Case(
        _two_normalized,
        (ROWS,),
        "layer_norm linear slice slice",
        {"a": layer_norm(96), "b": UP, "c": layer_norm(96), "d": nn.Linear(96, 96)},
    ),
    "an embedding before a layer": Case(
        _both, (INTEGERS,), "take", {"a": nn.Embedding(50, 96), "b": nn.Linear(96, 96)}
    ),
    "an embedding before a norm": Case(_both, (INTEGERS,), "take", {"a": nn.Embedding(50, 96), "b": layer_norm(96)}),
    "a sum with what is negated": Case(lambda m, x, y: x + y * -1, (ROWS, ROWS + 1), "sub"),
}
NEAR_MISSES = {
    "branches that stride and their operand": Case(
        lambda m, x: m.a(x) + x[:, :, ::2, ::2],
        (IMAGE,),
        "add conv2d slice slice",
        {"a": nn.Conv2d(16, 16, 1, stride=2)},
    ),
    "a branch that is not centred": Case(
        lambda m, x: m.a(x) + m.b(F.pad(x, (0, -1, 0, -1))),
        (IMAGE,),
        "add contiguous conv2d conv2d slice slice",
        {"a": nn.Conv2d(16, 16, 2), "b": nn.Conv2d(16, 16, 1)},
    ),
    "softplus without the one": Case(lambda m, x: torch.log(2 + torch.exp(x)), (ROWS,), "add exp log"),
    "softplus of what is no magnitude": Case(
        lambda m, x: F.relu(x) + torch.log1p((-x).exp()), (ROWS,), "add mul relu softplus"
    ),
    "mish of something else": Case(
        lambda m, x, y: y * torch.tanh(torch.log(1 + torch.exp(x))), (ROWS, ROWS + 1), "mul softplus tanh"
    ),
    "relu by the wrong limit": Case(lambda m, x: x.clamp(max=0), (ROWS,), "minimum"),
    "a maximum with ones": Case(lambda m, x: torch.maximum(x, torch.ones_like(x)), (ROWS,), "maximum"),
    "another limit than relu's": Case(lambda m, x: x.clamp(min=0.1), (ROWS,), "maximum"),
    "limits out of order": Case(lambda m, x: x.clamp(min=1).clamp(max=-1), (ROWS,), "maximum minimum"),
    "the lesser of a number and its opposite": Case(lambda m, x: torch.minimum(x, -x), (ROWS,), "minimum mul"),
    "a difference of relus that is no line": Case(
        lambda m, x: F.relu(x) - F.relu(-2 * x), (ROWS,), "mul relu relu sub"
    ),
    "relu by a choice with another limit": Case(lambda m, x: torch.where(x > 1, x, 0.0), (ROWS,), "gt where"),
    "relu by a choice of the others": Case(lambda m, x: torch.where(x < 0, x, 1.0), (ROWS,), "gt where"),
    "choices that lose a limit": Case(
        lambda m, x: torch.where(x > 0, x, torch.where(x > 6, 6.0, 0.0)), (ROWS,), "cast gt gt where where"
    ),
    "a choice that is no maximum": Case(
        lambda m, x, y: torch.where(x > 2 * y, x, y), (ROWS, ROWS + randn(96, 64).mT), "gt mul where"
    ),
    "what is not a number": Case(lambda m, x: torch.where(x != x, 0.0, x), (ROWS,), "ne where"),
    "a slope above one": Case(lambda m, x: torch.maximum(x, 2 * x), (ROWS,), "maximum mul"),
    "leaky relu of two slopes": Case(
        lambda m, x: 0.5 * F.relu(x) - 0.3 * F.relu(-x), (ROWS,), "mul mul mul relu relu sub"
    ),
    "a function between layers": Case(
        lambda m, x: m.b(F.relu(m.a(x))), (ROWS,), "linear linear relu", {"a": UP, "b": DOWN}
    ),
    "a bias before padding": Case(
        _both,
        (IMAGE,),
        "conv2d conv2d",
        {"a": nn.Conv2d(16, 32, 1), "b": nn.Conv2d(32, 16, 3, padding=1)},
    ),
    "a shift before padding": Case(
        lambda m, x: m.a(x + m.v), (IMAGE,), "add conv2d", {"a": KERNEL, "v": randn(16, 1, 1)}
    ),
    "rows in the middle of causal attention": Case(
        partial(_attend, first=16, last=32), (HEADS,) * 3, "attention slice"
    ),
    "a mask with a row for each query": Case(
        _repeated,
        (QUERIES, KEYS, VALUES, randn(2, 1, 64, 48)),
        "attention contiguous contiguous expand expand reshape reshape reshape reshape",
    ),
    "unequal padding": Case(lambda m, x: m.a(F.pad(x, (0, 1, 0, 1))), (IMAGE,), "conv2d pad", {"a": KERNEL}),
    "gelu with too few digits": Case(_gelu_of_few_digits, (ROWS,), "add add mul mul mul mul mul tanh"),
    "a norm of squares in half precision": Case(
        _normalized_in_half, (ROWS.bfloat16(),), "add cast cast cast mean mul mul rsqrt"
    ),
    "a quotient by two": Case(lambda m, x: F.relu(x / 2), (ROWS,), "mul relu"),
    "more cut off than was padded": Case(lambda m, x: F.relu(F.pad(x, (1, 2))[:, 2:-2]), (ROWS,), "pad relu slice"),
    "averages before a layer": Case(
        lambda m, x: m.a(F.adaptive_avg_pool2d(x, 2).flatten(1)),
        (IMAGE,),
        "adaptive_avg_pool2d linear reshape",
        {"a": nn.Linear(64, 8)},
    ),
    "images in another order": Case(lambda m, x: m.a(x[[1, 0]]), (IMAGE,), "conv2d take", {"a": KERNEL}),
    "a norm that is read elsewhere too": Case(
        lambda m, x: (m.b(m.a(x)), m.a(x)),
        (ROWS,),
        "layer_norm++ linear",
        {"a": layer_norm(96), "b": UP},
    ),
    "a large embedding before a layer": Case(_both, (INTEGERS,), "linear take", {"a": nn.Embedding(5000, 96), "b": UP}),
    "a wrong number in gelu by a sigmoid": Case(
        partial(_gelu_by_sigmoid, number=1.6), (ROWS,), "linear linear mul mul sigmoid", {"a": UP, "b": DOWN}
    ),
    "a wrong number in hardswish": Case(lambda m, x: x * F.relu6(x + 2) / 6, (ROWS,), "add hardtanh mul mul"),
    "a wrong number in gelu": Case(
        lambda m, x: 0.5 * x * (1 + torch.tanh(0.8 * (x + 0.044715 * x**3))),
        (ROWS,),
        "add add mul mul mul mul mul tanh",
    ),
}


def _name(node: Node) -> str:
    """Return the name of an operator; of a normalization, with a plus sign for each weight."""
    weights = "+" * (len(node.inputs) - 1) if isinstance(node.op, norms.LayerNorm | norms.RmsNorm) else ""
    return node.op.name + weights


def check(case: Case) -> None:
    """Assert which operators run after a search with the shipped rules, and that they compute what the model does."""
    model = Model(case.function, case.parts)
    program = fold(import_module(model, case.args, positive=case.positive))
    found = search(program.graph, matcher(), ModelledCost(0)).best.graph
    names = " ".join(sorted(_name(node) for node in found.nodes if not node.is_static and node.inputs))
    assert names == case.left
    tolerance = max(TOLERANCES[x.dtype] for x in case.args)
    with torch.no_grad():
        computed = build(fold(replace(program, graph=found), UNLIMITED))(*case.args)
        torch.testing.assert_close(computed, model(*case.args), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", [*CASES, *NEAR_MISSES])
def test_what_runs_after_a_search(name: str) -> None:
    check({**CASES, **NEAR_MISSES}[name])
