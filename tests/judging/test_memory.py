"""What a result's weights take in memory is told where it is known."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from fuzz.prices import InventedPrices
from taso_py.backend import NO_PLAN, build, fold
from taso_py.backend.plan import Plan, PlanStep
from taso_py.cost.choice import choose
from taso_py.driver import reporting
from taso_py.engines.table import ENGINES
from taso_py.frontend import import_module
from taso_py.judging.finalists import ORIGINAL
from taso_py.kernels.table import covers


def _finalist(name: str, runtime: str, *, packs: bool) -> Any:
    program = fold(import_module(nn.Linear(8, 8).eval(), (torch.randn(4, 8),)))
    plan = choose(program.graph, InventedPrices(0, fused=0.0)).plan.eager() if packs else NO_PLAN
    return SimpleNamespace(is_original=name == ORIGINAL, engine=ENGINES[runtime], module=build(program, plan))


@pytest.mark.parametrize(
    ("name", "runtime", "known"),
    [("packed", "eager", 4 * 64), (ORIGINAL, "eager", None), ("compiled", "inductor", None)],
)
def test_what_weights_take_as_kernels_have_packed_them(name: str, runtime: str, known: int | None) -> None:
    assert reporting._memory_bytes(_finalist(name, runtime, packs=True)) == known


@pytest.mark.parametrize("tile", ["mkl.linear", "onednn.linear"])
def test_a_weight_that_is_packed_is_counted_for_its_size(tile: str) -> None:
    program = fold(import_module(nn.Linear(8, 8).eval(), (torch.randn(4, 8),)))
    (node,) = (value.node for value in program.graph.outputs)
    known = [cover for cover in covers(node, torch.device("cpu")) if cover.name == tile]
    if not known:
        pytest.skip(f"there is no {tile} here")
    module = build(program, Plan({node: PlanStep(known[0])}).eager())
    finalist: Any = SimpleNamespace(is_original=False, engine=ENGINES["eager"], module=module)
    assert reporting._memory_bytes(finalist) == 4 * 64


def test_weights_that_no_kernel_packs_are_counted_once() -> None:
    assert reporting._memory_bytes(_finalist("plain", "eager", packs=False)) == 4 * (64 + 8)
