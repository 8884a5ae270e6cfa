"""Composite operators of which engines know the parts are imported as their parts, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.round_trips import Model, opaque_targets, randn, round_trip

# What is left opaque is not composite.
COMPOSITES: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...], set[str]]] = {
    "products": (
        lambda s, x, y: (torch.inner(x, y), torch.linalg.multi_dot([x, y.mT, x])),
        (randn(3, 4), randn(3, 4) + 1),
        set(),
    ),
    "sums of products": (
        lambda s, x, y: (torch.einsum("ij,kj->ik", x, y), torch.tensordot(x, y.mT, 1)),
        (randn(3, 4), randn(2, 4)),
        set(),
    ),
    "statistics": (
        lambda s, x: (
            x.var(),
            x.var(1),
            x.std(),
            x.std((-1, -2), unbiased=False),
            *torch.var_mean(x, 1),
            *torch.std_mean(x, 0),
        ),
        (randn(2, 3, 4),),
        {"var", "std", "var_mean", "std_mean"},
    ),
    "grids": (
        lambda s, x, y: (
            *torch.meshgrid(x, y, indexing="ij"),
            *torch.meshgrid(x, y, indexing="xy"),
            *torch.meshgrid([x, y]),
            *torch.broadcast_tensors(x[:, None], y),
        ),
        (randn(3), randn(4)),
        set(),
    ),
    "cells of recurrent networks": (
        lambda s, x, h, w, v: (
            *torch.lstm_cell(x, (h, h), w, v, w[:, 0], v[:, 0]),
            torch.gru_cell(x, h, w[:9], v[:9]),
            torch.rnn_tanh_cell(x, h, w[:3], v[:3], w[:3, 0]),
            torch.rnn_relu_cell(x, h, w[:3], v[:3]),
            *torch.unsafe_split(w, 4),
            *torch.unsafe_split_with_sizes(w, [2, 3], 1),
            *torch.unsafe_chunk(w, 2, 1),
        ),
        (randn(2, 5), randn(2, 3), randn(12, 5), randn(12, 3)),
        set(),
    ),
    "elements along an axis": (
        lambda s, x: torch.take_along_dim(x, torch.tensor([[2, 0]]), 1),
        (randn(2, 3),),
        {"remainder"},
    ),
}


@pytest.mark.filterwarnings("ignore:torch.meshgrid")
@pytest.mark.parametrize("name", COMPOSITES)
def test_composites_are_their_parts(name: str) -> None:
    function, inputs, expected = COMPOSITES[name]
    assert {*opaque_targets(round_trip(Model(function), *inputs))} == expected
