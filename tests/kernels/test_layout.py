"""Layouts: operands that are views are read with the strides that they have in the model."""

from collections.abc import Sequence

import torch

from taso_py.backend.plan import Format
from taso_py.ir.node import Node
from taso_py.kernels.layout import Layouts, random_operands
from taso_py.kernels.table import covers
from taso_py.kernels.timed import timed_call
from taso_py.ops.table import parse_graph

CPU = torch.device("cpu")
HEADER = 'graph(x: f32[2,3,4], w: f32[5,4], i: i64[7]) { e = weight{key="e", type=f16[9,8]}'


def _node(expression: str):  # noqa: ANN202
    return parse_graph(f"{HEADER} return {expression} }}").outputs[0].node


def _called(node: Node) -> Sequence[torch.Tensor]:
    """What the plain cover of a node computes on the operands made up for it."""
    plain, *_ = covers(node, CPU)
    return timed_call(plain, Format.DENSE, CPU, 2**20)()


def test_views_have_strides_and_other_values_are_dense() -> None:
    transposed = _node("matmul(permute(x){order=[-1,-2]}, x)")
    left, right = random_operands(transposed.inputs, CPU)
    assert left is not None
    assert right is not None
    assert (left.shape, left.stride()) == ((2, 4, 3), (12, 1, 4))
    assert right.is_contiguous()
    assert Layouts().signature(transposed.inputs) == "f32[2,4,3]:12x1x4, f32[2,3,4]"


def test_strides_are_part_of_what_a_latency_depends_on() -> None:
    layouts = Layouts()
    dense, sliced = _node("relu(x)"), _node("relu(slice(x){axis=-1, start=0, stop=4, step=1})")
    narrow = _node("relu(slice(concat(x, x){axis=-1}){axis=-1, start=0, stop=4})")
    texts = [layouts.signature(node.inputs) for node in (dense, sliced, narrow)]
    assert texts[0] == texts[1] != texts[2]


def test_channels_last_is_kept_by_slices_and_told_apart() -> None:
    image = parse_graph("graph(x: f32[2,8,3,3]) { return relu(slice(x){axis=-3, start=0, stop=4}) }").outputs[0].node
    (sliced,) = random_operands(image.inputs, CPU, Format.CHANNELS_LAST)
    assert sliced is not None
    assert (sliced.shape, sliced.stride()) == ((2, 4, 3, 3), (72, 1, 24, 8))
    texts = [Layouts().signature(image.inputs, format_) for format_ in Format]
    assert texts == ["f32[2,4,3,3]:72x9x3x1", "f32[2,4,3,3]:72x1x24x8"]


def test_weights_are_told_apart() -> None:
    node = _node("relu(e)")
    assert Layouts().signature(node.inputs) == "weight f16[9,8]"


def test_constants_stay_numbers_and_indices_are_valid() -> None:
    scaled = _node("mul(x, constant{value=2.5, dtype=f32})")
    assert [operand is None for operand in random_operands(scaled.inputs, CPU)].count(True) == 1
    lookup = _node("take(e, i){axis=-2}")
    (rows,) = _called(lookup)
    assert (rows.shape, rows.dtype) == ((7, 8), torch.float16)


def test_weights_that_are_expanded_can_be_timed() -> None:
    node = _node("add(x, expand(sum(cast(e){dtype=f32}){axes=[-2,-1]}){shape=[3,4]})")
    assert _called(node)[0].shape == (2, 3, 4)


def test_a_timed_call_computes_the_operator() -> None:
    linear = _node("linear(x, w)")
    x, w = random_operands(linear.inputs, CPU)
    assert x is not None
    assert w is not None
    (result,) = _called(linear)
    assert torch.equal(result, torch.nn.functional.linear(x, w))


def test_a_timed_lookup_reads_rows_all_over_the_table() -> None:
    node = _node("take(x, reshape(i){shape=[7]}){axis=-1}")
    (found,) = _called(node)
    assert len(found[0, 0].unique()) == 4  # all features
    chosen = _node("gather(x, expand(reshape(i){shape=[7]}){shape=[2,3,7]}){axis=-1}")
    (elements,) = _called(chosen)
    assert len(elements[0, 0].unique()) == 4
    table = _node("take(e, slice(i){axis=-1, start=0, stop=3}){axis=-2}")
    (rows,) = _called(table)
    assert len(rows.unique(dim=0)) == 3
