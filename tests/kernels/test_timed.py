"""Kernels that fail on operands of their own types are known from one call of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from experiments import correctness
from experiments.harness import Settings
from taso_py.backend.plan import Bound, Format, Packs
from taso_py.cost import model
from taso_py.cost.database import LatencyDatabase
from taso_py.fuzz import prices
from taso_py.ir.node import Node
from taso_py.kernels.table import covers
from taso_py.kernels.tile import Cover
from taso_py.kernels.timed import Trials
from taso_py.ops.table import parse_graph
from taso_py.runtime import calibrating
from taso_py.runtime.source import Source

CPU = torch.device("cpu")
GRAPH = parse_graph('graph(x: f32[2,4]) { return relu(linear(x, weight{key="w", type=f32[4,4]})) }')


@pytest.fixture
def packed() -> list[str]:
    """What was packed, by the name of the tile."""
    return []


@pytest.fixture
def fails() -> set[str]:
    """The names of tiles whose kernels fail when they are called."""
    return set()


@pytest.fixture
def broken(packed: list[str], fails: set[str]) -> Callable[..., list[Cover]]:
    """The covers of a node, some of whose kernels fail."""

    def called(*_: object) -> Tensor:
        raise RuntimeError("no plan for these sizes\nand more")

    def bound(cover: Cover) -> Callable[[Sequence[Tensor], Packs], Bound]:
        def bind(statics: Sequence[Tensor], packs: Packs) -> Bound:
            packed.append(cover.name)
            return Bound(cover.name, called) if cover.name in fails else cover.bind(statics, packs)

        return bind

    def found(node: Node, device: torch.device, tiles: object) -> list[Cover]:
        return [replace(cover, binder=cover.binder and bound(cover)) for cover in covers(node, device)]

    return found


def test_each_is_tried_once(
    broken: Callable[..., list[Cover]], packed: list[str], fails: set[str], caplog: pytest.LogCaptureFixture
) -> None:
    fails.add("onednn.linear")
    trials = Trials(CPU)
    for _ in range(2):
        found = [(cover.name, trials.runs(cover, Format.DENSE)) for cover in broken(GRAPH.outputs[0].node, CPU, ())]
        assert found == [("aten", True), ("onednn.linear", False)]
    assert packed == ["onednn.linear"]
    assert "onednn.linear fails on its operands and is not used: no plan for these sizes" in caplog.text
    other = parse_graph('graph(x: f32[3,4]) { return relu(linear(x, weight{key="w", type=f32[4,4]})) }')
    fails.clear()
    assert all(trials.runs(cover, Format.DENSE) for cover in broken(other.outputs[0].node, CPU, ()))


@pytest.mark.parametrize("failing", [False, True])
def test_the_network_is_run_by_kernels_that_run(
    broken: Callable[..., list[Cover]], fails: set[str], monkeypatch: pytest.MonkeyPatch, failing: bool
) -> None:
    fails |= {"onednn.linear", "mkl.linear"} if failing else set()
    monkeypatch.setattr(model, "covers", broken)
    with LatencyDatabase(":memory:") as database:
        plan = calibrating._FewestCalls(CPU, database).plan(GRAPH)
    kernels = {step.kernel.name for step in plan.steps.values() if step.kernel}
    assert kernels == (set() if failing else {"onednn.linear"})


class Layers(nn.Module):
    """A linear layer and what is fused with it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.linear(x))


def test_correctness_is_tried_with_kernels_that_run(
    broken: Callable[..., list[Cover]], fails: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prices, "covers", broken)
    monkeypatch.setattr(correctness, "read_database", list)
    monkeypatch.setattr(correctness, "FUSED", 0.0)
    source = Source("model", Layers().eval(), (torch.rand(2, 4),))
    settings = Settings("cpu", quick=True, out=Path(), seed=0)
    with torch.no_grad():
        assert correctness._invented(source, 10, settings)["kernels"] > 0
        fails |= {"onednn.linear", "mkl.linear"}
        row = correctness._invented(source, 10, settings)
    assert row["passed"]
    assert row["kernels"] == 0
