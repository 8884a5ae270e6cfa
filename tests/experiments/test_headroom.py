"""The floor of a model: operations at the peak or weights at the bandwidth, whichever takes longer."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from experiments.headroom import _roofline, floor_seconds
from taso_py.backend import fold
from taso_py.frontend import import_program
from taso_py.ir.graph import Graph
from taso_py.ir.types import DType
from taso_py.latency.database import LatencyDatabase
from taso_py.latency.environment import float32_precision
from taso_py.latency.roofline import MemoryLevel, Roofline

CPU = torch.device("cpu")
FLOPS, BIAS_AND_RELU = 2 * 4 * 8 * 16, 2 * 4 * 16
BYTES = 4 * (8 * 16 + 16)


@pytest.fixture(scope="module")
def graph() -> Graph:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU()).eval()
    return fold(import_program(torch.export.export(model, (torch.randn(4, 8),)))).graph


def test_where_weights_are_near_operations_are_the_floor(graph: Graph) -> None:
    floor, compute = floor_seconds(graph, Roofline({DType.F32: 1e9}, (MemoryLevel(2**20, 1e15),), 0.0))
    assert floor == compute
    assert FLOPS / 1e9 <= floor <= (FLOPS + BIAS_AND_RELU) / 1e9


def test_where_weights_are_far_reading_them_once_is_the_floor(graph: Graph) -> None:
    floor, compute = floor_seconds(graph, Roofline({DType.F32: 1e15}, (MemoryLevel(2**20, 1e9),), 0.0))
    assert floor == pytest.approx(BYTES / 1e9)
    assert compute < floor / 100


@pytest.mark.parametrize(("layer", "shape"), [(nn.Linear(8, 16), (4, 8)), (nn.Conv2d(8, 16, 1), (1, 8, 4, 4))])
def test_convolutions_have_a_ceiling_where_there_are_any(layer: nn.Module, shape: tuple[int, ...]) -> None:
    graph = import_program(torch.export.export(layer.eval(), (torch.randn(shape),))).graph
    with LatencyDatabase(":memory:") as database, float32_precision("bf16", CPU, "conv"):
        roofline = _roofline(graph, CPU, database)
    assert (roofline.convolution_peak is not None) == isinstance(layer, nn.Conv2d)
    assert set(roofline.peaks) == {DType.F32}


def test_weights_that_do_not_fit_in_a_cache_are_read_from_memory(graph: Graph) -> None:
    roofline = Roofline({}, (MemoryLevel(BYTES - 1, 1e12), MemoryLevel(2**20, 1e9)), 0.0)
    assert floor_seconds(graph, roofline)[0] == pytest.approx(BYTES / 1e9)
