"""A model that writes out what PyTorch fuses is brought to the fused operators by the shipped rules."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from taso_py.frontend import import_module
from taso_py.search.greedy import search
from tests.search.examples import FakeCost, shipped


class LayerNorm(nn.Module):
    """As in early implementations of transformers."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(size)), nn.Parameter(torch.randn(size))

    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        variance = centred.pow(2).mean(-1, keepdim=True)
        return self.weight * (centred / torch.sqrt(variance + 1e-5)) + self.bias


class RmsNorm(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * (1 / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)))


def gelu(x: Tensor) -> Tensor:
    return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


def silu(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-x))


class Attention(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(size, size) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.query(x), self.key(x), self.value(x)
        return torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), -1) @ v


class Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.up, self.gate = Attention(6), nn.Linear(6, 5), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        mixed = self.attention(x)
        return silu(self.up(mixed)) + halved_gelu(self.gate(mixed))


def halved_gelu(x: Tensor) -> Tensor:
    return x / 2 * (1 + torch.erf(x / math.sqrt(2)))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = LayerNorm(8), RmsNorm(8)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.after(x + self.down(gelu(self.up(self.before(x)))))


def test_what_is_written_out_becomes_fused_operators() -> None:
    graph = import_module(Block().eval(), (torch.randn(2, 3, 8),)).graph
    names = {node.op.name for node in graph.nodes}
    assert {"erf", "sqrt", "div", "mean"} <= names
    result = search(graph, shipped("fuse", "scalars"), FakeCost())
    found = [node.op.name for node in result.best.graph.nodes if not node.is_static and node.inputs]
    assert sorted(found) == ["add", "gelu", "layer_norm", "linear", "linear", "rms_norm"]


class Gates(nn.Module):
    """Activations by choices."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(6, 6) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = self.second(torch.where(x > 0, x, torch.zeros_like(x)))
        x = self.third(torch.where(x < -1, -1.0, torch.where(x > 1, 1.0, x)))
        return torch.where(x > 0, x, 0.01 * x)


def test_choices_are_recognised_as_activations() -> None:
    graph = import_module(Gates().eval(), (torch.randn(2, 3, 6),)).graph
    assert sorted(node.op.name for node in graph.nodes if node.inputs) == [
        *("gt", "gt", "gt", "gt"),
        *("linear", "linear", "linear", "mul", "where", "where", "where", "where"),
    ]
    result = search(graph, shipped("activations"), FakeCost())
    found = [node.op.name for node in result.best.graph.nodes if not node.is_static and node.inputs]
    assert sorted(found) == ["hardtanh", "leaky_relu", "linear", "linear", "linear", "relu"]


def test_quotients_are_recognised_as_well() -> None:
    graph = import_module(Mixer().eval(), (torch.randn(2, 3, 6),)).graph
    assert {"softmax", "exp", "erf", "div"} <= {node.op.name for node in graph.nodes}
    result = search(graph, shipped("fuse", "scalars"), FakeCost())
    found = [node.op.name for node in result.best.graph.nodes if not node.is_static and node.inputs]
    assert sorted(found) == ["add", "attention", "div", "gelu", *["linear"] * 5, "silu"]
