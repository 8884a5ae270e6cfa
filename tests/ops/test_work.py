"""The work of operators, counted from their definitions, against what PyTorch counts and against plain numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from taso_py.ir.node import Node
from taso_py.ir.types import DType
from taso_py.ops import work as counting
from taso_py.ops.table import parse_graph
from taso_py.ops.work import Work, item_bytes, region_work, work


def node(call: str, *types: str) -> Node:
    """The node of one call on operands ``a, b, ...`` of the types given."""
    names = "abcdef"[: len(types)]
    inputs = ", ".join(f"{name}: {type_}" for name, type_ in zip(names, types, strict=True))
    return parse_graph(f"graph({inputs}) {{\n  v = {call}\n  return v\n}}").outputs[0].node


def counted(fn: Callable[..., Tensor], *shapes: tuple[int, ...]) -> int:
    """What PyTorch counts: the multiply-adds of matrix products and convolutions, at two operations each."""
    with FlopCounterMode(display=False) as counter:
        fn(*(torch.zeros(shape) for shape in shapes))
    return counter.get_total_flops()


@pytest.mark.parametrize(
    ("attributes", "keywords", "image", "kernel"),
    [
        ("", {}, (2, 8, 10, 12), (6, 8, 3, 3)),
        ("{stride=[2,2]}", {"stride": 2}, (2, 8, 11, 12), (6, 8, 3, 3)),
        ("{groups=4}", {"groups": 4}, (1, 8, 10, 10), (12, 2, 3, 3)),
        ("{stride=[2,1], dilation=[1,2], groups=8}", {"stride": (2, 1), "dilation": (1, 2), "groups": 8},
         (1, 8, 9, 9), (8, 1, 3, 3)),
    ],
)  # fmt: skip
def test_convolutions_count_as_in_pytorch(
    attributes: str, keywords: dict[str, Any], image: tuple[int, ...], kernel: tuple[int, ...]
) -> None:
    types = [f"f32[{','.join(map(str, shape))}]" for shape in (image, kernel)]
    expected = counted(lambda x, w: F.conv2d(x, w, **keywords), image, kernel)
    assert work(node(f"conv2d(a, b){attributes}", *types)).flops == expected


def test_a_running_sum_counts_as_the_sum_does() -> None:
    assert work(node("cumsum(a){axis=-1}", "f32[3,5]")).flops == work(node("sum(a){axes=[-1]}", "f32[3,5]")).flops == 15
    assert work(node("cumsum(a){axis=-2}", "f32[1,5]")) == Work(5, 20, 20)
    # What is added up anew for each of them counts as often.
    causal, whole = (work(node(f"attention(a, a, a){form}", "f32[1,2,9,4]")).flops for form in ("{causal=true}", ""))
    assert causal is not None
    assert whole is not None
    assert whole / 2 < causal < whole


def test_products_with_padding_do_not_count() -> None:
    types = ("f32[1,3,7,8]", "f32[5,3,3,3]")
    padded = work(node("conv2d(a, b){padding=[1,1]}", *types))
    products = F.conv2d(torch.ones(1, 3, 7, 8), torch.ones(5, 3, 3, 3), padding=1).sum()
    assert padded.flops == 2 * int(products)
    assert 2 * int(products) < counted(lambda x, w: F.conv2d(x, w, padding=1), (1, 3, 7, 8), (5, 3, 3, 3))


def test_matrix_products_count_as_in_pytorch() -> None:
    assert work(node("matmul(a, b)", "f32[7,5]", "f32[5,9]")).flops == counted(torch.mm, (7, 5), (5, 9))
    batched = work(node("matmul(a, b)", "f32[2,3,7,5]", "f32[3,5,9]")).flops
    assert batched == counted(torch.matmul, (2, 3, 7, 5), (3, 5, 9))


def test_a_bias_is_one_addition_per_element() -> None:
    with_bias = work(node("linear(a, b, c)", "f32[4,6,5]", "f32[9,5]", "f32[9]")).flops
    assert with_bias == counted(F.linear, (4, 6, 5), (9, 5)) + 4 * 6 * 9


def test_attention_is_its_two_products_and_a_softmax() -> None:
    shapes = ((2, 7, 4), (2, 5, 4), (2, 5, 3))
    found = work(node("attention(a, b, c)", "f32[2,7,4]", "f32[2,5,4]", "f32[2,5,3]")).flops
    scores, rows = 2 * 7 * 5, 2 * 7
    # Scaling, exponential and row sum of the scores; a reciprocal per row, which every element of the result is
    # multiplied by.
    softmax = 3 * scores + rows + rows * 3
    assert found == counted(F.scaled_dot_product_attention, *shapes) + softmax


def test_keys_that_a_causal_mask_hides_do_not_count() -> None:
    size = 6
    full, causal = (
        work(node(f"attention(a, b, c){attributes}", *["f32[6,4]"] * 3)).flops for attributes in ("", "{causal=true}")
    )
    assert full is not None
    assert causal is not None
    assert full - causal == (2 * 4 + 2 * 4 + 3) * (size * (size - 1) // 2)


@pytest.mark.parametrize(
    ("call", "types", "expected"),
    [
        ("add(a, b)", ("f32[4,5]", "f32[5]"), 20),
        ("sub(a, b)", ("f32[4,5]", "f32[4,5]"), 20),
        ("relu(a)", ("f32[4,5]",), 20),
        ("silu(a)", ("f32[4,5]",), 40),
        ("cast(a){dtype=f16}", ("f32[4,5]",), 0),
        ("sum(a){axes=[-1]}", ("f32[4,5]",), 20),
        ("softmax(a)", ("f32[4,5]",), 20 + 20 + 4 + 20),
        # Mean: sum and share. Variance: difference, square, sum, share, epsilon, root. Then scale, weight and bias.
        ("layer_norm(a, b, c){axes=1, eps=1e-05}", ("f32[4,5]", "f32[5]", "f32[5]"), 20 + 4 + 60 + 12 + 60),
        ("concat(a, b){axis=-1}", ("f32[4,5]", "f32[4,3]"), 0),
        ("pad(a){widths=[[1,2]], value=3.0}", ("f32[4,5]",), 0),
        ("permute(a){order=[-1,-2]}", ("f32[4,5]",), 0),
        ("max_pool2d(a){kernel=[2,2], stride=[2,2]}", ("f32[1,1,4,4]",), 16),
    ],
)
def test_operations_by_hand(call: str, types: tuple[str, ...], expected: int) -> None:
    assert work(node(call, *types)).flops == expected


@pytest.mark.parametrize(
    ("call", "types", "read", "written"),
    [
        ("add(a, b)", ("f32[4,5]", "f32[5]"), 80 + 20, 80),
        ("add(a, b)", ("f16[4,5]", "f16[4,5]"), 80, 40),
        ("mul(a, a)", ("f32[4,5]",), 80, 80),
        ("concat(slice(a){axis=-1, start=0, stop=2}, a){axis=-1}", ("f32[4,5]",), 4 * 28, 4 * 28),
        ("reshape(a){shape=[0]}", ("f32[0,3,4]",), 0, 0),
        ("reshape(a){shape=[2,0]}", ("f32[0,2]",), 0, 0),
        ("slice(a){axis=-1, start=1, stop=3}", ("f32[4,5]",), 32, 32),
        ("expand(a){shape=[4,5]}", ("f32[1,5]",), 20, 80),
        # A 1x1 window with stride 2 looks at every fourth element of the image.
        ("conv2d(a, b){stride=[2,2]}", ("f32[1,3,8,8]", "f32[2,3,1,1]"), 4 * (48 + 6), 4 * 32),
        ("conv2d(a, b){stride=[2,2]}", ("f32[1,3,9,9]", "f32[2,3,3,3]"), 4 * (243 + 54), 4 * 32),
    ],
)
def test_bytes_are_those_of_the_elements_used(call: str, types: tuple[str, ...], read: int, written: int) -> None:
    found = work(node(call, *types))
    assert (found.read, found.written, found.moved) == (read, written, read + written)


def test_conditions_on_many_points_are_looked_at_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    one = node("attention(a, b, c){causal=true}", "f32[2,9,4]", "f32[2,7,4]", "f32[2,7,4]")
    whole = work(one)
    for points in (1, 10, 30, 1000):
        monkeypatch.setattr(counting, "AT_ONCE", points)
        counting._count.cache_clear()
        assert work(one) == whole


def test_an_operator_without_a_definition_has_bytes_but_no_operations() -> None:
    call = 'opaque(a){target="aten.cumsum.default", arguments=[$0,0], types=[f32[4,5]]}'
    assert work(node(call, "f32[4,5]")) == Work(None, 80, 80)
    twice = 'opaque(a, a){target="aten.equal.default", arguments=[$0,$1], types=[f32[4,5]]}'
    assert work(node(twice, "f32[4,5]")) == Work(None, 80, 80)
    lookup = 'opaque(a, b){target="aten.embedding.default", arguments=[$0,$1], types=[f32[2,5]]}'
    assert work(node(lookup, "f32[1000,5]", "i64[2]")) == Work(None, 40 + 16, 40)


def test_a_lookup_reads_the_rows_that_are_chosen() -> None:
    assert work(node("take(a, b){axis=-2}", "f32[1000,5]", "i64[2]")) == Work(0, 40 + 16, 40)
    assert work(node("take(a, b){axis=-2}", "f32[3,5]", "i32[2,4]")) == Work(0, 60 + 32, 160)
    assert work(node("take(a, b){axis=-2, wraps=1}", "f32[7,9,5]", "i64[2]")) == Work(0, 280 + 16, 280)


def test_a_region_does_not_move_what_stays_inside() -> None:
    graph = parse_graph("graph(a: f32[4,6], b: f32[5,6]) {\n  v = linear(a, b)\n  w = relu(v)\n  return w\n}")
    relu = graph.outputs[0].node
    linear = relu.inputs[0].node
    assert region_work([linear, relu], graph.outputs) == Work(2 * 4 * 5 * 6 + 20, 4 * (24 + 30), 80)
    assert region_work([relu], graph.outputs) == work(relu)


def test_sizes_of_elements_are_pytorchs() -> None:
    known = {"bool": torch.bool, "f8e4m3": torch.float8_e4m3fn, "bf16": torch.bfloat16, "c64": torch.complex64}
    assert {name: item_bytes(DType(name)) for name in known} == {name: d.itemsize for name, d in known.items()}


def test_concatenations_of_many_operands_are_counted() -> None:
    many = node(f"concat({', '.join(['a'] * 2000)}){{axis=-2}}", "f32[1,4]")
    assert work(many).flops == 0
    assert work(many).written == 32000
