"""Winograd's convolution: its algebra, what rounding costs, and where it may not be used."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from taso_py.backend.plan import Format, Packs
from taso_py.ir.node import Node, make
from taso_py.ir.operator import Input, Weight
from taso_py.ir.size import Dim, Open, open_size
from taso_py.ir.types import DType, TensorType
from taso_py.kernels import winograd
from taso_py.kernels.check import check
from taso_py.kernels.table import TRACED, covers
from taso_py.ops.contraction import Conv2d
from taso_py.ops.elementwise import Add, Relu, Silu

CPU = torch.device("cpu")
SAME = Conv2d((1, 1), (1, 1))


def _convolution(
    op: Conv2d = SAME,
    image: tuple[Dim, ...] = (1, 100, 20, 32),
    outputs: int = 100,
    *,
    size: int = 3,
    dtype: DType = DType.F32,
) -> Node:
    assert isinstance(image[1], int)
    assert isinstance(op.groups, int)
    weight = make(Weight("w", TensorType(dtype, (outputs, image[1] // op.groups, size, size)))).value
    return make(op, [make(Input("x", TensorType(dtype, image))).value, weight])


def _fits(node: Node) -> bool:
    return "winograd" in [cover.name for cover in covers(node, CPU)]


def _computed(x: Tensor, weight: Tensor) -> Tensor:
    """What the kernel gives for a convolution that keeps rows and columns."""
    node = _convolution(SAME, tuple(x.shape), weight.shape[0])
    (cover,) = (cover for cover in covers(node, CPU) if cover.name == "winograd")
    with torch.no_grad():
        return cover.bind([weight], Packs()).function(x.contiguous(memory_format=torch.channels_last))


def _error(result: Tensor, truth: Tensor) -> float:
    return float((result.double() - truth).abs().max() / truth.abs().max())


def test_results_are_sums_of_products_of_transforms() -> None:
    pixels, filters, results = winograd.transforms()
    chance = np.random.default_rng(0)
    for _ in range(10):
        row, weights = chance.integers(-9, 10, winograd.BLOCK), chance.integers(-9, 10, winograd.FILTER)
        found = results @ ((filters @ weights) * (pixels @ row))
        assert np.allclose(found, np.correlate(row, weights, "valid"), rtol=0, atol=1e-12)


def test_rounding_costs_a_fraction_of_what_it_does_at_the_usual_points(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 128, 24, 24, generator=generator).relu()
    weight = torch.randn(100, 128, 3, 3, generator=generator) / 34
    truth = functional.conv2d(x.double(), weight.double(), padding=1)
    error = _error(_computed(x, weight), truth)
    assert error < 32 * torch.finfo(torch.float32).eps
    monkeypatch.setattr(winograd, "POINTS", (0.0, 1.0, -1.0, 2.0, -2.0))
    winograd.planes.cache_clear()
    assert 2 * error < _error(_computed(x, weight), truth) < 1e-4
    monkeypatch.undo()
    winograd.planes.cache_clear()


@pytest.mark.parametrize("chunk_bytes", [1, 1 << 15, 1 << 30])
def test_blocks_are_transformed_some_rows_at_a_time(chunk_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = torch.randn(4, 100, 22, 7), torch.randn(101, 100, 3, 3)
    truth = functional.conv2d(x.double(), weight.double(), padding=1)
    monkeypatch.setattr(winograd, "CHUNK_BYTES", chunk_bytes)
    assert _error(_computed(x, weight), truth) < 1e-5


def test_images_of_all_sizes_are_convolved_right(monkeypatch: pytest.MonkeyPatch) -> None:
    chance, checked = random.Random(0), 0
    monkeypatch.setattr(winograd, "LEAST_CHANNELS", 1)
    monkeypatch.setattr(winograd, "LEAST_BLOCKS", 1)
    for _ in range(200):
        monkeypatch.setattr(winograd, "CHUNK_BYTES", chance.choice((1, 1 << 13, 1 << 20)))
        padding = chance.randint(0, 3), chance.randint(0, 3)
        height, width = (chance.randint(max(1, 3 - 2 * pad), 14) for pad in padding)
        node = _convolution(
            Conv2d((1, 1), padding), (chance.randint(1, 3), chance.randint(1, 5), height, width), chance.randint(1, 5)
        )
        other = make(Input("z", node.types[0])).value
        for root in (node, make(Relu(), [node.value]), make(Relu(), [make(Add(), [node.value, other]).value])):
            found = [cover for cover in covers(root, CPU) if cover.name == "winograd"]
            checked += len(found)
            for cover in found:
                with torch.no_grad():
                    check(cover, Format.CHANNELS_LAST, CPU)
    assert checked == 600


def _misfits() -> Iterator[tuple[str, Node]]:
    yield "stride", _convolution(Conv2d((1, 2), (1, 1)))
    yield "dilation", _convolution(Conv2d((1, 1), (1, 1), (2, 1)))
    yield "groups", _convolution(Conv2d((1, 1), (1, 1), (1, 1), 2), (1, 200, 20, 32), 200)
    yield "larger filter", _convolution(size=5)
    yield "few channels in", _convolution(SAME, (1, 64, 20, 32))
    yield "few channels out", _convolution(outputs=64)
    yield "few blocks", _convolution(SAME, (1, 100, 20, 20))
    yield "half precision", _convolution(dtype=DType.BF16)
    yield "open width", _convolution(SAME, (1, 100, 20, open_size(Open("x.3", 32, 1, None))))
    yield "another activation", make(Silu(), [_convolution().value])


@pytest.mark.parametrize("node", [pytest.param(node, id=name) for name, node in _misfits()])
def test_it_is_not_used_where_it_does_not_fit_or_cannot_pay(node: Node) -> None:
    assert not _fits(node)
    assert _fits(_convolution())
    assert _fits(make(Relu(), [_convolution().value]))


def test_autocast_does_not_make_transforms_of_half_precision() -> None:
    x, weight = torch.randn(4, 100, 12, 12), torch.randn(100, 100, 3, 3)
    expected = _computed(x, weight)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(_computed(x, weight), expected)


def test_a_compiler_does_not_trace_it() -> None:
    assert "winograd" not in [cover.name for cover in covers(_convolution(), CPU, TRACED)]


def test_an_infinite_pixel_is_nan_in_its_block_and_nowhere_else() -> None:
    """So the tile says that it is not direct; a sum of products would be infinite in nine results."""
    x, weight = torch.randn(4, 100, 12, 12), torch.randn(100, 100, 3, 3)
    x[0, 0, 6, 6] = math.inf  # row and column of one block of nine alone
    is_finite = torch.isfinite(_computed(x, weight))[0, 0]
    assert not is_finite[4:8, 4:8].any()
    assert is_finite[:4].all()
    assert is_finite[8:].all()
    assert not winograd.WINOGRAD.is_direct


def test_transforms_that_are_wrong_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    pixels, filters, results = winograd.transforms()
    for wrong in ((pixels, filters * 1.1, results), (pixels, filters[::-1].copy(), results)):
        monkeypatch.setattr(winograd, "transforms", lambda wrong=wrong: wrong)
        winograd.winograd_works.cache_clear()
        assert not winograd.winograd_works()
    monkeypatch.undo()
    winograd.winograd_works.cache_clear()
    assert winograd.winograd_works()
