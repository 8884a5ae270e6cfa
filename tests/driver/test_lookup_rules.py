"""What is computed from rows of an embedding is computed from its table, once, where that is not stored at a loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from taso_py.backend.build import build
from taso_py.backend.fold import UNLIMITED, fold
from taso_py.backend.program import Program
from taso_py.frontend import import_module
from taso_py.search.backtracking import search
from tests.search.examples import FakeCost, shipped

WORDS, WIDTH = 11, 8
TOKENS = torch.tensor([[3, 0, 10], [7, 7, 1]])


class Model(nn.Module):
    """Tables, a layer and a norm, and something that is computed with them."""

    def __init__(self, function: Callable[..., Tensor], words: int = WORDS, width: int = WIDTH) -> None:
        super().__init__()
        self.table, self.other = nn.Embedding(words, width), nn.Embedding(words, width)
        self.up, self.norm = nn.Linear(width, 8 * width), nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.randn(width))
        self._function = function

    def forward(self, *inputs: Tensor) -> Tensor:
        return self._function(self, *inputs)


MODELS: dict[str, Callable[..., Tensor]] = {
    "a function": lambda s, i: F.gelu(s.table(i)),
    "a scale": lambda s, i: s.table(i) * WIDTH**0.5,
    "a bias": lambda s, i: s.table(i) + s.scale,
    "a norm": lambda s, i: s.norm(s.table(i) * 2.5),
    "a norm by roots": lambda s, i: F.rms_norm(s.table(i), (WIDTH,), s.scale),
    "a layer": lambda s, i: s.up(s.table(i)),
    "a product": lambda s, i: s.table(i) @ s.up.weight.mT,
    "a sum": lambda s, i: s.table(i) + s.other(i),
    "side by side": lambda s, i: torch.cat([s.table(i), s.other(i)], -1),
    "a part": lambda s, i: s.table(i)[..., 2:5],
    "another type": lambda s, i: s.table(i).half(),
    "indexed from the end": lambda s, i: F.silu(s.table.weight[i - 11]),
    "everything": lambda s, i: s.up(F.relu(s.norm(s.table(i) + s.other(i)))),
}


def _searched(model: nn.Module, *inputs: Tensor, files: tuple[str, ...] = ("lookups",)) -> Program:
    """The program after a search at default settings, its weights folded."""
    program = import_module(model.eval(), inputs)
    found = search(program.graph, shipped(*files), FakeCost()).best.graph
    return fold(replace(program, graph=found), UNLIMITED)


def _running(program: Program) -> list[str]:
    return sorted(node.op.name for node in program.graph.nodes if node.inputs)


@pytest.mark.parametrize("name", MODELS)
def test_a_row_by_row_computation_is_done_once_for_all_rows(name: str) -> None:
    model = Model(MODELS[name])
    program = _searched(model, TOKENS)
    assert [op for op in _running(program) if op != "sub"] == ["take"]  # that of integers stays
    with torch.no_grad():
        torch.testing.assert_close(build(program)(TOKENS), model(TOKENS), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_without_these_rules_it_is_done_row_by_row(name: str) -> None:
    assert _running(_searched(Model(MODELS[name]), TOKENS, files=())) != ["take"]


KEPT: dict[str, tuple[Callable[..., Tensor], int]] = {
    "other integers": (lambda s, i: s.table(i) + s.other(i.flip(0)), WORDS),
    "a table that would be stored at a loss": (lambda s, i: s.up(s.table(i)), 20_000),
    "what rows have to do with each other": (lambda s, i: s.table(i).softmax(-2), WORDS),
    "rows of the result": (lambda s, i: s.table(i)[:, 1:], WORDS),
    "rows of computed integers": (lambda s, i: s.table.weight[i, :][s.other.weight[:, :2].argmax(-1)], WORDS),
}


@pytest.mark.parametrize("name", KEPT)
def test_other_computations_stay_behind_the_lookup(name: str) -> None:
    function, words = KEPT[name]
    model = Model(function, words)
    program = _searched(model, TOKENS)
    assert _running(program) == _running(_searched(model, TOKENS, files=()))


@pytest.mark.parametrize("name", ["a function", "a layer", "indexed from the end", "everything"])
@pytest.mark.parametrize("wrong", [WORDS, -1 - WORDS])
def test_integers_without_a_row_are_errors_as_before(name: str, wrong: int) -> None:
    model = Model(MODELS[name])
    built, bad = build(_searched(model, TOKENS)), torch.full_like(TOKENS, wrong)
    bad = bad + WORDS if name == "indexed from the end" and wrong > 0 else bad
    for computes in (model, built):
        with pytest.raises(IndexError, match=r"out of (range|bounds)"), torch.no_grad():
            computes(bad)


def test_an_embedding_refuses_negative_integers_still() -> None:
    model = Model(MODELS["a function"])
    built = build(_searched(model, TOKENS))
    for computes in (model, built):
        with pytest.raises(IndexError, match="out of range"), torch.no_grad():
            computes(TOKENS - 4)
