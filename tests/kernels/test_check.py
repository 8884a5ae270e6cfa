"""Kernels that fail on operands of their own types, or are wrong there, are known from one call of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from experiments import correctness
from experiments.harness import Settings
from fuzz import prices
from taso_py.backend.plan import BoundKernel, Format, Packs
from taso_py.cost import model
from taso_py.driver import calibrating
from taso_py.ir.node import Node
from taso_py.kernels import mkl, onednn
from taso_py.kernels.check import KernelChecks, WrongKernelError, check
from taso_py.kernels.table import covers
from taso_py.kernels.tile import Cover
from taso_py.latency.database import LatencyDatabase
from taso_py.models.source import Source
from taso_py.ops.table import parse_graph
from tests.kernels.doctored import doctored

CPU = torch.device("cpu")
GRAPH = parse_graph('graph(x: f32[2,4]) { return relu(linear(x, weight{key="w", type=f32[4,4]})) }')


ADDED = parse_graph(
    'graph(x: f32[2,8,6,6], z: f32[2,8,6,6]) { w = weight{key="w", type=f32[8,8,3,3]} '
    "return relu(add(conv2d(x, w){padding=[1,1]}, z)) }"
)


def _added() -> Cover:
    """A convolution with an addition."""
    (cover,) = (cover for cover in covers(ADDED.outputs[0].node, CPU) if cover.binder is not None)
    return cover


def _aside(kernel: Callable[..., Tensor], x: Tensor, z: Tensor) -> Tensor:
    return kernel(x, z.clone(memory_format=torch.channels_last))


def _onto(kernel: Callable[..., Tensor], x: Tensor, z: Tensor) -> Tensor:
    result = kernel(x, z)
    return z.copy_(result)


def _harmful(kernel: Callable[..., Tensor], x: Tensor, z: Tensor) -> Tensor:
    result = kernel(x, z)
    x.zero_()
    return result


WRONG: dict[str, tuple[Callable[..., object], Callable[..., object] | None]] = {
    "it is off by": (lambda kernel, x, z: kernel(x, z) * 1.01, None),
    "it is off by nan": (lambda kernel, x, z: kernel(x, z) * torch.nan, None),
    "it is off by [0-9]": (lambda kernel, x, z: kernel(x, torch.zeros_like(z)), None),
    "it gives torch.float64": (lambda kernel, x, z: kernel(x, z).double(), None),
    "it gives torch.float32 of .1, 8, 6, 6.": (lambda kernel, x, z: kernel(x[:1], z[:1]), None),
    "its result is not channels_last": (lambda kernel, x, z: kernel(x, z).contiguous(), None),
    "it writes to its operands": (_onto, None),
    "its result is not in the operand": (lambda kernel, x, z: kernel(x, z), _aside),
    "it writes to its": (lambda kernel, x, z: kernel(x, z), _harmful),
}


@pytest.mark.parametrize("problem", WRONG)
def test_a_kernel_that_is_wrong_is_told_why(problem: str) -> None:
    cover = doctored(_added(), *WRONG[problem])
    with torch.no_grad(), pytest.raises(WrongKernelError, match=problem):
        check(cover, Format.CHANNELS_LAST, CPU)


TRANSPOSED = parse_graph(
    "graph(x: f32[1,3,4,5], y: f32[1,3,4,5]) { z = constant{value=0.3, dtype=f32} "
    "return add(permute(x){order=[-4,-2,-1,-3]}, mul(permute(y){order=[-4,-2,-1,-3]}, z)) }"
)


def test_a_result_may_be_laid_out_as_that_of_plain_operators() -> None:
    (cover,) = (cover for cover in covers(TRANSPOSED.outputs[0].node, CPU) if cover.binder is not None)
    with torch.no_grad():
        check(cover, Format.DENSE, CPU)
        check(doctored(cover, lambda kernel, x, z: kernel(x, z).contiguous(), None), Format.DENSE, CPU)
        for order in ((0, 1, 3, 2), (0, 2, 1, 3)):  # neither dense nor as the operands are
            with pytest.raises(WrongKernelError, match="its result is not dense"):
                check(doctored(cover, _stored(order), None), Format.DENSE, CPU)


def _stored(order: Sequence[int]) -> Callable[..., Tensor]:
    """The kernel, with the axes of its result in another order in memory, which is its own inverse."""
    return lambda kernel, x, z: kernel(x, z).permute(order).contiguous().permute(order)


@pytest.mark.parametrize("reads", Format)
def test_a_kernel_that_is_right_passes(reads: Format) -> None:
    with torch.no_grad():
        check(doctored(_added(), lambda kernel, x, z: kernel(x, z), lambda kernel, x, z: kernel(x, z)), reads, CPU)


def test_what_is_read_twice_is_the_same() -> None:
    graph = parse_graph(
        'graph(x: f32[2,8,6,6]) { return add(x, conv2d(x, weight{key="w", type=f32[8,8,3,3]}){padding=[1,1]}) }'
    )
    (cover,) = (cover for cover in covers(graph.outputs[0].node, CPU) if cover.binder is not None)
    assert len(cover.operands) == 2
    with torch.no_grad():
        check(cover, Format.CHANNELS_LAST, CPU)


def test_what_a_library_computes_wrong_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch 2.13 packs convolutions of one channel wrong that step across by more than down and give one column."""
    graph = parse_graph(
        'graph(x: f32[2,1,6,3]) { return conv2d(x, weight{key="w", type=f32[4,1,2,2]}){stride=[1,2], padding=[0,0]} }'
    )
    monkeypatch.setattr(onednn, "_is_packed_right", lambda *_: True)
    (cover,) = (cover for cover in covers(graph.outputs[0].node, CPU) if cover.name == "onednn.conv")
    x, weight = torch.rand(2, 1, 6, 3), torch.rand(4, 1, 2, 2)
    with torch.no_grad():
        result = cover.bind([weight], Packs()).function(x)
    is_right = torch.allclose(result, nn.functional.conv2d(x, weight, stride=(1, 2)), atol=1e-4)
    assert KernelChecks(CPU).runs(cover, Format.DENSE) == is_right


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

    def bound(cover: Cover) -> Callable[[Sequence[Tensor], Packs], BoundKernel]:
        def bind(statics: Sequence[Tensor], packs: Packs) -> BoundKernel:
            packed.append(cover.name)
            return BoundKernel(cover.name, called) if cover.name in fails else cover.bind(statics, packs)

        return bind

    def found(node: Node, device: torch.device, tiles: object) -> list[Cover]:
        return [replace(cover, binder=cover.binder and bound(cover)) for cover in covers(node, device)]

    return found


def test_each_is_tried_once(
    broken: Callable[..., list[Cover]], packed: list[str], fails: set[str], caplog: pytest.LogCaptureFixture
) -> None:
    fails.add("onednn.linear")
    trials = KernelChecks(CPU)
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
        plan = calibrating._FewestCalls(CPU, database).without_wrong(GRAPH).plan(GRAPH)
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
        assert correctness._check_at_random_prices(source, 10, settings)["kernels"] > 0
        fails |= {"onednn.linear", "mkl.linear"}
        row = correctness._check_at_random_prices(source, 10, settings)
    assert row["passed"]
    assert row["kernels"] == 0


@pytest.fixture
def double() -> Iterator[None]:
    """Double precision is PyTorch's default, and nothing is known yet of kernels."""
    torch.set_default_dtype(torch.float64)
    caches = (mkl.linear_works, mkl._unread, onednn.linear_works, onednn.convolution_works, onednn.overwriting_works)
    for known in caches:
        known.cache_clear()
    yield
    torch.set_default_dtype(torch.float32)
    for known in caches:
        known.cache_clear()


@pytest.mark.usefixtures("double")
def test_kernels_are_right_whatever_the_default_element_type_is() -> None:
    found = [cover for graph in (GRAPH, ADDED) for node in graph.nodes for cover in covers(node, CPU)]
    assert {cover.name for cover in found} >= {"mkl.linear", "onednn.linear", "onednn.conv"}
    for cover in found:
        if cover.binder is not None:
            with torch.no_grad():
                check(cover, cover.formats[0][0], CPU)
