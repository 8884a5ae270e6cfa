"""The verdict: what a compiler made wrong is refused, however fast it is."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from taso_py.backend import Program
from taso_py.driver import optimize, searches, selection, write
from taso_py.driver.decisions import KNOWN_SHARE, Winners
from taso_py.driver.optimize import optimize_source
from taso_py.driver.result import Optimized
from taso_py.engines import engine
from taso_py.engines.eager import Eager
from taso_py.engines.engine import Engine
from taso_py.engines.table import ENGINES
from taso_py.ir.errors import TasoError
from taso_py.ir.graph import Graph
from taso_py.judging import building, evaluation, plausible
from taso_py.judging.expected import ExpectedOutputs
from taso_py.judging.timing import Race, RaceStop
from taso_py.models.importing import import_source
from taso_py.models.source import Source
from taso_py.options import Options
from taso_py.rules.apply import apply
from taso_py.rules.match import Match, Matcher
from taso_py.rules.text import read_rules
from taso_py.saving.loading import load
from taso_py.search.result import Candidate, SearchResult, SearchStop

X = torch.randn(64, 256, generator=torch.Generator().manual_seed(0))


class Layers(nn.Module):
    """Enough work for a call that does none of it to be surely faster."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(*(nn.Linear(256, 256) for _ in range(8)))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def _optimized(
    monkeypatch: pytest.MonkeyPatch, runner: Callable[[Tensor], Tensor], runtime: str = "inductor"
) -> Optimized:
    """What is made of the layers where whatever prepares a runtime makes ``runner`` of them."""
    for kind in (Engine, Eager):
        monkeypatch.setattr(kind, "prepare", lambda *_, **__: runner)
    options = Options(runtime=runtime, time_limit=1.0, race_seconds=0.5, kernels=False)
    return optimize_source(Source("layers", Layers().eval(), (X,), {}), options, [])


@pytest.mark.parametrize("runtime", ["eager", "inductor"])
def test_a_module_that_is_right_on_the_example_only_is_refused(runtime: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In eager mode too: what is saved and loaded again may be right all the same."""
    with torch.no_grad():
        known = Layers().eval()(X)
    found = _optimized(monkeypatch, lambda _: known, runtime)
    assert found.keeps_original
    assert any(note.startswith(f"refused unchanged graph, {runtime}: ") for note in found.report.notes)
    assert found.report.comparison_passed, "of the original"


class Doubled(nn.Module):
    """A product, whose memory the sum that follows can take."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.mm(x, x) * 2 + x


def test_a_kept_original_is_loaded_as_calls_that_are_quick_to_make(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Eager, "prepare", lambda *_, **__: torch.zeros_like)
    options = Options(runtime="eager", time_limit=1.0, race_seconds=0.1, kernels=False, cache=False)
    x, module = torch.randn(8, 8), Doubled().eval()
    assert optimize_source(Source("doubled", module, (x,), {}), options, [], tmp_path).keeps_original
    loaded = load(tmp_path)
    calls = [node.target for node in loaded.graph.nodes if node.op == "call_function"]
    assert calls[-3:] == [torch.mm, Tensor.mul_, Tensor.add_]
    assert torch.equal(loaded(x), module(x))


def test_a_compiled_module_that_is_right_and_fast_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.no_grad():
        weight = torch.eye(256)
        bias = torch.zeros(256)
        for layer in Layers().layers:
            assert isinstance(layer, nn.Linear)
            weight, bias = weight @ layer.weight.t(), bias @ layer.weight.t() + layer.bias
    # It computes less than the graph that it stands for, which no compiler could.
    monkeypatch.setattr(plausible, "BEYOND", math.inf)
    found = _optimized(monkeypatch, lambda x: x @ weight + bias)
    assert not found.keeps_original
    assert found.report.runtime in ("inductor", "inductor-freezing", "inductor-max-autotune")
    assert found.report.speedup_low > 1


class Clamped(nn.Module):
    """A function applied so often that once is surely faster."""

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(12):
            x = x.relu()
        return x


(RULE,) = read_rules("rule a: float[..B] source relu(relu(a)) target relu(a)")


refined = list[bool]()
"""Whether each search was to refine latencies."""


def _search(
    monkeypatch: pytest.MonkeyPatch, finds: Callable[[Candidate, list[tuple[Match, Graph]]], Candidate]
) -> None:
    """Every search finds what is made of the original, and of the steps to where once is left."""
    refined.clear()

    def search(graph: Graph, *_: Any, progress: bool, refines: bool) -> SearchResult:
        refined.append(refines)
        original, steps, now = Candidate(graph, graph, 1.0, 0), list[tuple[Match, Graph]](), graph
        while found := Matcher([RULE]).matches(now):
            now = apply(now, found[0]) or now
            steps.append((found[0], now))
        candidates = dict.fromkeys((finds(original, steps), original))
        return SearchResult(original, tuple(candidates), SearchStop.EXHAUSTED, 1, 1, 0.0)

    monkeypatch.setattr(searches, "search", search)


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
    refused = "refused 11 rules applied, eager: its steps one by one lead to another graph"
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


def test_a_search_is_shorter_where_as_long_a_one_has_found_a_winner(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TASO_PY_CACHE", str(tmp_path))
    _search(monkeypatch, _once)
    program = import_source(Source("clamped", Clamped().eval(), (torch.randn(500, 500),), {}))

    def share(seconds: float) -> float:
        winners = Winners(program, Options(time_limit=seconds, kernels=False), [RULE])
        return winners.share(winners.last())

    normal = Options().limits().seconds
    assert share(normal) == 1
    won = _clamped(cache=True)
    assert (share(normal), share(normal / 2), share(normal * 2)) == (KNOWN_SHARE, KNOWN_SHARE, 1)
    _clamped(cache=True)
    assert refined == [True, False], "the first has refined what decides"
    Winners(program, Options(time_limit=normal * 2, kernels=False), [RULE]).remember(won)
    _clamped(cache=True)
    assert share(normal * 2) == KNOWN_SHARE, "the longest search counts"


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


class Counting(nn.Module):
    """A model with state: it counts its calls, and enough else for a call to be timed."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Tensor
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.calls.add_(1)
        return torch.relu(x.relu()) + self.calls, self.calls


@pytest.mark.parametrize("runtime", ["eager", "inductor"])
def test_neither_model_nor_result_remembers_the_race(
    runtime: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def prepare(_: Engine, module: nn.Module, args: Sequence[Any], kwargs: dict[str, Any], **__: Any) -> nn.Module:
        """As compilers do, calls the module."""
        module(*args, **kwargs)
        return module

    for kind in (Engine, Eager):
        monkeypatch.setattr(kind, "prepare", prepare)
    model, x = Counting().eval(), torch.randn(100, 100)
    model(x)
    options = Options(runtime=runtime, race_seconds=0.1, time_limit=1.0, cache=False)
    found = optimize_source(Source("counting", model, (x,), {}), options, [RULE], tmp_path)
    assert found.report.comparison_passed
    assert int(model.calls) == 1
    for count in (2, 3):
        value, calls = found.module(x)
        assert int(calls) == count
        torch.testing.assert_close(value, x.relu() + count)
    assert int(load(tmp_path)(x)[1]) == 2


class Bits(nn.Module):
    """Reads the bits of numbers, of which float64 has others."""

    def forward(self, x: Tensor) -> Tensor:
        return x.view(torch.int32) + 1


def test_without_a_reference_the_original_is_what_a_result_is_compared_with() -> None:
    found = optimize.optimize(Bits(), X, race_seconds=0.1, time_limit=1.0, cache=False)
    assert found.report.comparison_passed
    assert any(note.startswith("the model cannot be computed in float64") for note in found.report.notes)
    assert torch.equal(found.module(X), X.view(torch.int32) + 1)


@pytest.mark.parametrize("body", ["writes", "asserts", "draws"])
def test_what_a_compiler_made_is_compared_unless_it_draws_numbers(body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Effects(Layers):
        def __init__(self) -> None:
            super().__init__()
            self.calls: Tensor
            self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

        def forward(self, x: Tensor) -> Tensor:
            if body == "writes":
                self.calls.add_(1)
            elif body == "asserts":
                torch.ops.aten._assert_async.default(x.sum() > -1e9)
            else:
                return super().forward(x) + 1e-9 * torch.rand(1)
            return super().forward(x)

    monkeypatch.setattr(Engine, "prepare", lambda *_, **__: lambda x: torch.zeros_like(x))
    options = Options(runtime="inductor", time_limit=1.0, race_seconds=0.1, kernels=False, cache=False)
    found = optimize_source(Source("effects", Effects().eval(), (X,), {}), options, [])
    assert found.keeps_original == (body != "draws")


def test_state_does_not_develop_from_one_comparison_to_the_next() -> None:
    """Sizes that are open are compared by an oracle of their own, whose original begins anew."""
    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(Counting().eval(), (torch.randn(4, 8),), dynamic_shapes=({0: batch},))
    found = optimize.optimize(program, race_seconds=0.1, time_limit=1.0, cache=False)
    assert found.report.comparison_passed


def test_an_interrupt_before_anything_is_confirmed_ends_it_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> Race:
        return Race({"baseline": (), "winner": ()}, RaceStop.INTERRUPTED)

    monkeypatch.setattr(evaluation, "confirm", interrupted)
    _search(monkeypatch, _once)
    with pytest.raises(KeyboardInterrupt):
        _clamped()


def test_after_an_interrupt_the_leader_alone_is_confirmed_and_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[float]()

    def interrupted(contestants: Mapping[str, object], **_: object) -> Race:
        return Race({name: (9.0 - place,) * 6 for place, name in enumerate(contestants)}, RaceStop.INTERRUPTED)

    def none_is_faster(*_: object, seconds: float, **__: object) -> Race:
        asked.append(seconds)
        return Race({"baseline": (1.0,) * 10, "winner": (1.0,) * 10}, RaceStop.ROUNDS)

    monkeypatch.setattr(evaluation, "race", interrupted)
    monkeypatch.setattr(evaluation, "confirm", none_is_faster)
    _search(monkeypatch, _once)
    found = _clamped()
    assert found.keeps_original
    assert set(asked) == {0.0}
    assert len(asked) <= 2
    assert any(note.startswith("interrupted while timing") for note in found.report.notes)


@pytest.mark.parametrize(("home", "step"), [(building, "fold"), (engine, "build")])
def test_a_finalist_that_memory_is_too_small_for_is_left_out(
    home: ModuleType, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = getattr(home, step)

    def limited(program: Program, *others: object) -> object:
        if len(program.graph.nodes) < 10:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nand more")
        return real(program, *others)

    _search(monkeypatch, _once)
    monkeypatch.setattr(home, step, limited)
    found = _clamped()
    assert not found.report.applied
    assert any("not built, out of memory (CUDA out of memory" in note for note in found.report.notes)


def test_a_page_that_is_interrupted_costs_nothing_else(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(write, "gather_evidence", interrupted)
    (tmp_path / "report.html").write_text("of an earlier result")
    (tmp_path / "plan.json").write_text(
        '{"version": 1, "model": "of another model", "runtime": "eager", "files": {"report.html": ""}}'
    )
    found = optimize.optimize(Layers().eval(), X, race_seconds=0.1, time_limit=1.0, cache=False, output=tmp_path)
    assert any("interrupted before report.html was made" in note for note in found.report.notes)
    saved = {"model.pt2", "original.pt", "plan.json", "program.json", "report.json", "trace.rules"}
    assert {path.name for path in tmp_path.iterdir()} == saved
    assert load(tmp_path)(X).shape == X.shape


def _all_lead(contestants: Mapping[str, object], **_: object) -> Race:
    return Race({name: (9.0 - place,) * 6 for place, name in enumerate(contestants)}, RaceStop.TIME)


def test_each_finalist_is_confirmed_with_half_the_doubt_of_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """The more are tried, the more likely is it that one is taken for faster by chance."""
    doubts = dict[float, None]()

    def none_is_faster(*_: object, doubt: float, **__: object) -> Race:
        doubts[doubt] = None
        return Race({"baseline": (1.0,) * 10, "winner": (1.0,) * 10}, RaceStop.ROUNDS)

    monkeypatch.setattr(evaluation, "race", _all_lead)
    monkeypatch.setattr(evaluation, "confirm", none_is_faster)
    _search(monkeypatch, _once)
    assert _clamped().keeps_original
    assert list(doubts) == pytest.approx([0.05, 0.025])


def test_what_rules_gain_is_confirmed_before_what_an_engine_gains(monkeypatch: pytest.MonkeyPatch) -> None:
    """They gain less, and an engine's gain can be confirmed without them."""
    timed = list[tuple[str, str]]()

    def confirmed(
        self: evaluation.Evaluation, baseline: evaluation.Finalist, winner: evaluation.Finalist, doubt: float
    ) -> Race:
        timed.append((winner.name, baseline.name))
        gain = 1.0 if winner.candidate.applied else 2.0
        return Race({"baseline": (gain,) * 10, "winner": (1.0,) * 10}, RaceStop.ROUNDS)

    monkeypatch.setattr(evaluation, "race", _all_lead)
    monkeypatch.setattr(evaluation.Evaluation, "_confirm", confirmed)
    _search(monkeypatch, _once)
    found = _clamped()
    unchanged, rewritten = "unchanged graph, eager", "11 rules applied, eager"
    assert timed == [(rewritten, unchanged), (unchanged, evaluation.ORIGINAL)]
    assert (found.report.applied, found.report.speedup) == ((), 2.0)
    assert any(f"{rewritten}: not surely faster when timed afresh (1.000x" in note for note in found.report.notes)


@pytest.mark.parametrize("is_faster", [True, False])
def test_what_is_not_confirmed_is_not_compared_but_what_comes_back_is(
    is_faster: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = list[str]()
    real = evaluation.Evaluation._compare

    def comparing(self: evaluation.Evaluation, finalist: evaluation.Finalist) -> object:
        compared.append(finalist.name)
        return real(self, finalist)

    def confirmed(*_: object, **__: object) -> Race:
        return Race({"baseline": (2.0 if is_faster else 1.0,) * 10, "winner": (1.0,) * 10}, RaceStop.ROUNDS)

    monkeypatch.setattr(evaluation.Evaluation, "_compare", comparing)
    monkeypatch.setattr(evaluation, "race", _all_lead)
    monkeypatch.setattr(evaluation, "confirm", confirmed)
    _search(monkeypatch, _once)
    found = _clamped()
    assert compared == (["11 rules applied, eager"] if is_faster else [evaluation.ORIGINAL])
    assert found.keeps_original is not is_faster


def test_optimizing_in_inference_mode_gives_a_result_for_outside_of_it() -> None:
    model = Layers().eval()
    with torch.inference_mode():
        x = torch.randn(4, 256)
        found = optimize.optimize(model, x, race_seconds=0.1, time_limit=1.0, cache=False)
    y = torch.randn(4, 256, requires_grad=True)
    torch.testing.assert_close(found.module(y), model(y), rtol=1e-4, atol=1e-5)


def test_keywords_take_the_place_of_a_programs_own_inputs() -> None:
    class Doubled(nn.Module):
        def forward(self, *, x: Tensor) -> Tensor:
            return x + x

    program = torch.export.export(Doubled(), (), {"x": torch.ones(3)})
    with pytest.raises(TasoError, match="shape"):
        optimize.optimize(program, example_kwargs={"x": torch.ones(4)}, race_seconds=0.1)


def test_what_is_no_model_or_no_runtime_is_one_line() -> None:
    with pytest.raises(TasoError, match=r"a function is no model; give an nn\.Module or an exported program"):
        optimize.optimize(lambda x: x, X)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TasoError, match="no runtime is called gpu; there are auto, eager"):
        optimize.optimize(Layers(), X, runtime="gpu")


def test_results_are_made_of_copies_of_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    model, seen = Layers().eval(), list[Tensor]()

    def seeing(expected: ExpectedOutputs, *_: object) -> None:
        seen.extend(expected.program.weights.values())
        raise TasoError("seen")

    monkeypatch.setattr(optimize, "select", seeing)
    with pytest.raises(TasoError, match="seen"):
        optimize.optimize(model, X)
    assert len(seen) == 16
    assert {tensor.data_ptr() for tensor in seen}.isdisjoint(p.data_ptr() for p in model.parameters())


@pytest.mark.parametrize(
    ("runtimes", "captured"), [(("cudagraph",), True), (("eager",), False), (("eager", "cudagraph"), False)]
)
def test_kernels_are_priced_captured_where_all_that_is_made_of_them_is(
    runtimes: Sequence[str], captured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Asked(TasoError):
        pass

    def asked(*_: object, **settings: object) -> None:
        raise Asked(settings["captured"])

    monkeypatch.setattr(selection, "engines_to_try", lambda *_: ([ENGINES[name] for name in runtimes], []))
    monkeypatch.setattr(searches, "CostModel", asked)
    with pytest.raises(Asked, match=str(captured)):
        optimize.optimize(Layers().eval(), X)


def test_an_interrupt_before_the_first_round_ends_it_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is known of any contestant then, not even of the original."""

    def interrupted(contestants: Mapping[str, object], **_: object) -> Race:
        return Race(dict.fromkeys(contestants, ()), RaceStop.INTERRUPTED)

    monkeypatch.setattr(evaluation, "race", interrupted)
    with pytest.raises(KeyboardInterrupt):
        optimize.optimize(Layers().eval(), X, time_limit=1.0, cache=False)
