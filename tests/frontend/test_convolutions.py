"""Convolutions of volumes, and transposed ones of images, go to graphs and back bit for bit."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from taso_py.frontend import import_module
from taso_py.ir.errors import ShapeError
from taso_py.ops.contraction import ConvTranspose2d
from tests.round_trips import Model, opaque_targets, operator_names, randn, round_trip

IMAGE = randn(2, 4, 7, 6)
LAYERS = {
    "doubled": nn.ConvTranspose2d(4, 6, 2, 2),
    "no bias": nn.ConvTranspose2d(4, 6, 4, 2, 1, bias=False),
    "padded output": nn.ConvTranspose2d(4, 6, 3, 2, 1, output_padding=1),
    "groups": nn.ConvTranspose2d(4, 6, 3, (3, 2), (1, 0), output_padding=(2, 1), groups=2, dilation=(1, 2)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_transposed_convolution_is_in_the_table(name: str) -> None:
    program = round_trip(LAYERS[name].eval(), IMAGE)
    assert operator_names(program) == ["conv_transpose2d"]


def test_the_general_call_is_the_same() -> None:
    def computed(s: object, x: Tensor, w: Tensor) -> Tensor:
        return torch.ops.aten.convolution.default(x, w, None, [2, 2], [1, 1], [1, 1], True, [1, 0], 1)

    assert operator_names(round_trip(Model(computed), IMAGE, randn(4, 5, 3, 3))) == ["conv_transpose2d"]


VOLUME = randn(2, 4, 5, 6, 7)
VOLUMES = {
    "a cube": nn.Conv3d(4, 6, 3),
    "a part of one": nn.Conv3d(4, 6, (1, 3, 2), (1, 2, 1), (0, 1, 1), dilation=(2, 1, 2), groups=2, bias=False),
}


@pytest.mark.parametrize("name", VOLUMES)
def test_a_convolution_of_a_volume_is_in_the_table(name: str) -> None:
    assert operator_names(round_trip(VOLUMES[name].eval(), VOLUME)) == ["conv3d"]


def test_padding_by_name_stays_opaque() -> None:
    assert opaque_targets(round_trip(nn.Conv3d(4, 6, 3, padding="same").eval(), VOLUME)) == ["conv3d"]


@pytest.mark.parametrize(
    ("layer", "x"), [(nn.ConvTranspose1d(4, 6, 3, 2), IMAGE[:, :, 0]), (nn.ConvTranspose2d(4, 6, 3), IMAGE[0])]
)
def test_other_ranks_stay_opaque(layer: nn.Module, x: Tensor) -> None:
    (target,) = opaque_targets(round_trip(layer.eval(), x))
    assert target in ("conv_transpose1d", "conv_transpose2d")


def test_padding_of_the_output_is_in_range() -> None:
    graph = import_module(Model(lambda s, x, w: F.conv_transpose2d(x, w, stride=2)), (IMAGE, randn(4, 5, 3, 3))).graph
    types = [value.type for value in graph.nodes[-1].inputs]
    assert ConvTranspose2d((2, 2), output_padding=(1, 1)).infer(types)[0].sizes == (2, 5, 16, 14)
    with pytest.raises(ShapeError, match="output_padding"):
        ConvTranspose2d((2, 2), output_padding=(2, 1)).infer(types)
