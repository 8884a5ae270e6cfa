"""Models on batches of different sizes are summed up apart; what a model cannot be compared with is in its row."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from experiments import end_to_end
from experiments.end_to_end import (
    COMPILERS,
    EAGER,
    EXPERIMENT,
    KERNELS,
    MEAN,
    OTHERS,
    TEMPLATES,
    _build_ways,
    _facts,
    _figures,
)
from experiments.harness import Row, Settings
from taso_py.engines.engine import EngineUnavailableError
from taso_py.models import zoo
from taso_py.models.source import Source
from taso_py.options import Options


def _row(model: str, gain: float) -> Row:
    names = ("auto/best_other", "auto/best_other_low", "auto/best_other_high")
    return {"model": model, **dict.fromkeys(names, gain)}


def test_each_batch_has_a_mean_of_its_own() -> None:
    rows = [_row("a", 2.0), _row("b", 0.5), _row("a@8", 4.0)]
    arranged = EXPERIMENT.arrange(rows)
    assert arranged[:3] == rows
    assert {row["model"]: row["auto/best_other"] for row in arranged[3:]} == {MEAN: 1.0, f"{MEAN}@8": 4.0}
    assert "of 2, 1 surely faster than the best of the others, 1 surely slower" in arranged[3]["note"]


@pytest.mark.parametrize(("device", "batch"), [("cpu", "8"), ("cuda", "16")])
def test_larger_batches_depend_on_the_device(device: str, batch: str) -> None:
    parts = EXPERIMENT.parts(Settings(device, quick=False, out=Path(), seed=0))
    larger = [part.partition("@") for part in parts if "@" in part]
    assert larger
    assert {size for _, _, size in larger} == {batch}
    assert {name for name, _, _ in larger} <= set(zoo.names()) & set(parts)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is made ready to be timed, in order, where the compiler that freezes weights fails."""
    done: list[str] = []

    def optimized(_: Source, options: Options, __: object) -> SimpleNamespace:
        done.append(f"ours in {options.runtime}")
        return SimpleNamespace(module=nn.Tanh(), report=SimpleNamespace(comparison_passed=True, applied=()))

    def prepared(module: nn.Module, runtime: str, *_: object) -> nn.Module:
        done.append(runtime)
        if runtime == "inductor-freezing":
            raise EngineUnavailableError(f"{runtime} cannot run this module: no compiler")
        return module

    monkeypatch.setattr(end_to_end, "optimize_source", optimized)
    monkeypatch.setattr(end_to_end, "prepare", prepared)
    monkeypatch.setattr(end_to_end, "rules_for", lambda _: [])
    monkeypatch.setattr(end_to_end, "_kernels", lambda _: nn.Tanh())
    monkeypatch.setattr(end_to_end, "race", lambda *_, **__: SimpleNamespace(best=lambda: EAGER))
    return done


def made(device: str) -> Any:
    return _build_ways(Source("model", nn.Tanh(), (torch.ones(2),)), Settings(device, quick=True, out=Path(), seed=0))


def test_what_compiles_is_ready_before_anything_is_captured(steps: list[str]) -> None:
    calls = made("cuda").calls
    ours = ["ours in eager", "ours in eager", "ours in inductor"]
    assert steps == [*ours, *COMPILERS, "inductor-cudagraph", "cudagraph", "ours in cudagraph"]
    assert {"ours+inductor", "inductor-cudagraph", "cudagraph", "ours+cudagraph"} <= set(calls)
    assert set(OTHERS) - set(calls) == {"inductor-freezing"}
    steps.clear()
    assert set(made("cpu").calls) == {"original", KERNELS, TEMPLATES, EAGER, "ours+inductor", *COMPILERS[::2]}
    assert steps == [*ours, *COMPILERS]


def test_a_runtime_that_is_missing_is_in_the_row(steps: list[str]) -> None:
    report = SimpleNamespace(
        **dict.fromkeys(("search_seconds", "stop_reason", "error", "original_error")),
        applied=(),
        comparison_passed=True,
    )
    found = made("cuda")
    found.results[EAGER].report = report
    assert _facts(found)["missing"] == "inductor-freezing cannot run this module: no compiler"
    found.missing.clear()
    assert "missing" not in _facts(found)


def test_the_result_is_compared_with_captured_compilers_too() -> None:
    ratios = {"inductor-cudagraph": 4.0, "cudagraph": 3.0, "inductor": 2.0}
    ways = ("original", TEMPLATES, EAGER, *ratios)

    def ratio(way: str, over: str | None = None) -> SimpleNamespace:
        return SimpleNamespace(median=ratios.get(way, 1.0), low=1.0, high=1.0)

    raced: Any = SimpleNamespace(times={way: [1.0] for way in ways}, ratio=ratio, rounds=1)
    assert _figures(raced, EAGER)["best_other"] == "inductor-cudagraph"
