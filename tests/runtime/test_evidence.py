"""What a report rests on: which comparison is of what is saved, and which of what was timed, is stated."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from taso_py.runtime.trial import Judgement, Trial
from taso_py.search.result import SearchResult
from tests.runtime.test_trial import _clamped, _once, _search


@pytest.mark.parametrize("is_timed", [False, True])
def test_what_is_saved_and_what_was_timed_are_told_apart(monkeypatch: pytest.MonkeyPatch, is_timed: bool) -> None:
    """What is timed may be left out, as where a compiler draws other random numbers."""
    judgements: list[Judgement] = []
    hold = Trial.hold

    def noted(trial: Trial, found: SearchResult, runtimes: Sequence[str]) -> Judgement:
        judgements.append(hold(trial, found, runtimes))
        return judgements[-1]

    monkeypatch.setattr(Trial, "hold", noted)
    monkeypatch.setattr(Trial, "_is_comparable", lambda *_: is_timed)
    _search(monkeypatch, _once)
    assert _clamped().report.applied
    cases = ["example", "random x0.01", "random x1", "random x10"]
    wanted = [(False, case) for case in cases] + [(True, case) for case in cases if is_timed]
    assert [(output.as_timed, output.inputs) for output in judgements[0].comparison.outputs] == wanted
