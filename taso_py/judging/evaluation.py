"""Evaluation of the finalists: build them, race them end to end, compare them with the original, confirm the winner.

Invariant: a winner other than the original was significantly faster than the original in a separate race, held after it
had been picked; its outputs, both of its saved form, reloaded, and of the module that was timed, agreed with the
original's; and if rules were applied, it was also significantly faster than the unchanged graph in the same runtime.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from torch import fx, nn

from taso_py.backend import NO_PLAN, Plan, Program, build, poison
from taso_py.backend.input_cases import EXAMPLE
from taso_py.backend.writes import Writes
from taso_py.checking.compare import Comparison, OutputComparison
from taso_py.checking.preserve import preserve_state, repeatable
from taso_py.checking.regions import first_mismatch
from taso_py.effort import Effort
from taso_py.engines.engine import Built, Engine
from taso_py.engines.table import ENGINES
from taso_py.ir.errors import TasoError
from taso_py.ir.graph import Graph
from taso_py.judging.building import FinalistBuilder
from taso_py.judging.compilers import leading, promising, without_waiting
from taso_py.judging.expected import ExpectedOutputs
from taso_py.judging.finalists import (
    ORIGINAL,
    Contestant,
    EngineSearch,
    Finalist,
    Standings,
    ahead_of_original,
    by_engine,
    contestants,
    leaders,
    settle,
)
from taso_py.judging.timing import CONFIDENCE, Race, RaceStop, Ratio, confirm, race
from taso_py.kernels.saved import dump
from taso_py.models.source import Source
from taso_py.progress import Phases
from taso_py.saving.artifact import SavedForm, read_back
from taso_py.saving.savable import UNSAVABLE, pt2_bytes, unsavable
from taso_py.search.result import Candidate
from taso_py.search.trace import TraceError

RACED_ROUNDS = 3
"""Fewest rounds of a race of finalists: of a model that takes half a second, eight seconds are one round."""
EVEN = Ratio(1.0, 1.0, 1.0, 0, 1.0)
"""The ratio of something to itself."""


class EvaluationError(TasoError):
    """Raised if an evaluation has no acceptable outcome."""


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
    races: Sequence[Race]
    """The races of the finalists, see :class:`~taso_py.judging.finalists.Standings`."""
    final: Race
    """The confirming race of original and winner; the first race if the original is kept."""
    contestants: Mapping[str, Contestant]
    """The finalists by name, without the original."""
    rules_race: Race | None = None
    """The race of unchanged graph and winner in the same runtime; None if no rule was applied."""

    @property
    def last_races(self) -> Mapping[str, Race]:
        """The last race in which each finalist was timed, by name."""
        return {name: race for race in self.races for name, times in race.times.items() if times}


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
    library_seconds: Callable[[Graph], float] | None = None
    """Returns the time that libraries take for a graph, by which compilers are left out that cannot win; None to build
    all that are given."""
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
        now, waiting = (searches, ()) if self.library_seconds is None else without_waiting(searches)
        builder = FinalistBuilder(self.source, self.program, self.planner, self.built, self._note)
        with self.phases.phase("build", "modules to time, of the best graphs"):
            finalists = {finalist.name: finalist for finalist in builder.all(now, others)}
        first = self._race(finalists, "these against the original", self.seed, self.effort.race_s)
        if not first.rounds:
            raise KeyboardInterrupt
        compiled = self._compiled(builder, waiting, finalists, first)
        return self._confirmed_first(self._standings(finalists, first, compiled), builder)

    def _compiled(
        self,
        builder: FinalistBuilder,
        waiting: Sequence[EngineSearch],
        finalists: Mapping[str, Finalist],
        first: Race,
    ) -> Mapping[str, Finalist]:
        """Return the graphs by compilers that may win after all else was raced, by name.

        Unless the effort is for all, that is one of a search, which was the fastest in eager mode: building takes up to
        a minute, and compilers seldom win.
        """
        if self.library_seconds is None or not waiting or self.is_interrupted:
            return {}
        searches, hopeless = promising(waiting, finalists, first, self.library_seconds)
        self._note(*hopeless)
        if not searches:
            return {}
        with self.phases.phase("build", "modules to time, by compilers"):
            if self.effort.compiles_all:
                return {finalist.name: finalist for finalist in builder.of_searches(searches)}
            built = (builder.of_graph(leading(found, finalists, first), found.engines) for found in searches)
            return {finalist.name: finalist for of_search in built for finalist in of_search}

    def _confirmed_first(self, standings: Standings, builder: FinalistBuilder) -> EvaluationOutcome:
        """Return the outcome with the first that is confirmed as the winner, or else with the original.

        Where rules gain nothing in the fastest graph of an engine, its slower ones are not timed again.
        """
        gainless, left, number = set[str](), deque(standings.finalists[name] for name in standings.ahead), 0
        while left and not (number and self.is_interrupted):
            # Each may win by chance. Halving the error probability from one to the next bounds the total by 5 %.
            finalist, rules_race, doubt = left.popleft(), None, (1 - CONFIDENCE) / 2**number
            number += 1
            if finalist.candidate.applied:  # first, since rules gain less than engines, and so fail more often
                if finalist.engine.name in gainless:
                    continue
                unchanged = self._unchanged(finalist, standings, builder)
                rules_race = self._confirmed(unchanged, finalist, doubt, "the unchanged graph")
                if rules_race is None:
                    gainless.add(finalist.engine.name)
                    if unchanged.name not in standings.finalists:  # it was not raced, and is the best of its engine
                        left.appendleft(unchanged)
                    continue
            outcome = self._confirmed_outcome(finalist, standings, doubt, rules_race)
            if outcome is not None:
                return outcome
        return self._original_wins(standings)

    def _unchanged(self, finalist: Finalist, standings: Standings, builder: FinalistBuilder) -> Finalist:
        """Return the unchanged graph in the engine of a finalist, which is built if it was not; else the original."""
        found = standings.unchanged(finalist)
        if not found.is_original or not finalist.engine.is_compiler:
            return found
        with self.phases.phase("build", "the unchanged graph, by the compiler"):
            built = builder.of_graph(standings.finalists[ORIGINAL].candidate, [finalist.engine])
            return next(iter(built), found)

    def _race(self, finalists: Mapping[str, Finalist], about: str, seed: int, seconds: float) -> Race:
        """Return a race of finalists, of which the first is the baseline; it has no rounds if it was interrupted."""
        with (
            self._preserve_state(*(finalist.module for finalist in finalists.values())),
            self.phases.phase_with_bar("race", about) as on_share,
        ):
            found = race(
                {name: self._call_of(finalist) for name, finalist in finalists.items()},
                device=self.program.device,
                seconds=seconds,
                seed=seed,
                least=RACED_ROUNDS,
                settle=settle(finalists.values()),
                on_round=on_share,
            )
        self._record_interrupt(found)
        return found

    def _standings(self, finalists: Mapping[str, Finalist], first: Race, compiled: Mapping[str, Finalist]) -> Standings:
        """Return the standings after the first race, or after another one where that did not decide.

        This is a race of the fastest of each engine if time ended the first one before one led, since engines differ by
        more than their graphs do, and few contestants have many rounds; and of what compilers made with the fastest.
        """
        ahead, together = ahead_of_original(finalists, first), {**finalists, **compiled}
        tied = leaders(ahead, finalists, first) if first.stop is RaceStop.TIME else ahead[:1]
        if not compiled and len(tied) < 2:
            return Standings(together, [first], ahead)
        raced = {name: together[name] for name in (ORIGINAL, *tied, *compiled)}
        # Those that tie after the first race differ by a percent or two.
        seconds = self.effort.race_s if compiled else self.effort.race_s / 2
        second = self._race(raced, "the fastest of each engine", self.seed + 2, seconds)
        if not second.rounds:
            return Standings(together, [first], ahead)
        fastest = ahead_of_original(together, second)
        if tied and fastest and fastest[0] != tied[0]:
            ratio = second.ratio(fastest[0], over=tied[0])
            self._note(f"{fastest[0]}: {_interval_text(ratio)} as fast as {tied[0]}, which led the race before")
        return Standings(together, [first, second], by_engine(fastest, ahead, together))

    def _confirmed_outcome(
        self, finalist: Finalist, standings: Standings, doubt: float, rules_race: Race | None
    ) -> EvaluationOutcome | None:
        """Return the outcome with this finalist as the winner; None, with a note, if it is not acceptable."""
        final = self._confirmed(standings.finalists[ORIGINAL], finalist, doubt, "the original")
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
            races=standings.races,
            final=final,
            contestants=contestants(standings.finalists),
            rules_race=rules_race,
        )

    def _wrong_step(self, candidate: Candidate) -> str | None:
        """Return what is wrong with a step of a candidate's trace; None if all are correct."""
        try:
            wrong = first_mismatch(self.program.graph, candidate.trace, self.seed, self.program.device)
        except TraceError as error:
            return str(error)
        return None if wrong is None else str(wrong)

    def _original_wins(self, standings: Standings) -> EvaluationOutcome:
        original = standings.finalists[ORIGINAL]
        with self.phases.phase("compare", "the original with its graph"):
            saved, comparison = self._compare(original)
        if not comparison.passed:
            raise EvaluationError(
                f"the unchanged graph disagrees with the model; please report this: {comparison.reason}"
            )
        self._note("nothing was surely faster than the original, which is kept as it is")
        if original.module is self.source.module and Writes.of(self.program.graph).buffers:
            self._note("the model itself is returned: calls of the result write to the model's buffers")
        seconds = median(standings.races[0].times[ORIGINAL])
        return EvaluationOutcome(
            winner=original,
            saved=saved,
            comparison=comparison,
            speedup=EVEN,
            rules_speedup=EVEN,
            seconds=(seconds, seconds),
            races=standings.races,
            final=standings.races[0],
            contestants=contestants(standings.finalists),
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
