"""Decisions that are remembered: for what, and how they are carried out."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from taso_py.backend import Program
from taso_py.backend.plan import NO_PLAN
from taso_py.driver.decisions import KNOWN_SHARE, UNUSABLE, Decision, Decisions, Winners, decision_key
from taso_py.engines.table import ENGINES
from taso_py.frontend import import_module, import_program
from taso_py.options import Options
from taso_py.rules.apply import apply
from taso_py.rules.match import Matcher
from taso_py.rules.text import read_rules
from taso_py.search.trace import Trace, make_trace, write_trace
from tests.engines.sessions import engine_named


class Outer(nn.Module):
    """Adds what is computed from two small weights, and takes more memory than a search may add to others."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.columns = nn.Parameter(torch.rand(700, 1)), nn.Parameter(torch.rand(1, 700))

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.exp(self.rows * self.columns)


def unchanged(program: Program) -> Decision:
    """The decision for a program as it is."""
    return Decision(False, "eager", write_trace(Trace(program.graph.digest, (), ())))


def key(module: nn.Module, x: Tensor) -> str:
    return decision_key(import_module(module.eval(), (x,)), Options(), ())


def test_what_is_carried_out_is_folded_as_what_was_timed() -> None:
    x, module = torch.rand(700, 700), Outer()
    runner = unchanged(program := import_module(module, (x,))).apply(program, (x,))
    assert isinstance(runner, torch.fx.GraphModule)
    assert not [node for node in runner.graph.nodes if "exp" in str(node.target)]
    torch.testing.assert_close(runner(x), module(x))


def test_sizes_that_are_open_stay_so(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def prepare(module: nn.Module, _args: Any, _kwargs: Any, resizable: bool = False) -> nn.Module:
        asked.append(resizable)
        return module

    monkeypatch.setattr(ENGINES["eager"], "prepare", prepare)
    x = torch.rand(4, 8)
    sizes = ({0: torch.export.Dim("batch", min=2, max=64)},)
    opened = import_program(torch.export.export(nn.ReLU(), (x,), dynamic_shapes=sizes), (x,))
    for program in (opened, import_module(nn.ReLU(), (x,))):
        unchanged(program).apply(program, (x,))
    assert asked == [True, False]


def test_a_decision_depends_on_how_weights_lie_in_memory_and_not_on_what_they_are() -> None:
    x, made = torch.rand(1, 4, 8, 8), lambda: nn.Sequential(nn.Conv2d(4, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    other: nn.Module = made().to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue] -- undeclared
    assert key(made(), x) == key(made(), x) != key(other, x)


def test_a_decision_depends_on_the_version_of_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    program = import_module(nn.Linear(3, 3).eval(), (torch.rand(2, 3),))
    names = ("onnxruntime", "auto", "eager")
    before = [decision_key(program, Options(runtime=name), ()) for name in names]
    monkeypatch.setattr(type(engine_named("onnxruntime")), "version", "another")
    after = [decision_key(program, Options(runtime=name), ()) for name in names]
    assert [a == b for a, b in zip(before, after, strict=True)] == [False, False, True]


@pytest.mark.parametrize(
    "damage", [{"trace": 5}, {"keeps_original": "no"}, {"runtime": None}, {"plan": []}, {"more": 1}, "[" * 100_000]
)
def test_a_file_of_another_form_is_no_decision(damage: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASO_PY_CACHE", str(tmp_path))
    Decisions().put("key", decision := Decision(False, plan={}))
    assert Decisions().get("key") == decision
    text = damage if isinstance(damage, str) else json.dumps({**asdict(decision), **damage})
    (tmp_path / "decisions" / "key.json").write_text(text, encoding="utf-8")
    assert Decisions().get("key") is None


@pytest.mark.parametrize(
    "damage", [{"trace": "no trace"}, {"runtime": "sundial"}, {"plan": {}}, {"plan": {"steps": [1], "overwrites": 0}}]
)
def test_what_cannot_be_carried_out_is_told_by_its_error(damage: dict[str, Any]) -> None:
    x = torch.rand(2, 3)
    program = import_module(nn.Linear(3, 3).eval(), (x,))
    with pytest.raises(UNUSABLE):
        Decision(**{**asdict(unchanged(program)), **damage}).apply(program, (x,))


def test_without_a_home_decisions_are_those_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TASO_PY_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    decisions = Decisions()
    assert decisions.get("key") is None
    decisions.put("key", Decision(True))
    assert decisions.get("key") == Decision(True)


def test_a_winner_without_rules_is_remembered_unless_one_with_rules_is_or_the_original_won(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TASO_PY_CACHE", str(tmp_path))
    program = import_module(nn.Sequential(nn.ReLU(), nn.ReLU()).eval(), (torch.rand(2),))
    (rule,) = read_rules("rule a: float[..B] source relu(relu(a)) target relu(a)")
    (match,) = Matcher([rule]).matches(program.graph)
    after = apply(program.graph, match)
    assert after is not None
    empty, stepped = Trace(program.graph.digest, (), ()), make_trace(program.graph, [(match, after)], after)
    winners = Winners(program, Options(), ())

    def won(trace: Trace, *, keeps_original: bool = False) -> Any:
        return SimpleNamespace(
            trace=trace, keeps_original=keeps_original, plan=NO_PLAN, report=SimpleNamespace(runtime="eager")
        )

    winners.remember(won(empty, keeps_original=True))
    assert (winners.last(), winners.share(winners.last())) == (None, 1)
    winners.remember(won(empty))
    assert (winners.last(), winners.share(winners.last())) == (empty, KNOWN_SHARE)
    winners.remember(won(stepped))
    winners.remember(won(empty))
    assert winners.last() == stepped
