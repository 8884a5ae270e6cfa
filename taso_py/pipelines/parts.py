"""Optimization of those modules of a pipeline that take the time, in place.

    parts = taso_py.optimize_parts(taso_py.inspect(pipeline, "a prompt"))
    print(parts)
    parts.undo()

A module is optimized as a whole if it can be exported, otherwise its parts are. Modules with equal graphs, such as the
blocks of a transformer, are searched for once; the others get the same rewrites and kernels with their own weights, and
are compared with their originals like the first.

Invariant: what is in place was surely faster when it was timed, and the whole run is not surely slower.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from taso_py.backend import Program
from taso_py.backend.generators import random_state_kept, undo_random_draws
from taso_py.backend.input_cases import Arguments, inputs_near
from taso_py.backend.writes import Writes
from taso_py.checking.cases import program_cases
from taso_py.checking.oracles import float64_oracles
from taso_py.checking.preserve import preserve_state
from taso_py.driver.decisions import Decision, decision_key
from taso_py.driver.optimize import optimize_source
from taso_py.driver.searches import rules_for
from taso_py.engines.engine import Runner
from taso_py.frontend.hooks import hooks_set_aside
from taso_py.frontend.original import copy_arguments
from taso_py.frontend.snapshot import Snapshot
from taso_py.ir.errors import TasoError, first_line, in_a_line
from taso_py.judging.timing import Ratio, race
from taso_py.latency.idle import wait_until_idle
from taso_py.lock import optimization_lock
from taso_py.models.importing import import_source
from taso_py.models.source import Source, clone_inference_tensors
from taso_py.options import Options
from taso_py.pipelines.inspecting import (
    Inspection,
    ModuleTiming,
    PipelineError,
    Signature,
    signature_of,
    synchronize,
    text_table,
)
from taso_py.pipelines.replacement import Replacement
from taso_py.rules.substitution import Substitution

LEAST = 0.05
"""Smallest share of a run's time for which a module is optimized."""
MOST_SIGNATURES = 4
"""Most combinations of shapes that a module is optimized for."""
RACE_S = 5.0
"""Seconds to time the whole run with and without the optimized parts."""
AS_IT_WAS, OPTIMIZED = "as it was", "optimized"


class PartState(enum.Enum):
    """Outcome for one module."""

    REPLACED = "optimized"
    UNCHANGED = "nothing was faster"
    REFUSED = "cannot be optimized as a whole"


@dataclass(frozen=True)
class PartOutcome:
    """Outcome for one module of a pipeline."""

    label: str
    state: PartState
    share: float
    """Share of the run's time that it took."""
    speedup: float = 1.0
    """Speed-up of its call, by the first of its signatures; of a repeated module, that of its model. NaN if
    it is withheld, as in the report of an optimization."""
    note: str = ""
    """Reason for a refusal, or the equal module that it was optimized like."""

    @property
    def speedup_text(self) -> str:
        """The speed-up as text; empty for a module that was not replaced."""
        if self.state is not PartState.REPLACED:
            return ""
        return "withheld" if math.isnan(self.speedup) else f"{self.speedup:.2f}"


@dataclass
class OptimizedParts:
    """The optimized modules of a pipeline."""

    outcomes: list[PartOutcome] = field(default_factory=list[PartOutcome])
    replacements: list[Replacement] = field(default_factory=list[Replacement])
    whole: Ratio | None = None
    """Speed-up of the whole run; None if nothing was replaced."""
    notes: list[str] = field(default_factory=list[str])

    def undo(self) -> None:
        """Give all modules their own ``forward`` back."""
        for replacement in reversed(self.replacements):
            replacement.undo()
        self.replacements.clear()

    def turn(self, *, on: bool) -> None:
        """Let the modules run their optimized forms, or what they were before."""
        for replacement in self.replacements:
            replacement.is_on = on

    def __str__(self) -> str:
        header = ("module", "share", "speed-up", "outcome")
        rows = [
            (
                o.label,
                f"{o.share:.0%}",
                o.speedup_text,
                f"{o.state.value}{f' ({o.note})' if o.note else ''}",
            )
            for o in self.outcomes
        ]
        whole = self.whole
        said = (
            "nothing was replaced"
            if whole is None
            else (f"the whole run: {whole.median:.3f}x ({whole.low:.3f} to {whole.high:.3f})")
        )
        return "\n".join(
            [text_table(header, rows, numbers=("share", "speed-up")), said, *(f"note: {note}" for note in self.notes)]
        )


def optimize_parts(inspection: Inspection, *, least: float = LEAST, **options: Any) -> OptimizedParts:
    """Optimize the modules of a pipeline that take the time, and put the results into their places.

    The pipeline is run as it was when it was inspected: once to record the arguments of its modules, and several times
    at the end, to time the whole.

    Args:
        inspection: the result of :func:`taso_py.inspect`.
        least: smallest share of the run's time for which a module is optimized.
        options: the fields of :class:`taso_py.Options`.

    Raises:
        TasoError: an option is wrong. A module that cannot be optimized is none; the result says why.
    """
    if not isinstance(inspection, Inspection):  # pyright: ignore[reportUnnecessaryIsInstance] -- a user's
        raise PipelineError(f"give the result of taso_py.inspect, not {in_a_line(inspection)}")
    chosen = Options.from_mapping(options)
    found = OptimizedParts()
    work = _Work(inspection, chosen, rules_for(chosen), least, found)
    try:
        with optimization_lock():
            work.record()
            for name in inspection.roots:
                work.visit(name)
            _judge_whole(inspection, found)
    except BaseException:
        found.undo()
        raise
    return found


def _judge_whole(inspection: Inspection, found: OptimizedParts) -> None:
    """Time the whole run with and without the optimized parts; undo them if they made it surely slower."""
    if not found.replacements:
        return

    def run(on: bool) -> Any:
        found.turn(on=on)
        result = inspection.call()
        synchronize()
        return result

    calls = {AS_IT_WAS: lambda: run(False), OPTIMIZED: lambda: run(True)}
    with torch.no_grad():
        held = race(calls, device="cpu", seconds=RACE_S, until_clear=False, least=6, settle=wait_until_idle)
    found.turn(on=True)
    if not held.rounds:
        raise KeyboardInterrupt
    found.whole = held.ratio(OPTIMIZED)
    if found.whole.high < 1:
        found.undo()
        found.notes.append("the whole run was slower with the optimized parts, so they were taken out again")


@dataclass
class _Work:
    """The state of one call of :func:`optimize_parts`."""

    inspection: Inspection
    options: Options
    rules: Sequence[Substitution]
    least: float
    found: OptimizedParts
    recorded: dict[str, dict[Signature, Arguments]] = field(default_factory=dict[str, dict[Signature, Arguments]])
    known: dict[str, tuple[str, Decision, float]] = field(default_factory=dict[str, tuple[str, Decision, float]])
    """Label, decision and speed-up of graphs that were searched for, by key."""

    def record(self) -> None:
        """Run the pipeline once, and copy the arguments of each combination of shapes for modules that matter."""
        with ExitStack() as stack:
            for name in self._wanted():
                held = self.recorded.setdefault(name, {})

                def note(module: Any, args: Any, kwargs: Any, held: dict[Signature, Arguments] = held) -> None:
                    signature = signature_of(args, kwargs)
                    if signature not in held:
                        held[signature] = copy_arguments(args, kwargs)

                module = self.inspection.modules[name].module
                stack.callback(module.register_forward_pre_hook(note, with_kwargs=True).remove)
            self.inspection.call()

    def _wanted(self) -> Iterator[str]:
        for name, timing in self.inspection.modules.items():
            if self.inspection.share(name) >= self.least and timing.calls and not _why_not(timing):
                yield name

    def visit(self, name: str) -> None:
        """Optimize a module, or else its parts."""
        timing, share = self.inspection.modules[name], self.inspection.share(name)
        if timing.calls and share < self.least:
            return
        if name in self.recorded:
            if self._replace(name).state is not PartState.REFUSED:
                return
        elif timing.calls:
            self.found.outcomes.append(PartOutcome(timing.label, PartState.REFUSED, share, note=_why_not(timing)))
        for child in self.inspection.children(name):
            self.visit(child)

    def _replace(self, name: str) -> PartOutcome:
        """Optimize a module for each of its signatures, put the results into its place, and record the outcome."""
        timing, share = self.inspection.modules[name], self.inspection.share(name)
        runners, speedups, notes = list[Runner](), list[float](), list[str]()
        state = PartState.UNCHANGED
        for args, kwargs in self.recorded[name].values():
            source = Source(timing.label, timing.module, tuple(args), dict(kwargs))
            try:
                made = self._optimized(source)
            except TasoError as error:
                state = PartState.REFUSED
                notes.append(first_line(error))
                break
            if made is not None:
                runner, speedup, note = made
                runners.append(runner)
                speedups.append(speedup)
                notes += [note] if note else []
        if runners and state is not PartState.REFUSED:
            state = PartState.REPLACED
            self.found.replacements.append(Replacement(timing.module, runners))
        note = "; ".join(dict.fromkeys(notes))
        outcome = PartOutcome(timing.label, state, share, speedups[0] if speedups else 1.0, note)
        self.found.outcomes.append(outcome)
        return outcome

    def _optimized(self, source: Source) -> tuple[Runner, float, str] | None:
        """Return the optimized form of a module for some arguments, its speed-up and a note; None if there is none."""
        with (
            torch.inference_mode(mode=False),
            torch.no_grad(),
            hooks_set_aside(source.module, source.args, source.kwargs, around=True),
        ):
            args, kwargs = clone_inference_tensors((source.args, source.kwargs))
            source = Source(source.name, source.module, args, kwargs)
            program = import_source(source)
            if Writes.of(program.graph).buffers:
                raise TasoError("it writes to its buffers")
            kept = _kept_attribute(source)
            if kept is not None:
                raise TasoError(f"it keeps values of each call in its {kept}, which others may read")
            key = decision_key(program, self.options, self.rules)
            if key in self.known:
                return self._applied(source, program, *self.known[key])
            optimized = optimize_source(source, self.options, self.rules, program=program)
            speedup = optimized.report.speedup
            self.known[key] = source.name, Decision.of(optimized), speedup
            return None if optimized.keeps_original else (optimized.module, speedup, "")

    def _applied(
        self, source: Source, program: Program, label: str, decision: Decision, speedup: float
    ) -> tuple[Runner, float, str] | None:
        """Return the form of a module by the decision for an equal graph, after a comparison with the module itself.

        Raises:
            TasoError: the results differ.
        """
        if decision.keeps_original:
            return None
        with undo_random_draws(program):
            runner = decision.apply(program, source.args, source.kwargs)
            original, arguments = source.callable(), (source.args, source.kwargs)
            cases = program_cases(program, *arguments, self.options.seed)
            (oracle,), _ = float64_oracles(program, original, arguments, cases)
            with preserve_state(program, [original], arguments):
                compared = oracle.compare(runner)
        if not compared.passed:
            raise TasoError(f"optimized like {label}, {compared.reason}")
        return runner, speedup, f"like {label}"


def _kept_attribute(source: Source) -> str | None:
    """Return the name of an attribute that depends on what a module was called with last; None if there is none."""
    assert isinstance(source.module, nn.Module)
    before = Snapshot(source.module)
    args, kwargs = copy_arguments(*inputs_near(source.args, source.kwargs, seed=0))
    try:
        with random_state_kept(), suppress(Exception):  # it may fail on other inputs
            source.module(*args, **kwargs)
        return next(iter(before.replaced(opaque=False)), None)
    finally:
        before.restore()


def _why_not(timing: ModuleTiming) -> str:
    """Return why a module's calls are not optimized, without looking at what it computes; empty if they may be."""
    if timing.module.training:
        return "it is in training mode; call eval()"
    shapes = len(timing.signatures)
    return f"it is called with {shapes} combinations of shapes" if shapes > MOST_SIGNATURES else ""
