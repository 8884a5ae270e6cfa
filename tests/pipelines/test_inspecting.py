"""Inspection of pipelines: their modules are found and timed, and nothing of them is changed."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import taso_py
from taso_py.pipelines.inspecting import PipelineError


class Slow(nn.Module):
    """A layer that waits."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(self.seconds)
        return self.inner(x)


class Pipeline:
    """An object with two models, one of them in a dict, as diffusion pipelines have them."""

    def __init__(self) -> None:
        self.encoder = Slow(0.001)
        self.others = {"decoder": nn.ModuleList([Slow(0.03), Slow(0.0)])}
        self.again = self.encoder

    def __call__(self, x: Tensor, *, steps: int = 1) -> Tensor:
        x = self.encoder(x)
        for _ in range(steps):
            for block in self.others["decoder"]:
                x = block(x)
        return x

    def sample(self, x: Tensor) -> Tensor:
        return self(x, steps=3)


def test_modules_are_found_and_their_calls_timed() -> None:
    pipeline, x = Pipeline(), torch.ones(2, 4)
    found = taso_py.inspect(pipeline, x, steps=2)
    assert list(found.modules) == [
        "encoder", "encoder.inner", "others.decoder", "others.decoder.0", "others.decoder.0.inner",
        "others.decoder.1", "others.decoder.1.inner",
    ]  # fmt: skip
    assert found.roots == ["encoder", "others.decoder"]
    assert found.children("others.decoder") == ["others.decoder.0", "others.decoder.1"]
    calls = {name: timing.calls for name, timing in found.modules.items()}
    assert (calls["encoder"], calls["others.decoder"], calls["others.decoder.0"]) == (1, 0, 2)
    slowest, inner = found.modules["others.decoder.0"], found.modules["others.decoder.0.inner"]
    assert slowest.seconds >= 2 * 0.03
    assert found.seconds >= slowest.seconds > inner.seconds > 0
    assert found.share("others.decoder.0") > found.share("encoder")
    assert "others.decoder.0" in str(found)
    for module in (pipeline.encoder, *pipeline.others["decoder"]):
        assert not module._forward_hooks
        assert not module._forward_pre_hooks


def test_shapes_of_calls_are_counted() -> None:
    layer = nn.Linear(4, 4)

    def run() -> None:
        for size in (1, 2, 2):
            layer(torch.ones(size, 4))

    timing = taso_py.inspect(run).modules["layer"]
    assert (timing.calls, len(timing.signatures)) == (3, 2)


def test_methods_functions_and_modules_are_pipelines() -> None:
    pipeline, x = Pipeline(), torch.ones(2, 4)
    assert taso_py.inspect(pipeline.sample, x).modules["others.decoder.0"].calls == 3
    named = taso_py.inspect(lambda: pipeline(x)).modules
    assert named["pipeline.others.decoder.0"].calls == 1
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    itself = taso_py.inspect(model, x)
    assert itself.roots == [""]
    assert "Sequential" in str(itself)


def test_a_module_within_its_own_call_counts_once() -> None:
    class Twice(nn.Module):
        def forward(self, x: Tensor, deep: bool = True) -> Tensor:
            return self(x + 1, deep=False) if deep else x

    found = taso_py.inspect(Twice(), torch.ones(2))
    assert found.modules[""].calls == 1
    assert found.modules[""].seconds <= found.seconds


@pytest.mark.parametrize(
    ("pipeline", "said"),
    [(SimpleNamespace(model=nn.ReLU()), "cannot be called"), (len, "no nn.Module was found"), (3, "cannot be called")],
)
def test_what_is_no_pipeline_is_refused(pipeline: Any, said: str) -> None:
    with pytest.raises(PipelineError, match=said):
        taso_py.inspect(pipeline, [])


def test_an_error_of_the_pipeline_is_passed_on_and_leaves_no_hook() -> None:
    class Failing(nn.Module):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            if self.calls > 1:
                raise LookupError("no more")
            return x

    model = Failing()
    with pytest.raises(LookupError, match="no more"):
        taso_py.inspect(model, torch.ones(1))
    assert not model._forward_hooks
