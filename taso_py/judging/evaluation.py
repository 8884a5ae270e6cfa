"""Evaluation of the finalists: build them, race them end to end, compare them with the original, confirm the winner.

Invariant: a winner other than the original was significantly faster than the original in a separate race, held after it
had been picked; its outputs, both of its saved form, reloaded, and of the module that was timed, agreed with the
original's; and if rules were applied, it was also significantly faster than the unchanged graph in the same runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import fx, nn

from taso_py.backend import NO_PLAN, UNLIMITED, Plan, Program, build, fold, poison
from taso_py.backend.writes import Writes
from taso_py.checking.compare import EXAMPLE, Comparison, OutputComparison
from taso_py.checking.preserve import preserve_state, repeatable
from taso_py.checking.regions import first_mismatch
from taso_py.effort import Effort
from taso_py.engines.engine import Built, Engine, EngineUnavailableError
from taso_py.engines.table import ENGINES
from taso_py.ir.errors import TasoError, first_line
from taso_py.ir.graph import Graph
from taso_py.judging.expected import ExpectedOutputs
from taso_py.judging.finalists import (
    ORIGINAL,
    Contestant,
    Finalist,
    adds_nothing,
    contestants,
    describe,
    is_unchanged_twin,
    leaders,
    settle,
    unique,
)
from taso_py.judging.timing import CONFIDENCE, Race, RaceStop, Ratio, confirm, race
from taso_py.kernels.saved import dump
from taso_py.models.source import Source
from taso_py.progress import Phases
from taso_py.saving.artifact import SavedForm, read_back
from taso_py.saving.savable import UNSAVABLE, pt2_bytes, unsavable
from taso_py.search.result import Candidate, SearchResult
from taso_py.search.trace import TraceError

RACED_ROUNDS = 3
"""Fewest rounds of a race of finalists: of a model that takes half a second, eight seconds are one round."""
COMPILED_FINALISTS = 1
"""The number of rewritten graphs that are built for compilers, which take up to a minute for each."""
EVEN = Ratio(1.0, 1.0, 1.0, 0, 1.0)
"""The ratio of something to itself."""


class EvaluationError(TasoError):
    """Raised if an evaluation has no acceptable outcome."""


@dataclass(frozen=True)
class EngineSearch:
    """The result of a search, with the engines whose prices it used."""

    result: SearchResult
    engines: Sequence[Engine]
    """Engines in which the graphs may run."""


@dataclass(frozen=True)
class EvaluationOutcome:
    """The winner, with the evidence that it is correct and faster."""

    winner: Finalist
    saved: SavedForm
    """The winner's saved form; an empty one if results are not reloaded."""
    comparison: Comparison
    speedup: Ratio
    """Speed-up over the original."""
    rules_speedup: Ratio
    """Speed-up over the unchanged graph in the same runtime."""
    seconds: tuple[float, float]
    """Medians of original and winner in the confirming race."""
    first: Race
    """The race of all finalists, after which another one may have decided between the fastest of each engine."""
    final: Race
    """The confirming race of original and winner; the first race if the original is kept."""
    contestants: Mapping[str, Contestant]
    """The finalists of the first race, by name, without the original."""
    rules_race: Race | None = None
    """The race of unchanged graph and winner in the same runtime; None if no rule was applied."""


@dataclass
class Evaluation:
    """Evaluates the finalists of one model; ``notes`` collects messages for the user."""

    expected: ExpectedOutputs
    """The outputs that finalists are compared with."""
    planner: Callable[[Graph, Engine], Plan]
    """Chooses kernels and memory formats for an engine."""
    effort: Effort
    """Limits on the time for races and on the number of graphs."""
    phases: Phases = field(default_factory=Phases)
    reload: bool = True
    """True if results are compared in their saved form, loaded again; otherwise as they were built."""
    saves: bool = False
    """True if the winner will be saved, so that it must have a saved form."""
    built: Mapping[str, Built] = field(default_factory=dict[str, Built])
    """The unchanged graph in engines, by name, as far as it was built before."""
    notes: list[str] = field(default_factory=list[str])
    is_interrupted: bool = False
    """True if a race was interrupted from the keyboard; then only the leader is confirmed, in few rounds."""

    @property
    def source(self) -> Source:
        """The model that is optimized."""
        return self.expected.source

    @property
    def program(self) -> Program:
        """Its program."""
        return self.expected.program

    @property
    def seed(self) -> int:
        """Seed of the order of turns."""
        return self.expected.seed

    def run(self, searches: Sequence[EngineSearch], others: Sequence[Engine] = ()) -> EvaluationOutcome:
        """Build the graphs of the searches for their engines, and find the winner.

        Args:
            searches: the results of the searches.
            others: engines in which only the unchanged graph is tried.

        Raises:
            EvaluationError: the imported graph does not agree with the original.
            KeyboardInterrupt: it came before the first round of the race, or of a confirming race, was complete.
        """
        with self.phases.phase("build", "modules to time, of the best graphs"):
            finalists = {finalist.name: finalist for finalist in self._finalists(searches, others)}
        first = self._race(finalists, "these against the original", self.seed)
        if not first.rounds:
            raise KeyboardInterrupt
        raced = [name for name in finalists if first.times[name]]
        ranking = sorted(raced, key=lambda name: -first.ratio(name).median)
        ranking = [name for name in ranking if not adds_nothing(finalists[name], finalists, first)]
        ahead = self._decided(ranking[: ranking.index(ORIGINAL)], finalists, first)
        for number, name in enumerate(ahead):
            # Each may win by chance. Halving the error probability from one to the next bounds the total by 5 %.
            outcome = self._confirmed_outcome(finalists[name], finalists, first, (1 - CONFIDENCE) / 2**number)
            if outcome is not None:
                return outcome
            if self.is_interrupted:
                break
        return self._original_wins(finalists, first)

    def _race(self, finalists: Mapping[str, Finalist], about: str, seed: int) -> Race:
        """Return a race of finalists, of which the first is the baseline; it has no rounds if it was interrupted."""
        with (
            self._preserve_state(*(finalist.module for finalist in finalists.values())),
            self.phases.phase_with_bar("race", about) as on_share,
        ):
            found = race(
                {name: self._call_of(finalist) for name, finalist in finalists.items()},
                device=self.program.device,
                seconds=self.effort.race_s,
                seed=seed,
                least=RACED_ROUNDS,
                settle=settle(finalists.values()),
                on_round=on_share,
            )
        self._record_interrupt(found)
        return found

    def _decided(self, ranking: Sequence[str], finalists: Mapping[str, Finalist], first: Race) -> Sequence[str]:
        """Return a ranking after another race of the fastest of each engine, if the first ended before one led.

        Engines differ by more than their graphs do, and few contestants have many rounds.
        """
        tied = leaders(ranking, finalists, first)
        if first.stop is not RaceStop.TIME or len(tied) < 2:
            return ranking
        second = self._race({name: finalists[name] for name in tied}, "the fastest of each engine", self.seed + 2)
        if not second.rounds:
            return ranking
        fastest, *_ = decided = sorted(tied, key=lambda name: -second.ratio(name).median)
        if fastest != tied[0]:
            ratio = second.ratio(fastest)
            self._note(f"{fastest}: {_interval_text(ratio)} as fast as {tied[0]}, which led a shorter race of all")
        return [*decided, *(name for name in ranking if name not in tied)]

    def _finalists(self, searches: Sequence[EngineSearch], others: Sequence[Engine]) -> Iterator[Finalist]:
        original, engine = self._original()
        unchanged = searches[0].result.original
        yield Finalist(
            ORIGINAL,
            candidate=unchanged,
            program=self.program,
            plan=NO_PLAN,
            engine=ENGINES[engine],
            runner=original,
            module=original,
        )
        taken: set[str] = {ORIGINAL}
        yield from self._build_for(unchanged, others, taken)
        for found in searches:
            rewritten = [candidate for candidate in found.result.candidates if candidate.applied]
            for candidate in [found.result.original, *rewritten]:
                is_for_compilers = candidate in (found.result.original, *rewritten[:COMPILED_FINALISTS])
                usable = [engine for engine in found.engines if is_for_compilers or not engine.is_compiler]
                try:
                    yield from self._build_for(candidate, usable, taken)
                except torch.OutOfMemoryError as error:
                    self._note(f"{describe(candidate)}: not built, out of memory ({first_line(error)})")

    def _original(self) -> tuple[nn.Module, str]:
        """Return the module that results are compared with and that is returned if nothing is faster, and its engine.

        It is the user's module, an ONNX file in ONNX Runtime, or an exported program as plain calls of its operators:
        the module that PyTorch makes of a program first runs checks that take tens of microseconds.
        """
        module = self.source.module
        if self.source.onnx is not None:
            return self.source.onnx.module, self.source.onnx.engine
        return module if isinstance(module, nn.Module) else build(self.program, Plan(direct=True)), "eager"

    def _build_for(self, candidate: Candidate, engines: Sequence[Engine], taken: set[str]) -> Iterator[Finalist]:
        """Yield a candidate built for each of the engines that can run it."""
        program = fold(replace(self.program, graph=candidate.graph), UNLIMITED)
        for engine in engines:
            plan = self.planner(program.graph, engine)
            built = None if candidate.applied else self.built.get(engine.name)
            try:
                built = built or self._built(program, plan, engine)
            except EngineUnavailableError as error:
                self._note(str(error))
                continue
            name = unique(f"{describe(candidate)}, {engine.name}", taken)
            yield Finalist(
                name,
                candidate=candidate,
                program=program,
                plan=plan,
                engine=engine,
                runner=built.runner,
                module=built.module,
            )

    def _built(self, program: Program, plan: Plan, engine: Engine) -> Built:
        args, kwargs, resizable = self.source.args, self.source.kwargs, bool(self.program.open)
        module = engine.build(program, plan)
        with self._preserve_state(module):
            return Built(module, engine.prepare(module, args, kwargs, resizable=resizable))

    def _confirmed_outcome(
        self, finalist: Finalist, finalists: Mapping[str, Finalist], first: Race, doubt: float
    ) -> EvaluationOutcome | None:
        """Return the outcome with this finalist as the winner; None, with a note, if it is not acceptable."""
        rules_race = None
        if finalist.candidate.applied:  # first, since rules gain less than engines, and so fail more often
            unchanged = next((f for f in finalists.values() if is_unchanged_twin(f, finalist)), finalists[ORIGINAL])
            rules_race = self._confirmed(unchanged, finalist, doubt, "the unchanged graph")
            if rules_race is None:
                return None
        final = self._confirmed(finalists[ORIGINAL], finalist, doubt, "the original")
        if final is None:
            return None
        # Last, since it takes longer and hardly ever refuses anything.
        with self.phases.phase("compare", "its outputs with the original's, in float64"):
            saved, comparison = self._compare(finalist)
        reason = comparison.reason if not comparison.passed else self._wrong_step(finalist.candidate)
        if reason is not None:
            self._note(f"refused {finalist.name}: {reason}")
            return None
        return EvaluationOutcome(
            winner=finalist,
            saved=saved,
            comparison=comparison,
            speedup=final.ratio("winner"),
            rules_speedup=EVEN if rules_race is None else rules_race.ratio("winner"),
            seconds=(median(final.times["baseline"]), median(final.times["winner"])),
            first=first,
            final=final,
            contestants=contestants(finalists),
            rules_race=rules_race,
        )

    def _wrong_step(self, candidate: Candidate) -> str | None:
        """Return what is wrong with a step of a candidate's trace; None if all are correct."""
        try:
            wrong = first_mismatch(self.program.graph, candidate.trace, self.seed, self.program.device)
        except TraceError as error:
            return str(error)
        return None if wrong is None else str(wrong)

    def _original_wins(self, finalists: Mapping[str, Finalist], first: Race) -> EvaluationOutcome:
        original = finalists[ORIGINAL]
        with self.phases.phase("compare", "the original with its graph"):
            saved, comparison = self._compare(original)
        if not comparison.passed:
            raise EvaluationError(
                f"the unchanged graph disagrees with the model; please report this: {comparison.reason}"
            )
        self._note("nothing was surely faster than the original, which is kept as it is")
        if original.module is self.source.module and Writes.of(self.program.graph).buffers:
            self._note("the model itself is returned: calls of the result write to the model's buffers")
        seconds = median(first.times[ORIGINAL])
        return EvaluationOutcome(
            winner=original,
            saved=saved,
            comparison=comparison,
            speedup=EVEN,
            rules_speedup=EVEN,
            seconds=(seconds, seconds),
            first=first,
            final=first,
            contestants=contestants(finalists),
        )

    def _compare(self, finalist: Finalist) -> tuple[SavedForm, Comparison]:
        """Return a finalist's saved form, and the comparison of its outputs, run with dead values overwritten."""
        try:
            saved, program, module = self._reload(finalist)
        except UNSAVABLE as error:
            if finalist.is_original:
                raise unsavable(error) from error
            problem = f"cannot be saved ({error})"
            return SavedForm(), Comparison((OutputComparison.failed(0, EXAMPLE, problem),))
        judged = module if finalist.plan is NO_PLAN and saved.plan is None else poison(module)
        comparisons: list[Comparison] = []
        for oracle in self.expected.oracles:
            with self._preserve_state(judged):
                comparisons.append(oracle.compare(judged))
        self._note(*self.expected.notes)
        is_own = finalist.module is self.source.module
        if all(found.passed for found in comparisons) and not is_own and self.expected.is_comparable(finalist.engine):
            comparisons += self._compare_as_timed(finalist, saved.files, program)
        return saved, Comparison(tuple([output for found in comparisons for output in found.outputs]))

    def _compare_as_timed(
        self, finalist: Finalist, files: Mapping[str, bytes], program: Program
    ) -> Iterator[Comparison]:
        """Yield comparisons of the module that was timed and is returned; the saved form may be computed differently.

        If the engine has files of its own, other sizes are compared too, and the module loaded from them.
        """
        oracles = self.expected.oracles if finalist.engine.file else self.expected.oracles[:1]
        runners = [(finalist.runner, finalist.module)]
        if files:
            loaded = _load_from_files(finalist.engine, files, program)
            runners.append((loaded, loaded))
        for oracle, (runner, state) in product(oracles, runners):
            with self._preserve_state(state):
                timed = oracle.compare(runner, state=state)
            yield Comparison(tuple(replace(output, as_timed=True) for output in timed.outputs))

    def _reload(self, finalist: Finalist) -> tuple[SavedForm, Program, fx.GraphModule]:
        """Return a finalist's saved form, with program and module read from it; those at hand if it is not saved.

        Raises:
            TasoError: the result is to be saved and cannot be.
        """
        try:
            if self.reload:
                return self._through_file(finalist)
        except UNSAVABLE as error:
            if self.saves:
                raise
            self._note(f"cannot be saved ({error}); the result was checked without a round trip through a file")
        return SavedForm(), finalist.program, build(finalist.program, finalist.plan)

    def _through_file(self, finalist: Finalist) -> tuple[SavedForm, Program, fx.GraphModule]:
        def choose(program: Program) -> Mapping[str, Any] | None:
            plan = self._plan_as_saved(finalist, program.graph)
            return None if plan is NO_PLAN else dump(plan)

        content = pt2_bytes(self.source, finalist.program, self.program)
        form, program, module = read_back(content, choose, describes=self.saves)
        return replace(form, files=finalist.engine.files(finalist.module)), program, module

    def _plan_as_saved(self, finalist: Finalist, graph: Graph) -> Plan:
        """Return the plan of a finalist for its graph as it was imported again."""
        if finalist.is_original:  # the module that is loaded is one that we build, and runs as it is written
            return NO_PLAN.eager() if finalist.engine is ENGINES["eager"] else NO_PLAN
        return NO_PLAN if finalist.plan is NO_PLAN else self.planner(graph, finalist.engine)

    def _confirmed(self, baseline: Finalist, winner: Finalist, doubt: float, what: str) -> Race | None:
        """Return a confirming race against the baseline, which is ``what``; None, with a note, if it is not won."""
        found = self._confirm(baseline, winner, doubt)
        ratio = found.ratio("winner")
        if ratio.faster:
            return found
        self._note(f"{winner.name}: not surely faster when timed afresh ({_interval_text(ratio)} over {what})")
        return None

    def _confirm(self, baseline: Finalist, winner: Finalist, doubt: float) -> Race:
        modules = baseline.module, winner.module
        with (
            self._preserve_state(*modules),
            self.phases.phase_with_bar("confirm", "the fastest, timed again") as on_share,
        ):
            found = confirm(
                self._call_of(baseline),
                self._call_of(winner),
                device=self.program.device,
                seconds=0.0 if self.is_interrupted else self.effort.race_s / 2,
                seed=self.seed + 1,
                doubt=doubt,
                settle=settle([baseline, winner]),
                on_round=on_share,
            )
        self._record_interrupt(found)
        if not found.rounds:
            raise KeyboardInterrupt
        return found

    def _record_interrupt(self, found: Race) -> None:
        """Note whether a race was interrupted; later races then use the fewest rounds."""
        if found.stop is RaceStop.INTERRUPTED:
            self.is_interrupted = True
            self._note("interrupted while timing: at most the leader was timed again, in few rounds")

    def _call_of(self, finalist: Finalist) -> Callable[[], object]:
        call, arguments = self.source.call_of(finalist.runner), (self.source.args, self.source.kwargs)
        return repeatable(call, self.program, finalist.module, arguments)

    def _preserve_state(self, *modules: nn.Module) -> AbstractContextManager[None]:
        return preserve_state(self.program, modules, (self.source.args, self.source.kwargs))

    def _note(self, *texts: str) -> None:
        self.notes += [text for text in dict.fromkeys(texts) if text not in self.notes]


def _load_from_files(engine: Engine, files: Mapping[str, bytes], program: Program) -> nn.Module:
    """Return a module loaded from the files of an engine, given the program that they compute."""
    with TemporaryDirectory() as folder:
        for name, data in files.items():
            (Path(folder) / name).write_bytes(data)
        return engine.restore(program, Path(folder))


def _interval_text(ratio: Ratio) -> str:
    return f"{ratio.median:.3f}x, {ratio.low:.3f} to {ratio.high:.3f}"
