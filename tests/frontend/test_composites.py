"""Composite operators of which engines know the parts are imported as their parts, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.round_trips import Model, opaque_targets, round_trip


def randn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


# What is left opaque is not composite.
COMPOSITES: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...], set[str]]] = {
    "products": (
        lambda s, x, y: (
            torch.outer(x[0], y[0]),
            torch.inner(x, y),
            torch.kron(x, y),
            torch.linalg.multi_dot([x, y.mT, x]),
        ),
        (randn(3, 4), randn(3, 4) + 1),
        set(),
    ),
    "sums of products": (
        lambda s, x, y: (torch.einsum("ij,kj->ik", x, y), torch.tensordot(x, y.mT, 1)),
        (randn(3, 4), randn(2, 4)),
        set(),
    ),
    "similarities and distances": (
        lambda s, x, y: (F.cosine_similarity(x, y, 0, 0.1), F.pairwise_distance(x, y)),
        (randn(3, 4), randn(3, 4)),
        {"scalar_tensor"},
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
    "neighbours": (
        lambda s, x: (x.diff(), x.diff(2, 0), x.diff(prepend=x[:, :1]), torch.trapezoid(x), torch.trapezoid(x, x * 2)),
        (randn(3, 4),),
        set(),
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


@pytest.mark.parametrize("shape", [(3, 4), (4,)])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("cell", [nn.LSTMCell, nn.GRUCell, nn.RNNCell, partial(nn.RNNCell, nonlinearity="relu")])
def test_steps_of_recurrent_layers_are_their_parts(
    cell: Callable[..., nn.Module], bias: bool, shape: tuple[int, ...]
) -> None:
    program = round_trip(cell(4, 5, bias=bias).eval(), randn(*shape))
    assert {*opaque_targets(program)} == {"zeros"}  # the first state, which the module makes
