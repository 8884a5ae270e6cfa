"""Linear layers that are applied to the channels of an image take in what is done to the image afterwards."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from taso_py.frontend import import_module
from taso_py.search.backtracking import search
from tests.search.examples import FakeCost, shipped


class Block(nn.Module):
    """What follows the convolution in a block of ConvNeXt."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
        self.scale = nn.Parameter(torch.randn(8, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        rows = self.down(torch.nn.functional.gelu(self.up(x.permute(0, 2, 3, 1))))
        return x + self.scale * rows.permute(0, 3, 1, 2)


def _left(*names: str) -> list[str]:
    """The operators that compute at run time after a search with these rule files."""
    graph = import_module(Block().eval(), (torch.randn(2, 8, 3, 5),)).graph
    result = search(graph, shipped(*names), FakeCost())
    return sorted(node.op.name for node in result.best.graph.nodes if not node.is_static and node.inputs)


def test_channels_of_an_image_are_scaled_by_the_weights_of_a_linear_layer() -> None:
    assert _left("core-merge-fold", "scalars", "layout") == ["add", "gelu", "linear", "linear", "permute", "permute"]


def test_without_these_rules_the_scale_stays() -> None:
    assert "mul" in _left("core-merge-fold", "scalars")
