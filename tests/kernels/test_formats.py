"""Memory formats: plain operators give the format that they are said to keep, and only those are said to."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from taso_py.backend.plan import Format
from taso_py.backend.run import run_graph
from taso_py.ir.graph import Graph
from taso_py.kernels.table import PLAIN, covers
from taso_py.kernels.tile import CHANNELS_LAST
from taso_py.ops.elementwise import Cast
from taso_py.ops.table import DEFINED, parse_graph

PADDED = 'opaque(x){{target="aten.pad.default", arguments=[$0,[1,1,2,0],"text:{mode}"{value}], types=[f32[2,4,8,7]]}}'
FUNCTIONS = [
    op for op in DEFINED.values() if op.is_elementwise and op.arity == (1, 1) and not (op.is_movement or op.reads_truth)
]
"""All of them but casts can be written without attributes."""
KEPT = [
    *(f"{op.name}(x)" for op in FUNCTIONS if op is not Cast),
    *("add(x, z)", "mul(x, constant{value=2.0, dtype=f32})", "sub(x, z)", "div(x, z)", "cast(x){dtype=f64}"),
    *("maximum(x, z)", "minimum(x, constant{value=2.0, dtype=f32})"),
    *("gt(x, z)", "ge(x, constant{value=2.0, dtype=f32})", "eq(x, z)", "ne(x, bias)", "where(gt(x, z), x, z)"),
    *("where(gt(x, z), constant{value=2.0, dtype=f32}, bias)", "logical_not(gt(x, z))"),
    *("logical_and(gt(x, z), gt(z, x))", "logical_or(gt(x, z), gt(z, bias))"),
    *("add(x, bias)", "mul(bias, x)", "add(x, mask)", "batch_norm(x, v, v, v, v){eps=0.1}"),
    *("adaptive_avg_pool2d(x){size=[2,3]}", "adaptive_avg_pool2d(x){size=[1,1]}"),
    *("mean(x){axes=[-2,-1], keepdim=true}", "sum(x){axes=[-3], keepdim=true}", "max(x){axes=[-2,-1], keepdim=true}"),
    *("addcmul(x, bias, z)", "addcmul(bias, x, mask)", "vector_norm(x){axes=[-2,-1], keepdim=true}"),
    "concat(mean(x){axes=[-2,-1], keepdim=true}, mean(z){axes=[-2,-1], keepdim=true}){axis=-3}",
    *("concat(x, z){axis=-3}", "slice(x){axis=-2, start=1, stop=4}", "slice(x){axis=-3, start=1, stop=4}"),
    *("pad(x){widths=[[1,1],[2,0]]}", "pad(x){widths=[[0,2],[0,0],[0,0]], value=1.5}"),
    *("flip(x){axes=[-1]}", "flip(x){axes=[-4,-3]}"),
    *("upsample_nearest2d(x){factors=[2,3]}", "upsample_bilinear2d(x){factors=[2,3]}"),
    *("max_pool2d(x){kernel=[3,3], stride=[2,2]}", "avg_pool2d(x){kernel=[3,3], stride=[2,2], padding=[1,1]}"),
    *(PADDED.format(mode="constant", value=",-inf"), PADDED.format(mode="reflect", value="")),
    'opaque(x){target="aten.clamp.default", arguments=[$0,0.1], types=[f32[2,4,6,5]]}',
]
READ = [
    *("mean(x){axes=[-2], keepdim=true}", "sum(x){axes=[-1], keepdim=true}", "max(x){axes=[-1], keepdim=true}"),
    *("concat(x, whole){axis=-3}", "concat(x, sum(z){axes=[-3], keepdim=true}){axis=-3}"),
    "concat(sum(z){axes=[-3], keepdim=true}, sum(z){axes=[-3], keepdim=true}){axis=-3}",
]
LOST = [
    *("contiguous(x)", "reshape(x){shape=[2,2,2,30]}"),
    PADDED.format(mode="circular", value=""),
]


HEADER = """graph(x: f32[2,4,6,5], z: f32[2,4,6,5]) {
  v = weight{key="v", type=f32[4]} bias = weight{key="bias", type=f32[1,4,1,1]}
  mask = weight{key="mask", type=f32[2,1,6,5]} whole = weight{key="whole", type=f32[2,4,6,5]}
"""
WEIGHTS = {"v": (4,), "bias": (1, 4, 1, 1), "mask": (2, 1, 6, 5), "whole": (2, 4, 6, 5)}


def _graph(result: str) -> Graph:
    return parse_graph(f"{HEADER} return {result} }}")


def _keeps(graph: Graph) -> bool:
    (plain,) = covers(graph.outputs[0].node, torch.device("cpu"), PLAIN)
    return CHANNELS_LAST in plain.formats


def _reads_either(graph: Graph) -> bool:
    (plain,) = covers(graph.outputs[0].node, torch.device("cpu"), PLAIN)
    return (Format.CHANNELS_LAST, Format.DENSE) in plain.formats


def _results(graph: Graph) -> list[Tensor]:
    """The outputs, of arguments that lie channels last."""
    images = [torch.randn(node.types[0].sizes).contiguous(memory_format=torch.channels_last) for node in graph.inputs]
    return run_graph(graph, images, {key: torch.rand(shape) for key, shape in WEIGHTS.items()})


def _gives_channels_last(graph: Graph) -> bool:
    (result,) = _results(graph)
    return result.is_contiguous(memory_format=torch.channels_last) or result.stride(-3) == 1  # a slice has gaps


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


@pytest.mark.parametrize("result", READ)
def test_what_reads_channels_last_and_gives_a_dense_result_is_said_to(result: str) -> None:
    graph = _graph(result)
    assert not _keeps(graph)
    assert _reads_either(graph)
    (made,) = _results(graph)
    assert made.is_contiguous()


def test_every_operator_that_is_said_to_keep_or_read_formats_is_tried() -> None:
    tried = {_graph(result).outputs[0].node.op.name for result in (*KEPT, *READ)}
    said = {name for name, op in DEFINED.items() if op.keeps_format or op.reads_formats}
    assert tried - {"opaque"} == said


VIEWED = {
    "concat": "concat(x, z){axis=-3}",
    "slice": "slice(x){axis=-2, start=1, stop=4}",
    "permute": "permute(x){order=[-1,-2]}",
    "reshape": "reshape(x){shape=[2,2,2,6,5]}",
    "flip": "flip(x){axes=[-1]}",
    "diagonal": "diagonal(slice(x){axis=-2, start=0, stop=5})",
    "diagonal_matrix": "diagonal_matrix(x)",
    "expand": "expand(x){shape=[3,2,4,6,5]}",
    "upsample_nearest2d": "upsample_nearest2d(x){factors=[1,1]}",
    "upsample_bilinear2d": "upsample_bilinear2d(x){factors=[1,1]}",
    "pad": "pad(x){widths=[[1,1]]}",
    "enlarge": "enlarge(x){kernel=[8,7]}",
    "contiguous": "contiguous(x)",
    "gather": "gather(x, cast(x){dtype=i64}){axis=-2}",
    "take": "take(x, constant{value=1.0, dtype=i64}){axis=-2}",
    "cast": "cast(x){dtype=f64}",
    "add": "add(x, constant{value=0.0, dtype=f32})",
    "max_pool2d": "max_pool2d(x){kernel=[1,1], stride=[1,1]}",
    "avg_pool2d": "avg_pool2d(x){kernel=[1,1], stride=[1,1]}",
    "sum": "sum(x){axes=[-1]}",
    "softmax": "softmax(x)",
    **{op.name: f"{op.name}(x)" for op in FUNCTIONS if op is not Cast},
}


@pytest.mark.parametrize("name", VIEWED)
def test_what_is_said_to_be_a_view_shares_memory_with_its_operand(name: str) -> None:
    graph = _graph(VIEWED[name])
    wide = torch.rand(2, 4, 6, 9)
    # Not dense, so that what asks for dense results does something.
    (result,) = run_graph(graph, [wide[..., 2:7], torch.rand(2, 4, 6, 5)], {})
    assert DEFINED[name].is_view == (result.untyped_storage().data_ptr() == wide.untyped_storage().data_ptr())


def test_all_movement_is_tried_for_views() -> None:
    assert {name for name, op in DEFINED.items() if op.is_movement or op.is_view} <= set(VIEWED)
