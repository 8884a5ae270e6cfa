"""The trial of the search's best graphs: built, raced end to end, compared with the original, confirmed.

Invariant: what wins, unless it is the original itself, was surely faster than the original in a race held after it had
been picked, and both its saved form, reloaded, and what a compiler made of it agreed with the original; rules that win
were surely faster than the unchanged graph in the same runtime.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import count, product
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import fx, nn

from taso_py.backend import NO_PLAN, UNLIMITED, Plan, Program, build, fold, poison, retype
from taso_py.backend.contract import may_draw_random
from taso_py.backend.writes import is_write
from taso_py.checking.compare import (
    EXAMPLE,
    Arguments,
    Comparison,
    Oracle,
    OutputComparison,
    input_cases,
    without_reference,
)
from taso_py.checking.kept import state_kept
from taso_py.checking.regions import first_wrong
from taso_py.checking.resize import resized_cases
from taso_py.checking.roundtrip import without_fused_attention
from taso_py.documents import page
from taso_py.effort import Effort
from taso_py.engines.engine import Engine, EngineUnavailableError, Runner
from taso_py.engines.table import ENGINES
from taso_py.ir.errors import TasoError, first_line
from taso_py.ir.graph import Graph
from taso_py.judging.timing import CONFIDENCE, INDIFFERENCE, Race, Ratio, confirm, race
from taso_py.judging.timing import StopReason as RaceStop
from taso_py.kernels.saved import dump
from taso_py.latency.idle import wait_until_idle
from taso_py.models.source import Source
from taso_py.progress import Phases
from taso_py.saving.artifact import deserialize, reimport
from taso_py.saving.savable import UNSAVABLE, file_of
from taso_py.search.result import Candidate, SearchResult
from taso_py.search.trace import TraceError

ORIGINAL = "original"
COMPILED_FINALISTS = 1
"""How many rewritten graphs are built for engines that are compilers, which takes up to a minute each."""
IMPORT_ERROR, IMPORT_SLACK = 3e-4, 8
"""By how much the graph may differ from the model at all, relative to the greatest value: so much, or so many times
what a result may differ by, which in half precision is more."""
EVEN = Ratio(1.0, 1.0, 1.0, 0, 1.0)
"""What is compared with itself."""


class TrialError(TasoError):
    """A trial that has no acceptable outcome."""


@dataclass(frozen=True)
class Searched:
    """The graphs that a search found by the prices of some engines."""

    result: SearchResult
    engines: Sequence[Engine]
    """Where they may run."""


@dataclass(frozen=True)
class Finalist:
    """A graph, built for an engine; or the original module."""

    name: str
    candidate: Candidate
    program: Program
    plan: Plan
    engine: Engine
    runner: Runner
    module: nn.Module
    """What the runner runs."""


@dataclass(frozen=True)
class Contestant:
    """A finalist without its module."""

    engine: str
    is_rewritten: bool


@dataclass(frozen=True)
class Judgement:
    """The winner with its evidence."""

    winner: Finalist
    content: bytes
    """Its ``.pt2`` file; empty where results are not reloaded."""
    plan: Mapping[str, Any] | None
    """How the graph that the file is imported as is computed, if not plainly."""
    comparison: Comparison
    speedup: Ratio
    """Over the original."""
    rules_speedup: Ratio
    """Over the unchanged graph in the same runtime."""
    seconds: tuple[float, float]
    """Medians of original and winner in the confirming race."""
    first: Race
    """The race of all."""
    final: Race
    """The race of original and winner that confirms it; the first race where the original is kept."""
    contestants: Mapping[str, Contestant]
    """Who took part in the first race, by name."""


@dataclass
class Trial:
    """A trial of one model's finalists; ``notes`` collects what the user should know."""

    source: Source
    program: Program
    planner: Callable[[Graph, Engine], Plan]
    """Chooses kernels and memory formats for an engine."""
    effort: Effort
    """How long to time, and how many graphs."""
    seed: int
    phases: Phases = field(default_factory=Phases)
    reload: bool = True
    """Whether results are compared in the form that they are saved in, loaded again; otherwise as they are."""
    saves: bool = False
    """Whether the winner is going to be saved, so that it must have such a form."""
    notes: list[str] = field(default_factory=list[str])
    is_interrupted: bool = False
    """Whether a race was interrupted from the keyboard: the leader alone is confirmed then, in few rounds."""

    def hold(self, searches: Sequence[Searched], others: Sequence[Engine] = ()) -> Judgement:
        """Builds what searches found for the engines that it was found for, and finds the winner.

        Args:
            searches: what was found.
            others: engines in which the unchanged graph alone is tried.

        Raises:
            TrialError: not even the original agrees with itself.
            KeyboardInterrupt: it came before it was known what the original takes, or before the first round of a
                confirming race.
        """
        with self.phases.phase("build", "modules to time, of the best graphs"):
            finalists = {finalist.name: finalist for finalist in self._finalists(searches, others)}
        everything = [finalist.module for finalist in finalists.values()]
        with self._keeping(*everything), self.phases.timed("race", "these against the original") as on_share:
            first = race(
                {name: self.source.call_of(finalist.runner) for name, finalist in finalists.items()},
                device=self.program.device,
                seconds=self.effort.race_s,
                seed=self.seed,
                settle=_settle(finalists.values()),
                on_round=on_share,
            )
        self._heed(first)
        raced = [name for name in finalists if first.times[name]]
        ranking = sorted(raced, key=lambda name: -first.ratio(name).median)
        ranking = [name for name in ranking if not _adds_nothing(finalists[name], finalists, first)]
        for number, name in enumerate(ranking[: ranking.index(ORIGINAL)]):
            # Each may win by chance, in half of its doubt. With half as much from one to the next, all come to 5 %.
            judgement = self._judge(finalists[name], finalists, first, (1 - CONFIDENCE) / 2**number)
            if judgement is not None:
                return judgement
            if self.is_interrupted:
                break
        return self._original_wins(finalists, first)

    def _finalists(self, searches: Sequence[Searched], others: Sequence[Engine]) -> Iterator[Finalist]:
        original, engine = self._original()
        unchanged = searches[0].result.original
        yield Finalist(ORIGINAL, unchanged, self.program, NO_PLAN, ENGINES[engine], original, original)
        taken: set[str] = {ORIGINAL}
        yield from self._built(unchanged, others, taken)
        for found in searches:
            rewritten = [candidate for candidate in found.result.candidates if candidate.applied]
            for candidate in [found.result.original, *rewritten]:
                is_for_compilers = candidate in (found.result.original, *rewritten[:COMPILED_FINALISTS])
                usable = [engine for engine in found.engines if is_for_compilers or not engine.is_compiler]
                try:
                    yield from self._built(candidate, usable, taken)
                except torch.OutOfMemoryError as error:
                    self._note(f"{_describe(candidate)}: not built for want of memory ({first_line(error)})")

    def _original(self) -> tuple[nn.Module, str]:
        """What the user has, and gets back where nothing is faster, and the engine that it runs in.

        That is the module itself, an ONNX file in ONNX Runtime, or a program as plain calls: what PyTorch makes of a
        program calls operators by a longer way, behind checks that take tens of microseconds.
        """
        module = self.source.module
        if self.source.onnx is not None:
            return self.source.onnx.module, self.source.onnx.engine
        return module if isinstance(module, nn.Module) else build(self.program, Plan(direct=True)), "eager"

    def _built(self, candidate: Candidate, engines: Sequence[Engine], taken: set[str]) -> Iterator[Finalist]:
        """A candidate built for those of the engines that can be used."""
        program = fold(replace(self.program, graph=candidate.graph), UNLIMITED)
        for engine in engines:
            plan = self.planner(program.graph, engine)
            try:
                module = engine.build(program, plan)
                runner = self._prepare(module, engine)
            except EngineUnavailableError as error:
                self._note(str(error))
                continue
            name = _unique(f"{_describe(candidate)}, {engine.name}", taken)
            yield Finalist(name, candidate, program, plan, engine, runner, module)

    def _prepare(self, module: nn.Module, engine: Engine) -> Runner:
        args, kwargs, resizable = self.source.args, self.source.kwargs, bool(self.program.open)
        with self._keeping(module):
            return engine.prepare(module, args, kwargs, resizable=resizable)

    def _judge(
        self, finalist: Finalist, finalists: Mapping[str, Finalist], first: Race, doubt: float
    ) -> Judgement | None:
        """The finalist as winner, or None, with a note, if it is not acceptable."""
        with self.phases.phase("compare", "its results with the original's, in float64"):
            content, plan, comparison = self._compare(finalist)
        reason = comparison.reason if not comparison.passed else self._wrong_step(finalist.candidate)
        if reason is not None:
            self._note(f"refused {finalist.name}: {reason}")
            return None
        final = self._confirm(finalists[ORIGINAL], finalist, doubt)
        total = final.ratio("winner")
        rules = EVEN
        if finalist.candidate.applied:
            unchanged = next((f for f in finalists.values() if _is_unchanged_twin(f, finalist)), finalists[ORIGINAL])
            rules = self._confirm(unchanged, finalist, doubt).ratio("winner")
        if not total.faster or not (rules.faster or rules is EVEN):
            self._note(
                f"{finalist.name}: not surely faster when timed afresh ({_interval(total)} over the original, "
                f"{_interval(rules)} over the unchanged graph)"
            )
            return None
        seconds = (median(final.times["baseline"]), median(final.times["winner"]))
        contestants = _contestants(finalists)
        return Judgement(finalist, content, plan, comparison, total, rules, seconds, first, final, contestants)

    def _wrong_step(self, candidate: Candidate) -> str | None:
        """What is wrong with the steps that led to a candidate, if anything."""
        try:
            wrong = first_wrong(self.program.graph, candidate.trace, self.seed, self.program.device)
        except TraceError as error:
            return str(error)
        return None if wrong is None else str(wrong)

    def _original_wins(self, finalists: Mapping[str, Finalist], first: Race) -> Judgement:
        original, contestants = finalists[ORIGINAL], _contestants(finalists)
        with self.phases.phase("compare", "the original with its graph"):
            content, plan, comparison = self._compare(original)
        if not comparison.passed:
            raise TrialError(f"the unchanged graph disagrees with the model, please report it: {comparison.reason}")
        self._note("nothing was surely faster than the original, which is kept as it is")
        if original.module is self.source.module and any(map(is_write, self.program.graph.effects)):
            self._note("what is returned is the model itself: calls of it write to the model's buffers")
        times = median(first.times[ORIGINAL])
        return Judgement(original, content, plan, comparison, EVEN, EVEN, (times, times), first, first, contestants)

    def _compare(self, finalist: Finalist) -> tuple[bytes, Mapping[str, Any] | None, Comparison]:
        """The finalist's saved form if it has one, and how it compares, its dead values destroyed at once."""
        try:
            content, plan, module = self._reloaded(finalist)
        except UNSAVABLE as error:
            if finalist.name == ORIGINAL:
                raise
            problem = f"cannot be saved ({error})"
            return b"", None, Comparison((OutputComparison(0, EXAMPLE, math.inf, 0.0, 0.0, problem),))
        judged = module if finalist.plan is NO_PLAN else poison(module)
        comparisons: list[Comparison] = []
        for oracle in self._oracles:
            with self._keeping(judged):
                comparisons.append(oracle.compare(judged))
        self._note(*(note for oracle in self._oracles for note in oracle.notes))
        if all(found.passed for found in comparisons) and self._is_comparable(finalist):
            comparisons += self._compared_as_timed(finalist, content)
        return content, plan, Comparison(tuple([output for found in comparisons for output in found.outputs]))

    def _compared_as_timed(self, finalist: Finalist, content: bytes) -> Iterator[Comparison]:
        """How what was timed compares, which is what is returned; what is saved may be computed otherwise.

        An engine with a form of its own is compared at other sizes too, and again as it is loaded from that form.
        """
        has_own_form = bool(finalist.engine.file)
        oracles = self._oracles if has_own_form else self._oracles[:1]
        runners = [finalist.runner]
        if has_own_form and content:
            runners.append(_restored(finalist, content))
        for oracle, runner in product(oracles, runners):
            with self._keeping(finalist.module):
                timed = oracle.compare(runner)
            yield Comparison(tuple(replace(output, as_timed=True) for output in timed.outputs))

    def _is_comparable(self, finalist: Finalist) -> bool:
        """Whether what was timed can be compared: not the model itself, nor where compilers draw other numbers."""
        if finalist.module is self.source.module:
            return False
        return finalist.engine is ENGINES["eager"] or not may_draw_random(self.program)

    def _reloaded(self, finalist: Finalist) -> tuple[bytes, Mapping[str, Any] | None, fx.GraphModule]:
        """The finalist as it is saved, program and plan, and the module loaded from that; or as it is.

        Raises:
            TasoError: it has to be saved and cannot.
        """
        try:
            if self.reload:
                return self._through_file(finalist)
        except UNSAVABLE as error:
            if self.saves:
                raise
            self._note(f"cannot be saved ({error}); the result was judged as it is")
        return b"", None, build(finalist.program, finalist.plan)

    def _through_file(self, finalist: Finalist) -> tuple[bytes, Mapping[str, Any] | None, fx.GraphModule]:
        content = file_of(self.source, finalist.program, self.program)
        if finalist.plan is NO_PLAN:
            return content, None, deserialize(content)
        plan = dump(self.planner(reimport(content).graph, finalist.engine))
        return content, plan, deserialize(content, plan)

    @cached_property
    def _oracles(self) -> Sequence[Oracle]:
        """Of inputs of the sizes of the examples, and of others where the model leaves sizes open."""
        original, reference = self.source.callable(), self._reference()
        same = input_cases(self.source.args, self.source.kwargs, self.seed)
        keeping = partial(self._keeping, *(module for module in (original, reference) if module is not None))
        may_draw, every = may_draw_random(self.program), (same, self._resized())
        return [Oracle(original, reference, cases, keeping, draws=may_draw) for cases in every if cases]

    def _reference(self) -> nn.Module | None:
        """The program in float64, if all of its operators can compute in that."""
        try:
            return build(retype(self.program))
        except Exception as error:  # an operator may raise anything in an element type that is not its own
            self._note(without_reference(error))
            return None

    def _resized(self) -> Sequence[tuple[str, Arguments]]:
        """Cases of other sizes, where the model leaves them open."""
        if not self.program.open:
            return []
        modules = {"the model": self.source.callable()}
        with suppress(*UNSAVABLE):  # of which there is a note where it matters
            modules["its exported program"] = deserialize(file_of(self.source, self.program, self.program))
        with self._keeping(*modules.values()):
            cases, notes = resized_cases(self.program, modules, self.seed)
        self._note(*notes)
        return cases

    def _confirm(self, baseline: Finalist, winner: Finalist, doubt: float) -> Race:
        modules = baseline.module, winner.module
        with self._keeping(*modules), self.phases.timed("confirm", "the fastest, timed afresh") as on_share:
            found = confirm(
                self.source.call_of(baseline.runner),
                self.source.call_of(winner.runner),
                device=self.program.device,
                seconds=0.0 if self.is_interrupted else self.effort.race_s / 2,
                seed=self.seed + 1,
                doubt=doubt,
                settle=_settle([baseline, winner]),
                on_round=on_share,
            )
        self._heed(found)
        return found

    def _heed(self, found: Race) -> None:
        """Hurries after an interrupt.

        Raises:
            KeyboardInterrupt: it came before anything was known.
        """
        if found.stop is RaceStop.INTERRUPTED:
            self.is_interrupted = True
            self._note("interrupted while timing: at most the leader was timed afresh, in few rounds")
        if not found.rounds:
            raise KeyboardInterrupt

    def _keeping(self, *modules: nn.Module) -> AbstractContextManager[None]:
        return state_kept(self.program, modules)

    def _note(self, *texts: str) -> None:
        self.notes += [text for text in dict.fromkeys(texts) if text not in self.notes]


def check_import(source: Source, program: Program, seed: int) -> Sequence[str]:
    """Makes sure that the graph, computed plainly, gives what the model gives, and tells of small differences.

    Results are judged by the graph in float64, to which what was imported wrongly would seem right. Outside of exports
    multi-head attention may take a fused path, which rounds otherwise; without it the two agree to the bit as a rule.

    Raises:
        TrialError: it gives something else.
    """
    found = _compared_with_export(source, program, seed)
    most = [max(IMPORT_SLACK * output.allowed, IMPORT_ERROR) for output in found.outputs]
    within = Comparison(tuple(replace(o, allowed=limit) for o, limit in zip(found.outputs, most, strict=True)))
    if not within.passed and source.onnx is not None:
        raise TrialError(
            f"ONNX Runtime gives something else than what was read from {source.name}, please report it: "
            f"{within.reason}"
        )
    if not within.passed:
        raise TrialError(
            f"the model gives something else than its export: {within.reason}; torch.nn.TransformerEncoder with a "
            "padding mask does, unless torch.backends.mha.set_fastpath_enabled(False) is called before; "
            f"{page('limits.md')} says more"
        )
    if not found.passed:
        with without_fused_attention():
            found = _compared_with_export(source, program, seed)
    return () if found.passed else (f"the model differs a little from its export, which the result is: {found.reason}",)


def _compared_with_export(source: Source, program: Program, seed: int) -> Comparison:
    original = source.callable()
    with state_kept(program, [original]):
        cases = input_cases(source.args, source.kwargs, seed)
        return Oracle(original, None, cases, draws=may_draw_random(program)).compare(build(program))


def _contestants(finalists: Mapping[str, Finalist]) -> Mapping[str, Contestant]:
    """Who raced beside the original."""
    return {
        name: Contestant(finalist.engine.name, bool(finalist.candidate.applied))
        for name, finalist in finalists.items()
        if name != ORIGINAL
    }


def _adds_nothing(finalist: Finalist, finalists: Mapping[str, Finalist], first: Race) -> bool:
    """Whether rules gained less in a race than what is nobody's concern, so that the unchanged graph does as well."""
    if not finalist.candidate.applied:
        return False
    twins = [name for name, other in finalists.items() if _is_unchanged_twin(other, finalist)]
    return any(first.ratio(finalist.name, over=name).median < 1 + INDIFFERENCE for name in twins if first.times[name])


def _settle(finalists: Iterable[Finalist]) -> Callable[[], None] | None:
    """What to do before each turn of a race, so that no other contestant's threads are awake."""
    return wait_until_idle if any(finalist.engine.has_own_threads for finalist in finalists) else None


def _restored(finalist: Finalist, content: bytes) -> nn.Module:
    """A finalist as it comes back from its ``.pt2`` file and the files of its engine."""
    with TemporaryDirectory() as folder:
        for name, data in finalist.engine.files(finalist.module).items():
            (Path(folder) / name).write_bytes(data)
        return finalist.engine.restore(reimport(content), Path(folder))


def _describe(candidate: Candidate) -> str:
    steps = len(candidate.applied)
    return f"{steps} rule{'s' if steps > 1 else ''} applied" if steps else "unchanged graph"


def _is_unchanged_twin(one: Finalist, other: Finalist) -> bool:
    """Whether ``one`` is the unchanged graph in the engine of ``other``."""
    return one.name != ORIGINAL and not one.candidate.applied and one.engine is other.engine


def _unique(name: str, taken: set[str]) -> str:
    """The name, numbered if it is taken; it is taken from now on."""
    names = (name if number == 1 else f"{name} ({number})" for number in count(1))
    free = next(name for name in names if name not in taken)
    taken.add(free)
    return free


def _interval(ratio: Ratio) -> str:
    return f"{ratio.median:.3f}x, {ratio.low:.3f} to {ratio.high:.3f}"
