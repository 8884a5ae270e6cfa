"""Memory formats: plain operators give the format that they are said to keep, and only those are said to."""

from __future__ import annotations

import pytest
import torch

from taso_py.backend.run import run_graph
from taso_py.ir.graph import Graph
from taso_py.kernels.table import PLAIN, covers
from taso_py.kernels.tile import CHANNELS_LAST
from taso_py.ops.table import parse_graph

PADDED = 'opaque(x){{target="aten.pad.default", arguments=[$0,[1,1,2,0],"text:{mode}"{value}], types=[f32[2,4,8,7]]}}'
KEPT = [
    *("relu(x)", "silu(x)", "gelu(x)", "add(x, z)", "mul(x, constant{value=2.0, dtype=f32})"),
    *("concat(x, z){axis=-3}", "slice(x){axis=-2, start=1, stop=4}", "slice(x){axis=-3, start=1, stop=4}"),
    *("pad(x){widths=[[1,1],[2,0]]}", "pad(x){widths=[[0,2],[0,0],[0,0]], value=1.5}"),
    *("max_pool2d(x){kernel=[3,3], stride=[2,2]}", "avg_pool2d(x){kernel=[3,3], stride=[2,2], padding=[1,1]}"),
    *(PADDED.format(mode="constant", value=",-inf"), PADDED.format(mode="reflect", value="")),
    'opaque(x){target="aten.hardswish.default", arguments=[$0], types=[f32[2,4,6,5]]}',
]
LOST = [
    *("contiguous(x)", "reshape(x){shape=[2,2,2,30]}"),
    PADDED.format(mode="circular", value=""),
]


def _graph(result: str) -> Graph:
    return parse_graph(f"graph(x: f32[2,4,6,5], z: f32[2,4,6,5]) {{ return {result} }}")


def _keeps(graph: Graph) -> bool:
    (plain,) = covers(graph.outputs[0].node, torch.device("cpu"), PLAIN)
    return CHANNELS_LAST in plain.formats


def _gives_channels_last(graph: Graph) -> bool:
    images = [torch.randn(node.types[0].sizes).contiguous(memory_format=torch.channels_last) for node in graph.inputs]
    (result,) = run_graph(graph, images, {})
    return result.stride(-3) == 1


@pytest.mark.parametrize("result", KEPT)
def test_what_is_said_to_keep_channels_last_gives_it(result: str) -> None:
    graph = _graph(result)
    assert _keeps(graph)
    assert _gives_channels_last(graph)


@pytest.mark.parametrize("result", LOST)
def test_what_does_not_give_channels_last_is_not_said_to_keep_it(result: str) -> None:
    graph = _graph(result)
    assert not _keeps(graph)
    assert not _gives_channels_last(graph)
