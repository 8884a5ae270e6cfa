"""Layouts: operands that are views are read with the strides that they have in the model."""

import torch

from taso_py.kernels.layout import Layouts, random_operands
from taso_py.kernels.tile import ATEN, timed_call
from taso_py.ops.table import parse_graph

CPU = torch.device("cpu")
HEADER = 'graph(x: f32[2,3,4], w: f32[5,4], i: i64[7]) { e = weight{key="e", type=f16[9,8]}'


def _node(expression: str):  # noqa: ANN202
    return parse_graph(f"{HEADER} return {expression} }}").outputs[0].node


def test_views_have_strides_and_other_values_are_dense() -> None:
    transposed = _node("matmul(permute(x){order=[-1,-2]}, x)")
    left, right = random_operands(transposed, CPU)
    assert left is not None
    assert right is not None
    assert (left.shape, left.stride()) == ((2, 4, 3), (12, 1, 4))
    assert right.is_contiguous()
    assert Layouts().signature(transposed) == "f32[2,4,3]:12x1x4, f32[2,3,4]"


def test_strides_are_part_of_what_a_latency_depends_on() -> None:
    layouts = Layouts()
    dense, sliced = _node("relu(x)"), _node("relu(slice(x){axis=-1, start=0, stop=4, step=1})")
    narrow = _node("relu(slice(concat(x, x){axis=-1}){axis=-1, start=0, stop=4})")
    assert layouts.signature(dense) == layouts.signature(sliced) != layouts.signature(narrow)


def test_weights_are_told_apart() -> None:
    node = _node("relu(e)")
    assert Layouts().signature(node) == "weight f16[9,8]"


def test_constants_stay_numbers_and_indices_are_valid() -> None:
    scaled = _node("mul(x, constant{value=2.5, dtype=f32})")
    assert [operand is None for operand in random_operands(scaled, CPU)].count(True) == 1
    lookup = _node(
        'opaque(e, i){target="aten.embedding.default", arguments=[$0,$1], types=[f16[7,8]]}',
    )
    (rows,) = timed_call(ATEN, lookup, CPU, 2**20)()
    assert (rows.shape, rows.dtype) == ((7, 8), torch.float16)


def test_weights_that_are_expanded_can_be_timed() -> None:
    node = _node("add(x, expand(sum(cast(e){dtype=f32}){axes=[-2,-1]}){shape=[3,4]})")
    assert timed_call(ATEN, node, CPU, 2**20)()[0].shape == (2, 3, 4)


def test_a_timed_call_computes_the_operator() -> None:
    linear = _node("linear(x, w)")
    x, w = random_operands(linear, CPU)
    assert x is not None
    assert w is not None
    (result,) = timed_call(ATEN, linear, CPU, 2**20)()
    assert torch.equal(result, torch.nn.functional.linear(x, w))
