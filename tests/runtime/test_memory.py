"""What a result's weights take in memory is told where it is known."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from taso_py.backend import build, fold
from taso_py.cost.choice import choose
from taso_py.frontend import import_module
from taso_py.fuzz.prices import InventedPrices
from taso_py.runtime import optimize
from taso_py.runtime.trial import ORIGINAL


@pytest.mark.parametrize(
    ("name", "runtime", "known"),
    [("packed", "eager", 4 * 64), (ORIGINAL, "eager", None), ("compiled", "inductor", None)],
)
def test_what_weights_take_as_kernels_have_packed_them(name: str, runtime: str, known: int | None) -> None:
    program = fold(import_module(nn.Linear(8, 8).eval(), (torch.randn(4, 8),)))
    module = build(program, choose(program.graph, InventedPrices(0, fused=0.0)).plan.eager())
    finalist: Any = SimpleNamespace(name=name, runtime=runtime, module=module)
    assert optimize._memory_bytes(finalist) == known


def test_weights_that_no_kernel_packs_are_counted_once() -> None:
    program = fold(import_module(nn.Linear(8, 8).eval(), (torch.randn(4, 8),)))
    finalist: Any = SimpleNamespace(name="plain", runtime="eager", module=build(program))
    assert optimize._memory_bytes(finalist) == 4 * (64 + 8)
