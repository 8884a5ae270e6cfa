"""The verdict: what a compiler made wrong is refused, however fast it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from taso_py.ir.graph import Graph
from taso_py.rules.apply import apply
from taso_py.rules.match import Match, Matcher
from taso_py.rules.text import read_rules
from taso_py.runtime import optimize, trial
from taso_py.runtime.optimize import Optimized, Options, optimize_source
from taso_py.runtime.source import Source
from taso_py.search.result import Candidate, SearchResult, StopReason

X = torch.randn(64, 128, generator=torch.Generator().manual_seed(0))


class Layers(nn.Module):
    """Enough work for a call that does none of it to be surely faster."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(*(nn.Linear(128, 128) for _ in range(20)))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def _optimized(monkeypatch: pytest.MonkeyPatch, runner: Callable[[Tensor], Tensor]) -> Optimized:
    """What is made of the layers where every compiler makes ``runner`` of them."""

    def prepare(module: nn.Module, runtime: str, *_: Any, **__: Any) -> Callable[..., Any]:
        return module if runtime == "eager" else runner

    monkeypatch.setattr(trial, "prepare", prepare)
    options = Options(runtime="inductor", time_limit=1.0, race_seconds=0.5, kernels=False)
    return optimize_source(Source("layers", Layers().eval(), (X,), {}), options, [])


def test_a_compiled_module_that_is_right_on_the_example_only_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.no_grad():
        known = Layers().eval()(X)
    found = _optimized(monkeypatch, lambda _: known)
    assert found.keeps_original
    assert any(note.startswith("refused unchanged graph, inductor: ") for note in found.report.notes)
    assert found.report.comparison_passed, "of the original"


def test_a_compiled_module_that_is_right_and_fast_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.no_grad():
        weight = torch.eye(128)
        bias = torch.zeros(128)
        for layer in Layers().layers:
            assert isinstance(layer, nn.Linear)
            weight, bias = weight @ layer.weight.t(), bias @ layer.weight.t() + layer.bias
    found = _optimized(monkeypatch, lambda x: x @ weight + bias)
    assert not found.keeps_original
    assert found.report.runtime in ("inductor", "inductor-freezing", "inductor-max-autotune")
    assert found.report.speedup_low > 1


class Clamped(nn.Module):
    """A function applied so often that once is surely faster."""

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(20):
            x = x.relu()
        return x


@pytest.mark.parametrize("traced", [True, False])
def test_a_result_is_refused_if_its_steps_do_not_lead_to_it(traced: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    (rule,) = read_rules("rule a: float[..B] source relu(relu(a)) target relu(a)")

    def search(graph: Graph, *_: Any, progress: bool) -> SearchResult:
        original, steps, now = Candidate(graph, graph, 1.0, 0), list[tuple[Match, Graph]](), graph
        while found := Matcher([rule]).matches(now):
            now = apply(now, found[0]) or now
            steps.append((found[0], now))
        best = Candidate(graph, now, 0.1, 0, (rule.id,) * len(steps), steps if traced else steps[1:2])
        return SearchResult(original, (best, original), StopReason.EXHAUSTED, 1, 1, 0.0)

    monkeypatch.setattr(optimize, "search", search)
    source = Source("clamped", Clamped().eval(), (torch.randn(500, 500),), {})
    found = optimize_source(source, Options(runtime="eager", race_seconds=0.5, kernels=False), [rule])
    assert bool(found.report.applied) == traced
    refused = "refused 19 rules applied, eager: its steps one by one lead to another graph"
    assert (refused in found.report.notes) != traced
