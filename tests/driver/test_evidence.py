"""What a report rests on: which comparison is of what is saved, which of what was timed, and what the original is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.export import ExportedProgram

from taso_py.backend.guard import ArgumentError
from taso_py.driver.optimize import optimize
from taso_py.engines.engine import Engine
from taso_py.judging.evaluation import EngineSearch, Evaluation, EvaluationOutcome
from taso_py.judging.expected import ExpectedOutputs
from taso_py.models.source import Source
from taso_py.profiling import profile
from tests.judging.test_evaluation import _clamped, _once, _search


def test_a_page_takes_no_measurements_that_it_does_not_show(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(profile._ProfileBuilder, "_isolated", lambda *_: pytest.fail("measured alone"))
    module, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).eval(), torch.ones(4, 8)
    optimize(module, x, race_seconds=0.1, time_limit=1.0, cache=False, output=tmp_path)
    assert (tmp_path / "report.html").exists()
    with pytest.raises(pytest.fail.Exception, match="measured alone"):
        profile.profile_source(Source("layer", module, (x,)), profile.ProfileOptions(seconds=0.05))


@pytest.mark.parametrize("is_timed", [False, True])
def test_what_is_saved_and_what_was_timed_are_told_apart(monkeypatch: pytest.MonkeyPatch, is_timed: bool) -> None:
    """What is timed may be left out, as where a compiler draws other random numbers."""
    outcomes: list[EvaluationOutcome] = []
    run = Evaluation.run

    def noted(evaluation: Evaluation, searches: Sequence[EngineSearch], others: Sequence[Engine]) -> EvaluationOutcome:
        outcomes.append(run(evaluation, searches, others))
        return outcomes[-1]

    monkeypatch.setattr(Evaluation, "run", noted)
    monkeypatch.setattr(ExpectedOutputs, "is_comparable", lambda *_: is_timed)
    _search(monkeypatch, _once)
    assert _clamped().report.applied
    cases = ["example", "random x0.01", "random x1", "random x10"]
    wanted = [(False, case) for case in cases] + [(True, case) for case in cases if is_timed]
    assert [(output.as_timed, output.inputs) for output in outcomes[0].comparison.outputs] == wanted


def test_an_exported_program_is_timed_without_its_checks_and_keeps_them(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    checked = ExportedProgram.module

    def counted(program: ExportedProgram, check_guards: bool = True) -> nn.Module:
        module = checked(program, check_guards)
        module.register_forward_hook(lambda *_: calls.append(1))
        return module

    monkeypatch.setattr(ExportedProgram, "module", counted)
    program = torch.export.export(nn.ReLU(), (torch.ones(3),))
    found = optimize(program, race_seconds=0.1, cache=False, kernels=False)
    assert 0 < len(calls) < 20  # comparisons run it, the race does not
    assert found.keeps_original
    assert torch.equal(found.module(-torch.ones(3)), torch.zeros(3))
    with pytest.raises(ArgumentError, match=r"built for input of type torch.float32 and shape \[3\]"):
        found.module(torch.ones(4))
