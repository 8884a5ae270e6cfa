"""Which engines are searched for: those that are fast without rules; which compilers still have a chance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import nn

from taso_py.backend import NO_PLAN, Plan, Program
from taso_py.driver import selection
from taso_py.driver.searches import Searches
from taso_py.driver.selection import Selection, engines_for, select
from taso_py.effort import EFFORTS, within
from taso_py.engines.eager import Eager
from taso_py.engines.engine import KERNEL_PRICES, Built, Engine, EngineUnavailableError, Runner
from taso_py.engines.tensorrt import TensorRt
from taso_py.judging.expected import ExpectedOutputs
from taso_py.judging.timing import Race, RaceStop
from taso_py.models.importing import import_source
from taso_py.models.source import Source, load_source
from taso_py.ops.table import parse_graph
from taso_py.options import Options
from taso_py.progress import Phases
from taso_py.rules.database import read_database
from taso_py.rules.substitution import Substitution
from taso_py.search.result import Candidate, SearchResult, SearchStop
from tests.round_trips import Model

CPU = torch.device("cpu")
GRAPH = parse_graph("graph(x: f32[64,64]) { return relu(matmul(x, x)) }")


class Fake(Engine):
    """Runs modules as they are, by prices of its own."""

    def __init__(self, name: str, refuses: str = "", is_wrong: bool = False) -> None:
        self.name = self.prices = name
        self._refuses, self._is_wrong = refuses, is_wrong

    def build(self, program: Program, plan: Plan = NO_PLAN) -> nn.Module:
        if self._refuses:
            raise EngineUnavailableError(self._refuses)
        return super().build(program, plan)

    def _runner(self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], resizable: bool) -> Runner:
        return (lambda x: module(x) + 1e-3) if self._is_wrong else module


def _selected(
    monkeypatch: pytest.MonkeyPatch,
    engines: Sequence[Engine],
    effort: str = "normal",
    runtime: str = "auto",
    source: Source | None = None,
    rules: Sequence[Substitution] = (),
    **seconds: float,
) -> Selection:
    """What is selected for a model of which a race shows these seconds, ``kernels`` for PyTorch's."""
    monkeypatch.setattr(selection, "engines_to_try", lambda *_: (engines, ["tensorrt: no GPU"]))

    def race(calls: Mapping[str, object], **_: object) -> Race:
        return Race({name: (seconds[name],) * 6 for name in calls}, RaceStop.TIME)

    monkeypatch.setattr(selection, "race", race)
    source = source or Source("relu", nn.ReLU(), (torch.ones(4),))
    expected = ExpectedOutputs(source, import_source(source), seed=0)
    return select(expected, Options(runtime=runtime, effort=effort), Phases(), rules)


def test_families_that_are_fastest_without_rules_are_searched_for(monkeypatch: pytest.MonkeyPatch) -> None:
    engines = [Eager(), Fake("near"), Fake("far"), Fake("fastest")]
    found = _selected(monkeypatch, engines, kernels=8.0, near=2.0, far=7.0, fastest=1.0)
    assert list(found.searched) == ["fastest", "near"]
    assert [engine.name for engine in found.others] == ["far"]
    assert "far, eager: not searched, since fastest is faster; --effort thorough searches all" in found.notes
    assert "tensorrt: no GPU" in found.notes
    assert found.unchanged_s == {"near": 2.0, "far": 7.0, "fastest": 1.0}


def test_what_pytorch_takes_for_an_onnx_file_is_timed_in_pytorch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    onnx: Any = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    path = tmp_path / "relu.onnx"
    text = '<ir_version: 8, opset_import: ["" : 20]> m (float[4] x) => (float[4] y) { y = Relu(x) }'
    path.write_bytes(onnx.parser.parse_model(text).SerializeToString())
    source, timed = load_source(str(path)), list[Any]()
    preserved = selection.preserve_state

    def recorded(program: Program, modules: Sequence[Any], arguments: Any) -> Any:
        timed.extend(modules[:1])
        return preserved(program, modules, arguments)

    monkeypatch.setattr(selection, "preserve_state", recorded)
    _selected(monkeypatch, [Eager(), Fake("fast"), Fake("slow")], source=source, kernels=1.0, fast=0.1, slow=3.0)
    assert source.onnx is not None
    assert timed
    assert source.onnx.module not in timed


def test_an_engine_that_was_asked_for_is_timed_on_the_unchanged_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its prices are scaled by that; PyTorch's kernels are scaled by a network of ours."""
    for engine, timed in ((Fake("openvino"), {"openvino": 1.0}), (Eager(), {})):
        found = _selected(monkeypatch, [engine], runtime=engine.name, kernels=2.0, openvino=1.0)
        assert list(found.searched) == [engine.prices]
        assert found.unchanged_s == timed


def test_an_engine_that_was_asked_for_and_fails_is_left_to_the_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    found = _selected(monkeypatch, [Fake("openvino", refuses="for a reason")], runtime="openvino", kernels=2.0)
    assert list(found.searched) == ["openvino"]
    assert not found.unchanged_s
    assert "for a reason" not in found.notes


def test_pytorch_is_timed_with_kernels_that_are_likely_to_be_the_fastest(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = nn.Conv2d(32, 32, 3, bias=False), torch.ones(1, 32, 40, 40)
    plans, built_in = list[Plan](), selection.built_in

    def recorded(engine: Engine, program: Program, plan: Plan, *others: Any) -> Built:
        plans.append(plan)
        return built_in(engine, program, plan, *others)

    monkeypatch.setattr(selection, "built_in", recorded)
    engines, source = [Eager(), Fake("one"), Fake("two")], Source("layer", layer, (x,))
    found = _selected(monkeypatch, engines, source=source, kernels=1.02, one=1.0, two=1.1)
    assert list(found.searched) == ["one", KERNEL_PRICES]
    assert [any(step.kernel for step in plan.steps.values()) for plan in plans] == [False, False, True]
    assert "eager" not in found.built, "the kernels are chosen by the search"


def test_kernels_that_fail_count_by_what_they_usually_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(engine: Engine, program: Program, plan: Plan, *others: Any) -> Built:
        if isinstance(engine, Eager):
            raise RuntimeError("could not create a primitive")
        return built_in(engine, program, plan, *others)

    built_in = selection.built_in
    monkeypatch.setattr(selection, "built_in", failing)
    engines = [Eager(), Fake("one"), Fake("two")]
    found = _selected(monkeypatch, engines, kernels=1.2, one=1.0, two=1.1)
    assert list(found.searched) == [KERNEL_PRICES, "one"]


def test_what_rules_merge_counts_before_it_is_priced(monkeypatch: pytest.MonkeyPatch) -> None:
    """One layer for each of many arguments takes PyTorch's kernels a call each, unless rules make one of them."""
    engines = [Eager(), Fake("one"), Fake("two")]
    each = Model(lambda s, *xs: sum((torch.tanh(s.layer(x)) for x in xs), torch.zeros(())), layer=nn.Linear(8, 8))
    arguments = tuple(torch.ones(2, 8) for _ in range(30))
    of_many = Source("layers", each, arguments)
    for source, rules, expected in (
        (of_many, read_database(None), [KERNEL_PRICES, "one"]),
        (of_many, (), ["one", "two"]),
        (Source("layers", each, arguments[:8]), read_database(None), ["one", "two"]),
    ):
        found = _selected(monkeypatch, engines, source=source, rules=rules, kernels=2.6, one=1.0, two=1.1)
        assert list(found.searched) == expected


def test_a_model_that_only_takes_views_has_nothing_to_merge(monkeypatch: pytest.MonkeyPatch) -> None:
    engines, rows = [Eager(), Fake("one"), Fake("two")], Model(lambda s, x: x.unbind())
    source = Source("rows", rows, (torch.ones(6, 2),))
    found = _selected(monkeypatch, engines, source=source, rules=read_database(None), kernels=0.9, one=1.0, two=1.1)
    assert list(found.searched) == [KERNEL_PRICES, "one"]


def test_effort_decides_how_many_are_searched_for(monkeypatch: pytest.MonkeyPatch) -> None:
    engines = [Eager(), Fake("one"), Fake("two")]
    found = {name: _selected(monkeypatch, engines, name, kernels=9.0, one=1.0, two=2.0).searched for name in EFFORTS}
    assert {name: list(searched) for name, searched in found.items()} == {
        "quick": ["one"],
        "normal": ["one", "two"],
        "thorough": [KERNEL_PRICES, "one", "two"],
    }


@pytest.mark.parametrize(
    ("gain", "second_s", "may_lead"),
    [(1.0, 1.01, False), (1.1, 1.04, True), (1.1, 1.06, False), (2.0, 1.4, True), (2.0, 1.43, False)],
)
def test_another_engine_is_searched_for_where_rules_may_bring_it_to_the_front(
    monkeypatch: pytest.MonkeyPatch, gain: float, second_s: float, may_lead: bool
) -> None:
    searched: list[str] = []

    def search(_searches: Searches, _cost: object, engine: Engine, *_: object) -> SearchResult:
        searched.append(engine.name)
        before, after = (Candidate(GRAPH, GRAPH, seconds, static_bytes=0) for seconds in (gain, 1.0))
        return SearchResult(before, (after, before), SearchStop.EXHAUSTED, expansions=0, built=0, seconds=0.0)

    monkeypatch.setattr(Searches, "cost_of", lambda *_: None)
    monkeypatch.setattr(Searches, "_search", search)
    engines = {name: [Fake(name)] for name in ("one", "two")}
    ranked = Selection(engines, expected_s={"one": 1.0, "two": second_s})
    searches, nothing = Searches(cast(Any, None), (), None), cast(Any, None)
    found, costs, rest = searches.run(ranked, nothing, None, 1.0)
    assert searched == [*costs] == [*rest.searched] == ["one", "two"][: 1 + may_lead]
    assert [one.engines for one in found] == [engines[name] for name in searched]
    assert [engine.name for engine in rest.others] == ([] if may_lead else ["two"])
    assert ("two: not searched, since one is faster; --effort thorough searches all" in rest.notes) != may_lead
    searches.run(Selection(engines), nothing, None, 1.0)
    assert searched[-2:] == ["one", "two"], "they were not ranked, so that all are searched for"


def test_what_is_expected_of_kernels_has_a_gain_in_it() -> None:
    """So it is not taken for a lead twice."""
    ranked = Selection({}, expected_s={KERNEL_PRICES: 1.0, "one": 1.3})
    assert not ranked.may_lead("one", {KERNEL_PRICES: 1.0})
    assert ranked.may_lead("one", {KERNEL_PRICES: 4.0})
    assert not Selection({}, expected_s={"two": 1.0, "one": 13.0}).may_lead("one", {"two": 4.0})


def test_what_an_engine_refuses_is_told_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    engines = [Eager(), Fake("one"), Fake("broken", refuses="broken cannot run this module: for a reason")]
    found = _selected(monkeypatch, engines, "quick", kernels=9.0, one=1.0)
    assert list(found.searched) == ["one"]
    assert "broken cannot run this module: for a reason" in found.notes
    assert not found.others


@pytest.mark.parametrize("effort", EFFORTS)
def test_no_engine_is_searched_for_that_computes_the_unchanged_graph_wrongly(
    effort: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines = [Eager(), Fake("one"), Fake("off", is_wrong=True)]
    found = _selected(monkeypatch, engines, effort, kernels=9.0, one=2.0, off=1.0)
    assert "off" not in found.searched
    assert "one" in found.searched
    assert [engine.name for engine in found.others if engine.name == "off"] == []
    assert list(found.built) == ["one"]
    assert any(note.startswith("off: not tried, since the unchanged graph is wrong there") for note in found.notes)
    wrong = [Fake("openvino", is_wrong=True)]
    asked = _selected(monkeypatch, wrong, effort, runtime="openvino", kernels=9.0, openvino=1.0)
    assert list(asked.searched) == ["openvino"], "the evaluation tells"


def test_an_engine_that_was_asked_for_is_tried_at_any_effort() -> None:
    engines, _ = engines_for(Options(runtime="inductor", effort="quick"), CPU)
    assert any(engine.is_compiler for engine in engines)
    engines, _ = engines_for(Options(runtime="auto", effort="quick"), CPU)
    assert engines
    assert not any(engine.is_compiler for engine in engines)


def test_a_compiler_is_tried_in_one_form_unless_the_effort_is_thorough() -> None:
    def compilers(effort: str, **options: Any) -> list[str]:
        engines, _ = engines_for(Options(runtime="auto", effort=effort, **options), CPU)
        return [engine.name for engine in engines if engine.is_compiler and not engine.is_ahead_of_time]

    forms = ["inductor", "inductor-freezing", "inductor-max-autotune", "inductor-kernels"]
    assert compilers("thorough") == forms
    assert compilers("normal") == forms[-1:]
    assert compilers("normal", kernels=False) == forms[:-1], "none is around kernels if none are chosen"
    ahead, _ = engines_for(Options(runtime="auto", effort="thorough", kernels=False), CPU)
    assert "aot-inductor" in [engine.name for engine in ahead], "it is a form of its own"
    asked, _ = engines_for(Options(runtime="inductor"), CPU)
    assert [engine.name for engine in asked] == forms


def test_on_a_gpu_it_is_the_captured_form_around_kernels_unless_sizes_are_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def absence(engine: Engine, device: torch.device) -> str | None:
        return None if engine.suits(device) else "elsewhere"

    for kind in (Engine, TensorRt):
        monkeypatch.setattr(kind, "absence", absence)

    def names(effort: str, *, is_open: bool = False) -> list[str]:
        engines, _ = engines_for(Options(runtime="auto", effort=effort), torch.device("cuda"), is_open=is_open)
        return [engine.name for engine in engines]

    assert names("quick") == ["eager", "cudagraph"]
    assert names("normal") == ["eager", "cudagraph", "inductor-kernels-cudagraph", "tensorrt"]
    assert names("thorough") == names("normal", is_open=True), "what is captured has one size"
    assert {"inductor", "inductor-cudagraph", *names("normal")} < {*names("thorough")}


def test_seconds_that_are_given_are_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    for seconds, level in ((10.0, "quick"), (60.0, "normal"), (600.0, "thorough")):
        effort = within(seconds)
        families = min(effort.families, 2)
        assert effort.finalists == EFFORTS[level].finalists
        assert 0.5 * seconds < families * (effort.measure_s + effort.search_s) + effort.race_s < seconds
    assert Options(within=10.0).effective_effort == within(10.0)
    assert [Options(effort=name).limits().patience for name in EFFORTS] == [25, 50, 100]
    assert Options(within=10.0).limits().patience == 25
    assert Options(within=10.0, time_limit=1.0).limits().seconds == 1.0
