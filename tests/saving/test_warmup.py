"""Warming up results of open sizes: which sizes are called, and what is said of others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import taso_py
from taso_py.backend import build
from taso_py.backend.plan import NO_PLAN
from taso_py.checking.resize import OpenInputs
from taso_py.driver.result import Optimized
from taso_py.frontend import import_program
from taso_py.saving import artifact
from taso_py.saving.artifact import save, serialize
from taso_py.saving.folder import WarmupError
from taso_py.saving.warmup import Sizes, warm_up
from taso_py.search.trace import Trace
from tests.checking.test_resize import exported
from tests.saving.test_artifact import REPORT

PAIR = "x.0 (1..100), index.0 (1..)"


class Recording:
    """A result that notes what it is called with."""

    def __init__(self) -> None:
        self.shapes: list[list[tuple[int, ...]]] = []

    def __call__(self, *args: Tensor) -> None:
        assert not torch.is_grad_enabled()
        self.shapes.append([tuple(argument.shape) for argument in args])


@pytest.fixture(scope="module")
def pair() -> OpenInputs:
    return OpenInputs.of(import_program(exported()))


def test_each_size_is_called_once_others_are_the_examples(pair: OpenInputs) -> None:
    recording = Recording()
    state = torch.random.get_rng_state()
    warm_up(recording, pair, [{"x.0": 3}, {"index.0": 9, "x.0": 100}, {}])
    assert recording.shapes == [[(3, 8), (5,)], [(100, 8), (9,)], [(8, 8), (5,)]]
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"x.0": 101}, "x.0 must be 1..100 in this result, not 101"),
        ({"x.0": 0}, "x.0 must be 1..100 in this result, not 0"),
        ({"y.0": 1}, f"there is no open size y.0; there are {PAIR}"),
        (4, f"4 could be any of {PAIR}; give a dict by name"),
    ],
)
def test_sizes_that_the_result_does_not_have_are_refused_before_any_call(
    pair: OpenInputs, sizes: Sizes, message: str
) -> None:
    recording = Recording()
    with pytest.raises(WarmupError) as refused:
        warm_up(recording, pair, [{"x.0": 3}, sizes])
    assert str(refused.value) == message
    assert recording.shapes == []


class Counter(nn.Module):
    """Counts its calls in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.calls: Tensor

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        return x * self.calls


def test_state_is_as_before() -> None:
    program = import_program(torch.export.export(Counter(), (torch.ones(2),), dynamic_shapes=({0: Dim("n", max=9)},)))
    module, inputs = build(program), OpenInputs.of(program)
    warm_up(module, inputs, [1, 5])
    assert torch.equal(module(torch.ones(3)), torch.ones(3))  # the first call that counts
    with pytest.raises(WarmupError, match="cannot be restored"):
        warm_up(lambda x: module(x), inputs, [1])


def test_a_result_is_warmed_up_by_its_method(pair: OpenInputs) -> None:
    recording = Recording()
    trace = Trace("0", (), ())
    Optimized(recording, REPORT, trace, NO_PLAN, keeps_original=False, inputs=pair).warmup([{"x.0": 3}])
    assert recording.shapes == [[(3, 8), (5,)]]


def test_saved_results_are_warmed_up_as_they_are_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU()).eval()
    x, folder, static = torch.randn(4, 3), tmp_path / "out", tmp_path / "static"
    save(folder, serialize(model, (x,), {}, {"input": {0: Dim("rows", max=64)}}), REPORT.as_dict(), "the trace")
    save(static, serialize(model, (x,), {}), REPORT.as_dict(), "the trace")
    called: list[object] = []
    monkeypatch.setattr(
        artifact, "warm_up", lambda runner, inputs, sizes: called.extend(sizes) or warm_up(runner, inputs, sizes)
    )
    loaded = taso_py.load(folder, warmup=[1, 33])
    assert called == [1, 33]
    torch.testing.assert_close(loaded(x), model(x))
    with pytest.raises(WarmupError, match=r"input\.0 must be"):
        taso_py.load(folder, warmup=[65])
    with pytest.raises(WarmupError, match="no open sizes"):
        taso_py.load(static, warmup=[1])
    wrong: Any
    for wrong, said in (
        (5, "must be a list of sizes, not 5"),
        ("5", "must be a number, or a dict of numbers by name, not '5'"),
        ([{"input.0": "5"}], "must be a number, or a dict of numbers by name, not {'input.0': '5'}"),
        ([{5: 5}], "no open size 5"),
    ):
        with pytest.raises(WarmupError, match=said):
            taso_py.load(folder, warmup=wrong)
