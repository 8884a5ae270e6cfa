"""Calls that become operators of another rank, or several operators, go to the table and back bit for bit."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from taso_py.frontend import import_module
from taso_py.ir.node import Value
from taso_py.ir.operator import Constant
from taso_py.ops.normalization import BatchNorm
from tests.round_trips import Model, opaque_targets, operator_names, randn, round_trip


def origins(*values: Value) -> list[Value]:
    """What values are copies of."""
    return [origins(*value.node.inputs)[0] if value.node.inputs else value for value in values]


LINE, IMAGE, MATRIX = randn(2, 4, 11), randn(2, 4, 7, 6), randn(5, 6)

IN_TABLE: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "pooling along a line": (
        lambda s, x: (
            F.avg_pool1d(x, 2),
            F.avg_pool1d(x, 3, 2, 1, count_include_pad=False),
            F.avg_pool1d(x, 3, 2, 1, ceil_mode=True),
            F.max_pool1d(x, 2),
            F.max_pool1d(x, 3, 2, 1, 2),
            F.adaptive_avg_pool1d(x, 3),
            F.adaptive_avg_pool1d(x.mT, 1),
        ),
        (LINE,),
    ),
    "convolution along a line, padded by name": (
        lambda s, x, w: (F.conv1d(x, w, padding="same"), F.conv1d(x, w, padding="valid", stride=2)),
        (LINE, randn(3, 4, 5)),
    ),
    "convolution padded by name": (
        lambda s, x, w: (F.conv2d(x, w, padding="same", dilation=(2, 1)), F.conv2d(x, w, padding="valid", stride=2)),
        (IMAGE, randn(3, 4, 3, 5)),
    ),
    "rotations": (
        lambda s, x: (
            x.roll(1, -1),
            x.roll((1, -2), (2, 3)),
            x.roll((5, 3), (0, 0)) * 2,
            x.roll(13, 2),
            x.mT.roll((1, 1), (-1, 0)),
            x.roll(0, 1) + 1,
            x.int().roll(-1, 1),
        ),
        (IMAGE,),
    ),
    "copies of the whole": (
        lambda s, x: (
            x.repeat(1, 2, 1, 3),
            x.repeat(2, 1, 1, 1, 1) + 1,
            x.mT.repeat(2, 1, 1, 1),
            x[:1].repeat(3, 1, 1, 1),
            x[0, :, :1].tile(2, 4, 1),
            x.int().repeat(1, 1, 2, 1),
            x.repeat(1, 1, 1, 1).add_(1),
        ),
        (IMAGE,),
    ),
    "channels in another order": (
        lambda s, x: (
            F.channel_shuffle(x, 2),
            F.channel_shuffle(x, 4) + 1,
            F.channel_shuffle(x[:, :, 0] + 1, 2),
        ),
        (IMAGE,),
    ),
    "sums with a quotient": (
        lambda s, x, y: (torch.addcdiv(x, y, x), torch.addcdiv(y, x, y), torch.addcdiv(x.double(), x.double(), y + y)),
        (randn(3, 17), randn(17)),
    ),
    "sums with a product or a multiple": (
        lambda s, x, y: (
            torch.addcmul(x, y, x),
            torch.addcmul(y, x, x + 1),
            torch.addcmul(y[:1].half(), x.half(), y.half()),
            torch.addcmul(x.double(), y, x),
            torch.add(x, y, alpha=2),
            torch.add(y.bfloat16(), x.bfloat16(), alpha=0.3),
            torch.sub(y, x, alpha=-0.7),
            x.sub(y.double(), alpha=3),
        ),
        (randn(3, 17), randn(17)),
    ),
    "products added to": (
        lambda s, a, b, c: (
            torch.baddbmm(c, a, b),
            torch.baddbmm(c[:, :1], a, b, beta=0.5, alpha=0.3),
            torch.addmm(c[0], a[0], b[1], alpha=2),
            torch.addmm(c[0, 0], a[0], b[1], beta=-1),
            torch.addmm(c[0, :, :1], a[0].double(), b[1].double()) if c.dtype is torch.float64 else c,
        ),
        (randn(2, 3, 5), randn(2, 5, 4), randn(2, 3, 4)),
    ),
    "norms of vectors": (
        lambda s, x: (
            torch.linalg.vector_norm(x, 2, -1),
            x.norm(dim=1, keepdim=True),
            x.norm(),
            torch.norm(x, p=1, dim=(1, 2)),
            torch.linalg.norm(x[0]),
            torch.linalg.norm(x, dim=(0, 1)),
            torch.linalg.norm(x[0, 0], 1),
            x.half().norm(dim=-2),
            torch.linalg.vector_norm(x.mT, math.inf, (1, 2), True),
            torch.linalg.norm(x, math.inf, -1),
            F.normalize(x, dim=2),
        ),
        (IMAGE[0],),
    ),
    "the greatest alone": (
        lambda s, x: (x.max(-1)[0], x.max(0, keepdim=True).values, x.mT.max(1)[0]),
        (MATRIX,),
    ),
}
CARRIED: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...], list[str]]] = {
    "pooling without a batch": (lambda s, x: F.max_pool1d(x, 2), (MATRIX,), ["max_pool1d"]),
    "sums with a multiple of a product, or of integers": (
        lambda s, x: (torch.addcmul(x, x, x + 1, value=0.5), torch.addcmul(x.int(), x.int(), x.int())),
        (MATRIX,),
        ["addcmul", "addcmul"],
    ),
    "products added to nothing": (
        lambda s, x: (torch.addmm(x, x, x, beta=0), torch.addmm(x.int(), x.int(), x.int(), alpha=2)),
        (MATRIX[:, :5],),
        ["addmm", "addmm"],
    ),
    "other norms, and in another type": (
        lambda s, x: (
            x.norm(p=3, dim=1),
            torch.linalg.vector_norm(x, -math.inf, 0),
            torch.linalg.vector_norm(x, 2, 0, dtype=torch.float64),
            torch.linalg.norm(x, 1),
            torch.linalg.vector_norm(torch.fft.fft(x), 2, 0),
        ),
        (MATRIX,),
        [*["linalg_vector_norm"] * 3, "linalg_norm", "fft_fft", "linalg_vector_norm"],
    ),
    "channels of images in channels-last order": (
        lambda s, x: (F.channel_shuffle(x, 2), F.channel_shuffle(x, 2).relu().mean((2, 3))),
        (IMAGE.to(memory_format=torch.channels_last),),
        ["channel_shuffle"],
    ),
    "copies of nothing": (lambda s, x: x.repeat(2, 0), (MATRIX,), ["repeat"]),
    "rotations of all elements": (lambda s, x: x.roll(1), (MATRIX,), ["roll"]),
    "sums with a multiple of a quotient, and in half precision": (
        lambda s, x: (torch.addcdiv(x, x, x + 1, value=0.5), torch.addcdiv(x.half(), x.half(), x.half())),
        (MATRIX,),
        ["addcdiv", "addcdiv"],
    ),
    "the greatest and its place": (lambda s, x: (x.max(1), x.max(0)[1]), (MATRIX,), ["max", "max"]),
}


@pytest.mark.parametrize("name", IN_TABLE)
def test_forms_of_the_table(name: str) -> None:
    function, inputs = IN_TABLE[name]
    assert opaque_targets(round_trip(Model(function), *inputs)) == []


@pytest.mark.parametrize("name", CARRIED)
def test_forms_outside_the_table(name: str) -> None:
    function, inputs, targets = CARRIED[name]
    assert opaque_targets(round_trip(Model(function), *inputs)) == targets


@pytest.mark.parametrize("weight", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(2, 4, 7, 6), (2, 4, 11), (5, 4)])
def test_normalization_without_scale_or_shift(weight: bool, bias: bool, shape: tuple[int, ...]) -> None:
    def normalized(s: Any, x: Tensor) -> Tensor:
        return F.batch_norm(x, s.mean, s.variance, s.weight if weight else None, s.bias if bias else None)

    state = {name: randn(4).abs() + place for place, name in enumerate(("mean", "variance", "weight", "bias"))}
    program = round_trip(Model(normalized, **state), randn(*shape))
    assert opaque_targets(program) == []
    (node,) = (node for node in program.graph.nodes if isinstance(node.op, BatchNorm))
    numbers = [value.node.op.value for value in origins(*node.inputs[1:3]) if isinstance(value.node.op, Constant)]
    assert numbers == [1.0] * (not weight) + [0.0] * (not bias)


def test_normalization_by_the_statistics_of_the_batch_stays_opaque() -> None:
    program = import_module(Model(lambda s, x: F.batch_norm(x, None, None, training=True)), (IMAGE,), {})
    assert "batch_norm" not in operator_names(program)


@pytest.mark.parametrize(
    ("parameter", "sliced", "read"),
    [
        ((1, 4, 1, 1), slice(None), (4, 1, 1)),
        ((1, 1, 6), slice(None), (6,)),
        ((1, 1, 1), slice(None), (1,)),
        ((2, 4, 1, 1), slice(None), (2, 4, 1, 1)),
        ((1, 1, 2, 4, 7, 6), slice(None), (1, 1, 2, 4, 7, 6)),  # the result has as many axes
        ((1, 4, 7, 6), slice(1), (1, 4, 7, 6)),  # it does not broadcast
    ],
)
def test_parameters_lose_axes_that_only_broadcast(
    parameter: tuple[int, ...], sliced: slice, read: tuple[int, ...]
) -> None:
    model = Model(lambda s, x: (x[sliced] * s.w, s.w - x[sliced]), w=nn.Parameter(randn(*parameter)))
    program = round_trip(model, IMAGE)
    assert opaque_targets(program) == []
    for value in program.graph.outputs:
        (static,) = (operand for operand in value.node.inputs if operand.node.is_static)
        assert static.type.shape == read


def test_expanded_operands_are_read_as_they_were_before() -> None:
    def forward(s: Any, x: Tensor) -> tuple[Tensor, ...]:
        rows, number = x[:, :, :1], x[0, 0, 0, 0]
        wide = rows.expand_as(x)
        return x / wide, wide - wide, x * number.expand_as(x), x + wide

    program = round_trip(Model(forward), IMAGE)
    one, other, third, sum_ = (value.node.inputs for value in program.graph.outputs)
    full, rows = (2, 4, 7, 6), (2, 4, 1, 6)
    assert [operand.type.shape for operand in one] == [full, rows]
    assert [operand.type.shape for operand in other] == [rows, full]
    assert [operand.type.shape for operand in sum_] == [full, full]  # as kernels of products add it
    assert [operand.type.shape for operand in third] == [full, full]  # a number alone is computed with otherwise
