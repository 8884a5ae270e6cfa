"""What is written for engines keeps images in the engine's own order from one convolution to the next."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from taso_py.engines.session import SessionEngine
from tests.engines.sessions import program_of


class Branches(nn.Module):
    """Convolutions whose results are joined, by channel or by row, between two others."""

    def __init__(self, axis: int) -> None:
        super().__init__()
        self.axis = axis
        self.before, self.after = nn.Conv2d(3, 32, 3), nn.Conv2d(64 if axis == 1 else 32, 32, 1)
        self.left, self.right = nn.Conv2d(32, 32, 1), nn.Conv2d(32, 32, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.before(x).relu()
        return self.after(torch.cat([self.left(x).relu(), self.right(x).relu()], self.axis))


def _reorders(engine: SessionEngine, model: nn.Module) -> int:
    image = torch.ones(1, 3, 16, 16)
    program = program_of(model.eval(), [image])
    model_of = engine.model_of(program.graph, program.weights)
    return sum(bool(time.reorders) for time in engine.profile(model_of, [image], 1))


def test_images_that_are_joined_by_channel_stay_in_an_engines_own_order(engine: SessionEngine) -> None:
    # An image of three channels comes as it is; the result goes back.
    assert _reorders(engine, Branches(axis=1)) <= 2
