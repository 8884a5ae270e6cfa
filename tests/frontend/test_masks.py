"""Masks of attention that are known while a model is imported."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from taso_py.backend import build
from taso_py.frontend import import_module
from taso_py.ops.normalization import Attention

ROWS = 6


class Attends(nn.Module):
    """Attention with a mask that a function makes of the queries."""

    def __init__(self, mask: Callable[[Tensor], Tensor], keys: int = ROWS) -> None:
        super().__init__()
        self.mask, self.keys = mask, keys
        self.register_buffer("allowed", torch.ones(ROWS, keys, dtype=torch.bool))

    def forward(self, x: Tensor) -> Tensor:
        k = x[:, :, : self.keys]
        return F.scaled_dot_product_attention(x, k, k, attn_mask=self.mask(x), scale=0.3)


def _distances(keys: int = ROWS) -> Tensor:
    return torch.arange(ROWS)[:, None] - torch.arange(keys)


def _numbers(x: Tensor) -> Tensor:
    return torch.zeros(ROWS, ROWS).masked_fill(_distances() < 0, -math.inf)


def _imported(module: Attends) -> tuple[Attention, int]:
    """The attention that is imported, and how many operands it has."""
    x = torch.randn(2, 3, ROWS, 8)
    program = import_module(module, (x,))
    (node,) = [node for node in program.graph.nodes if isinstance(node.op, Attention)]
    torch.testing.assert_close(build(program)(x), module(x), rtol=1e-5, atol=1e-6)
    assert isinstance(node.op, Attention)
    return node.op, len(node.inputs)


@pytest.mark.parametrize(
    "mask",
    [
        lambda x: torch.ones(ROWS, ROWS, dtype=torch.bool),
        lambda x: (torch.arange(ROWS) >= 0).expand(2, 1, ROWS, ROWS),
        lambda x: torch.zeros(1, 1, ROWS, ROWS),
    ],
)
def test_a_mask_that_hides_nothing_is_dropped(mask: Callable[[Tensor], Tensor]) -> None:
    assert _imported(Attends(mask)) == (Attention(0.3), 3)


@pytest.mark.parametrize(
    "mask",
    [
        lambda x: _distances() >= 0,
        lambda x: torch.ones(2, 1, ROWS, ROWS, dtype=torch.bool).tril(),
        _numbers,
    ],
)
def test_a_triangle_makes_attention_causal(mask: Callable[[Tensor], Tensor]) -> None:
    assert _imported(Attends(mask)) == (Attention(0.3, causal=True), 3)


@pytest.mark.parametrize(
    "mask",
    [
        lambda x: _distances() >= 1 - ROWS // 2,  # sees some keys ahead
        lambda x: _distances().abs() < 3,  # a window
        lambda x: torch.ones(2, 1, ROWS, ROWS, dtype=torch.bool).tril() | (torch.arange(2)[:, None, None, None] > 0),
        lambda x: torch.zeros(ROWS, ROWS).masked_fill(_distances() < 0, -1e4),  # large, but not without end
        lambda x: torch.full((ROWS, ROWS), 1e-9),
        lambda x: (x[0, 0, :, :1] < math.inf).expand(ROWS, ROWS),  # of an input, if always true
    ],
)
def test_any_other_mask_stays(mask: Callable[[Tensor], Tensor]) -> None:
    assert _imported(Attends(mask)) == (Attention(0.3), 4)


def test_a_triangle_that_is_not_square_stays() -> None:
    assert _imported(Attends(lambda x: _distances(4) >= 0, keys=4)) == (Attention(0.3), 4)


def test_a_result_keeps_the_layout_that_its_mask_gave_it() -> None:
    """PyTorch computes attention by another kernel, with a dense result, if a mask has three axes."""

    class Heads(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            x = x.unflatten(-1, (4, 8)).transpose(1, 2)
            return F.scaled_dot_product_attention(x, x, x, attn_mask=torch.ones(1, ROWS, ROWS, dtype=torch.bool))

    module, x = Heads(), torch.randn(2, ROWS, 32)
    program = import_module(module, (x,))
    assert [node.op.name for node in program.graph.nodes][-2:] == ["attention", "contiguous"]
    assert len(program.graph.nodes[-2].inputs) == 3
    result, expected = build(program)(x), module(x)
    torch.testing.assert_close(result, expected)
    assert result.stride() == expected.stride() == (192, 48, 8, 1)


def test_a_mask_in_a_buffer_stays_since_its_values_may_change() -> None:
    module = Attends(lambda x: torch.ones(1))
    module.mask = lambda x: module.get_buffer("allowed")
    assert _imported(module) == (Attention(0.3), 4)
