"""The verdict: what a compiler made wrong is refused, however fast it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from taso_py.ir.graph import Graph
from taso_py.rules.apply import apply
from taso_py.rules.match import Match, Matcher
from taso_py.rules.text import read_rules
from taso_py.runtime import optimize, trial
from taso_py.runtime.decisions import Winners
from taso_py.runtime.optimize import optimize_source
from taso_py.runtime.replay import import_source
from taso_py.runtime.result import Optimized, Options
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


(RULE,) = read_rules("rule a: float[..B] source relu(relu(a)) target relu(a)")


def _search(
    monkeypatch: pytest.MonkeyPatch, finds: Callable[[Candidate, list[tuple[Match, Graph]]], Candidate]
) -> None:
    """Every search finds what is made of the original, and of the steps to where once is left."""

    def search(graph: Graph, *_: Any, progress: bool) -> SearchResult:
        original, steps, now = Candidate(graph, graph, 1.0, 0), list[tuple[Match, Graph]](), graph
        while found := Matcher([RULE]).matches(now):
            now = apply(now, found[0]) or now
            steps.append((found[0], now))
        candidates = dict.fromkeys((finds(original, steps), original))
        return SearchResult(original, tuple(candidates), StopReason.EXHAUSTED, 1, 1, 0.0)

    monkeypatch.setattr(optimize, "search", search)


def _clamped(*, cache: bool = False) -> Optimized:
    source = Source("clamped", Clamped().eval(), (torch.randn(500, 500),), {})
    return optimize_source(source, Options(race_seconds=0.5, kernels=False, cache=cache), [RULE])


def _once(original: Candidate, steps: Sequence[tuple[Match, Graph]]) -> Candidate:
    return Candidate(original.graph, steps[-1][1], 0.1, 0, (RULE.id,) * len(steps), steps)


@pytest.mark.parametrize("traced", [True, False])
def test_a_result_is_refused_if_its_steps_do_not_lead_to_it(traced: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    _search(monkeypatch, lambda *found: replace(_once(*found), steps=found[1] if traced else found[1][1:2]))
    found = _clamped()
    assert bool(found.report.applied) == traced
    refused = "refused 19 rules applied, eager: its steps one by one lead to another graph"
    assert (refused in found.report.notes) != traced


def test_what_won_stays_in_the_running(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TASO_PY_CACHE", str(tmp_path))
    _search(monkeypatch, _once)
    won = _clamped(cache=True)
    assert won.report.applied
    _search(monkeypatch, lambda original, _: original)
    assert not _clamped().report.applied, "nobody remembers it"
    again = _clamped(cache=True)
    assert again.report.applied == won.report.applied
    assert again.trace == won.trace


def test_what_lost_once_is_still_remembered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TASO_PY_CACHE", str(tmp_path))
    _search(monkeypatch, _once)
    won = _clamped(cache=True)
    program = import_source(Source("clamped", Clamped().eval(), (torch.randn(500, 500),), {}))
    winners = Winners(program, Options(time_limit=1.0, kernels=False), [RULE])
    assert winners.last() == won.trace
    winners.remember(replace(won, trace=replace(won.trace, steps=(), rules=())))
    assert Winners(program, Options(kernels=False), [RULE]).last() == won.trace
    assert Winners(program, Options(), [RULE]).last() is None, "by other kernels"
    assert Winners(program, Options(kernels=False), []).last() is None, "by other rules"
    for file in (tmp_path / "decisions").iterdir():
        file.write_text(file.read_text(encoding="utf-8").replace("step", "stop"), encoding="utf-8")
    assert Winners(program, Options(kernels=False), [RULE]).last() is None, "damaged"
