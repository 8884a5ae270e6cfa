"""Results of several families of models, called as the README calls them: with gradients on, built and loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from fuzz.prices import InventedPrices
from taso_py.backend import NO_PLAN, Program, build, fold
from taso_py.backend.frozen import GradientError
from taso_py.cost.choice import choose
from taso_py.frontend import import_module
from taso_py.ir.graph import Graph
from taso_py.kernels.saved import dump
from taso_py.kernels.table import TILES
from taso_py.models.huggingface import adapt
from taso_py.saving.artifact import reimport, save, serialize
from taso_py.saving.loading import load
from tests.saving.test_artifact import REPORT

TOKENS = torch.arange(8)[None] % 7


class Recurrent(nn.Module):
    """A GRU on what an LSTM gives."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.gru = nn.LSTM(6, 8, batch_first=True), nn.GRU(8, 8, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.gru(self.lstm(x)[0])[0][:, -1]


def network() -> tuple[nn.Module, Any]:
    layers = [nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8)]
    return nn.Sequential(*layers, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)), _rows(2, 3, 8, 8)


def encoder() -> tuple[nn.Module, Any]:
    layers = [nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True) for _ in range(2)]
    return nn.Sequential(nn.Embedding(9, 16), *layers), TOKENS


def perceptron() -> tuple[nn.Module, Any]:
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4)), _rows(4, 8)


def llama() -> tuple[nn.Module, Any]:
    from transformers import LlamaConfig, LlamaModel

    sizes: dict[str, Any] = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    return LlamaModel(LlamaConfig(vocab_size=9, num_key_value_heads=1, **sizes)), TOKENS


def gpt2() -> tuple[nn.Module, Any]:
    from transformers import GPT2Config, GPT2Model

    return GPT2Model(GPT2Config(vocab_size=9, n_positions=8, n_embd=16, n_layer=2, n_head=2)), TOKENS


def vit() -> tuple[nn.Module, Any]:
    from transformers import ViTConfig, ViTModel

    sizes: dict[str, Any] = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    return ViTModel(ViTConfig(image_size=8, patch_size=4, **sizes)), _rows(1, 3, 8, 8)


def recurrent() -> tuple[nn.Module, Any]:
    return Recurrent(), _rows(2, 5, 6)


def _rows(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def kernels(graph: Graph) -> Any:
    """Every kernel that there is, results over dead operands."""
    return choose(graph, InventedPrices(2, fused=0.01, tiles=TILES)).plan.eager()


@dataclass(frozen=True)
class Imported:
    """A model on its input: what it returns, its program, and that as it is saved."""

    x: Tensor
    returned: Any
    program: Program
    content: bytes


@pytest.fixture(scope="module", params=[network, encoder, perceptron, llama, gpt2, vit, recurrent])
def imported(request: pytest.FixtureRequest, zoo_libraries: None) -> Imported:
    torch.manual_seed(0)
    model, x = request.param()
    model = adapt(model.eval())
    with torch.no_grad():
        returned = model(x)
    program = fold(import_module(model, (x,)))
    return Imported(x, returned, program, serialize(build(program), (x,), {}))


@pytest.mark.parametrize("is_planned", [True, False], ids=["kernels", "plain"])
def test_results_are_called_with_gradients_on(imported: Imported, is_planned: bool, tmp_path: Path) -> None:
    x, program = imported.x, imported.program
    plan = dump(kernels(reimport(imported.content).graph)) if is_planned else None
    save(tmp_path / "out", imported.content, REPORT.as_dict(), "trace", plan)
    built, loaded = build(program, kernels(program.graph) if is_planned else NO_PLAN), load(tmp_path / "out")
    for result in (built, loaded):
        found = result(x)
        torch.testing.assert_close(found, imported.returned, rtol=1e-3, atol=1e-4)
        assert not any(leaf.requires_grad for leaf in pytree.tree_leaves(found))
        if x.is_floating_point():
            with pytest.raises(GradientError):
                pytree.tree_leaves(result(x.clone().requires_grad_()))[0].sum().backward()
