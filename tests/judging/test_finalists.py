"""The race of finalists: where the fastest engines tie in it, another one of these alone decides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from torch import nn

from taso_py.driver import selection
from taso_py.driver.optimize import optimize_source
from taso_py.driver.result import Optimized
from taso_py.effort import EFFORTS
from taso_py.engines.engine import Engine, Runner
from taso_py.engines.table import ENGINES
from taso_py.judging import evaluation
from taso_py.judging.evaluation import Evaluation
from taso_py.judging.finalists import ORIGINAL, Finalist, Standings, ahead_of_original, by_engine, leaders
from taso_py.judging.timing import Race, RaceStop
from taso_py.models.source import Source
from taso_py.ops.table import parse_graph
from taso_py.options import Options
from taso_py.search.result import Candidate

EAGER, SESSION = "unchanged graph, eager", "unchanged graph, onnxruntime"
SECONDS = {ORIGINAL: 4.0, EAGER: 2.0, SESSION: 2.1}
"""Of the first race."""


class Compiler(Engine):
    """Runs modules as they are."""

    name, is_compiler = "compiler", True

    def _runner(self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], resizable: bool) -> Runner:
        return module


def _optimized(
    monkeypatch: pytest.MonkeyPatch, *races: Race, other: Engine = ENGINES["onnxruntime"]
) -> tuple[Optimized, list[list[str]]]:
    """Return what comes of a model where two engines are raced with these results, and who is in each race."""
    held, left = list[list[str]](), list(races)

    def race(contestants: Mapping[str, object], **_: Any) -> Race:
        held.append([*contestants])
        return left.pop(0)

    def confirm(*_: Any, **__: Any) -> Race:
        return Race({"baseline": (2.0,) * 10, "winner": (1.0,) * 10}, RaceStop.ROUNDS)

    monkeypatch.setattr(evaluation, "race", race)
    monkeypatch.setattr(evaluation, "confirm", confirm)
    engines = [ENGINES["eager"], other]
    monkeypatch.setattr(selection, "engines_to_try", lambda *_: (engines, []))
    model = nn.Sequential(nn.Linear(64, 64), nn.Sigmoid()).eval()
    runtime = "auto" if other.is_compiler else "eager"
    options = Options(runtime=runtime, time_limit=1.0, race_seconds=0.1, kernels=False, cache=False)
    return optimize_source(Source("layers", model, (torch.randn(8, 64),), {}), options, []), held


def _race(seconds: Mapping[str, float], stop: RaceStop, short: str | None = None) -> Race:
    """Return a race of ten rounds, of which one contestant may have run but six."""
    return Race({name: (each,) * (6 if name == short else 10) for name, each in seconds.items()}, stop)


def test_engines_that_tie_are_raced_again_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    second = _race({ORIGINAL: 4.0, EAGER: 2.0, SESSION: 1.6}, RaceStop.CLEAR)
    found, held = _optimized(monkeypatch, _race(SECONDS, RaceStop.TIME), second)
    assert held == [[ORIGINAL, EAGER, SESSION], [ORIGINAL, EAGER, SESSION]]
    assert found.report.runtime == "onnxruntime"
    assert f"{SESSION}: 1.250x, 1.250 to 1.250 as fast as {EAGER}, which led the race before" in found.report.notes
    assert found.report.timed == {ORIGINAL: 4e3, EAGER: 2e3, SESSION: 1.6e3}


def test_a_lead_that_holds_needs_no_note(monkeypatch: pytest.MonkeyPatch) -> None:
    second = _race({ORIGINAL: 4.0, EAGER: 2.0, SESSION: 2.0}, RaceStop.TIME)
    found, held = _optimized(monkeypatch, _race(SECONDS, RaceStop.TIME), second)
    assert (len(held), found.report.runtime) == (2, "eager")
    assert not any("led the race before" in note for note in found.report.notes)


@pytest.mark.parametrize(
    ("stop", "short"), [(RaceStop.CLEAR, SESSION), (RaceStop.TIME, SESSION), (RaceStop.ROUNDS, None)]
)
def test_what_is_decided_is_not_raced_again(stop: RaceStop, short: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    found, held = _optimized(monkeypatch, _race(SECONDS, stop, short))
    assert (len(held), found.report.runtime) == (1, "eager")


@pytest.mark.parametrize("compiled_s", [1.6, 2.4])
def test_a_compiler_is_raced_with_the_fastest_of_all_else(compiled_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "unchanged graph, compiler"
    first = _race({ORIGINAL: 4.0, EAGER: 2.0}, RaceStop.CLEAR)
    second = _race({ORIGINAL: 4.0, EAGER: 2.0, name: compiled_s}, RaceStop.CLEAR)
    found, held = _optimized(monkeypatch, first, second, other=Compiler())
    assert held == [[ORIGINAL, EAGER], [ORIGINAL, EAGER, name]]
    assert found.report.runtime == ("compiler" if compiled_s < 2 else "eager")
    assert {*found.report.engines} == {"eager", "compiler"}


def test_an_interrupt_before_the_first_round_among_engines_leaves_the_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    second = Race({ORIGINAL: (), EAGER: (), SESSION: ()}, RaceStop.INTERRUPTED)
    found, _ = _optimized(monkeypatch, _race(SECONDS, RaceStop.TIME), second)
    assert found.report.runtime == "eager"
    assert any(note.startswith("interrupted while timing") for note in found.report.notes)


def test_where_rules_gain_nothing_the_unchanged_graph_in_the_same_engine_is_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The engine leads, whichever graph it computes."""
    graph = parse_graph("graph(x: f32[4]) { return relu(x) }")
    unchanged = Candidate(graph, graph, 1.0, 0)
    rewritten = [replace(unchanged, applied=applied) for applied in (("one",), ("one", "two"))]
    unused = cast(Any, None)

    def finalist(name: str, candidate: Candidate, engine: str) -> Finalist:
        return Finalist(name, candidate, unused, unused, ENGINES[engine], unused, unused)

    made = [
        finalist(ORIGINAL, unchanged, "eager"),
        finalist("a", rewritten[0], "openvino"),
        finalist("b", rewritten[1], "openvino"),
        finalist("c", unchanged, "openvino"),
        finalist("d", unchanged, "onnxruntime"),
    ]
    finalists = {one.name: one for one in made}
    first = _race({ORIGINAL: 4.0, "a": 1.0, "b": 1.1, "c": 1.3, "d": 1.2}, RaceStop.TIME)
    assert leaders(ahead_of_original(finalists, first), finalists, first) == ["a", "d"]
    assert by_engine(["a", "d"], ["a", "b", "d", "c"], finalists) == ["a", "b", "c", "d"]
    tried = list[str]()
    monkeypatch.setattr(Evaluation, "_confirmed", lambda _, baseline, winner, *__: tried.append(winner.name))
    monkeypatch.setattr(Evaluation, "_confirmed_outcome", lambda _, winner, *__: tried.append(winner.name))
    monkeypatch.setattr(Evaluation, "_original_wins", lambda *_: None)
    judge = Evaluation(unused, planner=unused, effort=EFFORTS["normal"])
    judge._confirmed_first(Standings(finalists, [first], ["a", "b", "c", "d"]), unused)
    assert tried == ["a", "c", "d"]


@pytest.mark.parametrize("gains", [False, True])
def test_what_a_compiler_makes_of_the_unchanged_graph_is_built_where_rules_lead(
    gains: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, unused = parse_graph("graph(x: f32[4]) { return relu(x) }"), cast(Any, None)
    unchanged = Candidate(graph, graph, 1.0, 0)
    rewritten = replace(unchanged, applied=("one",))
    original, first, twin = (
        Finalist(name, candidate, unused, unused, ENGINES[engine], unused, unused)
        for name, candidate, engine in (
            (ORIGINAL, unchanged, "eager"),
            ("rewritten", rewritten, "inductor-kernels"),
            ("twin", unchanged, "inductor-kernels"),
        )
    )
    tried, built = list[tuple[str, str]](), list[tuple[Candidate, Sequence[Engine]]]()

    class Builder:
        def of_graph(self, *of: Any) -> Iterator[Finalist]:
            built.append(of)
            yield twin

    def confirmed(_: Evaluation, baseline: Finalist, winner: Finalist, *__: Any) -> Race | None:
        tried.append((winner.name, baseline.name))
        return _race({"baseline": 2.0, "winner": 1.0}, RaceStop.CLEAR) if gains else None

    def outcome(_: Evaluation, winner: Finalist, *__: Any) -> str | None:
        return f"{winner.name} wins" if gains or winner is twin else None

    monkeypatch.setattr(Evaluation, "_confirmed", confirmed)
    monkeypatch.setattr(Evaluation, "_confirmed_outcome", outcome)
    judge = Evaluation(unused, planner=unused, effort=EFFORTS["normal"])
    standings = Standings({ORIGINAL: original, "rewritten": first}, [], ["rewritten"])
    found = cast(str, judge._confirmed_first(standings, cast(Any, Builder())))
    assert found == ("rewritten wins" if gains else "twin wins")
    assert tried == [("rewritten", "twin")]
    assert built == [(unchanged, [ENGINES["inductor-kernels"]])]
