"""Calls on images, and bags of rows, as cases for the rows of the lowering to ONNX."""

from __future__ import annotations

import math
from typing import Any

import torch

from tests.backend.onnx_calls import IMAGE, Call, call, first, floats


def _images() -> list[Call]:
    line, volume = floats(2, 4, 11), floats(1, 2, 5, 6, 7)
    found: list[Call] = []
    for name, x, size in (("1d", line, [22]), ("2d", IMAGE, [5, 9]), ("3d", volume, [10, 8, 3])):
        exact = f"_upsample_nearest_exact{name}"
        found += [call(f"{exact}.default", x, size), call(f"{exact}.vec", x, size, None)]
        found.append(call(f"{exact}.vec", x, None, [1.7] * len(size)))
    for padding in ("same", "valid"):
        found += [
            call("conv1d.padding", line, floats(6, 2, 4), floats(6), [1], padding, [2], 2),
            call("conv2d.padding", IMAGE, floats(6, 4, 3, 2), None, [1], padding, [1, 2]),
            call("conv3d.padding", volume, floats(3, 2, 2, 3, 1), floats(3), [1], padding),
        ]
    for corners in (False, True):
        found += [
            call("affine_grid_generator.default", floats(2, 2, 3), [2, 3, 5, 4], corners),
            call("affine_grid_generator.default", floats(1, 3, 4), [1, 3, 2, 5, 4], corners),
        ]
    return [
        *found,
        call("conv2d.padding", IMAGE, floats(6, 4, 3, 3), None, [2, 1], "valid"),
        first(call("adaptive_max_pool1d.default", line, [4])),
        first(call("adaptive_max_pool2d.default", IMAGE, [3, 4])),
        first(call("adaptive_max_pool1d.default", torch.tensor([[0.0, math.nan, 1.0, -math.inf, 2.0]]), [3])),
        first(call("adaptive_max_pool2d.default", IMAGE[0], [7, 2])),
        first(call("adaptive_max_pool3d.default", volume, [2, 4, 7])),
        call("pixel_shuffle.default", IMAGE[0], 2),
        call("pixel_shuffle.default", floats(2, 3, 4, 2, 3), 2),
        call("pixel_unshuffle.default", floats(3, 4, 6), 2),
        call("pixel_unshuffle.default", floats(2, 1, 3, 4, 6), 2),
    ]


def _bags() -> list[Call]:
    table, indices = floats(9, 4), torch.tensor([1, 8, 0, 3, 3, 5, 8])
    offsets = torch.tensor([0, 2, 2, 3, 7])
    """The second bag and the last one are empty."""

    def bag(mode: int, weights: Any = None, *padding: Any, starts: Any = offsets, last: bool = False) -> Call:
        form = "padding_idx" if padding else "default"
        return first(call(f"embedding_bag.{form}", table, indices, starts, False, mode, False, weights, last, *padding))

    found = [bag(mode, None, *padding) for mode in (0, 1) for padding in ((), (None,), (8,), (-1,))]
    return [
        *found,
        bag(0, floats(7, seed=2)),
        bag(0, floats(7, seed=2), 3),
        bag(1, starts=torch.tensor([0, 2, 7]), last=True),
        bag(0, starts=offsets.int()),
    ]


CASES = [*_images(), *_bags()]
