"""The main job: import, search, build, race, compare, save.

Invariant: what is returned was timed end to end against the original in a fresh race and compared with it against
float64; where nothing is surely faster, the original graph comes back and the report says so.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram

from taso_py.backend import Plan, Program
from taso_py.backend.build import PACKED_BYTES
from taso_py.backend.contract import draws, draws_undone
from taso_py.backend.schema import stored_bytes
from taso_py.backend.weights import owned
from taso_py.backend.writes import is_write
from taso_py.cost.database import LatencyDatabase
from taso_py.cost.environment import Environment
from taso_py.cost.latencies import Latencies
from taso_py.cost.model import CostModel
from taso_py.ir.graph import Graph
from taso_py.ir.operator import Input
from taso_py.ir.text import print_graph
from taso_py.kernels.table import PLAIN
from taso_py.kernels.tile import Tile
from taso_py.progress import progress_bar
from taso_py.report.optimization import Report, Speedup
from taso_py.report.optimization_page import optimization_page
from taso_py.rules.database import read_database
from taso_py.rules.substitution import Substitution
from taso_py.runtime.artifact import save
from taso_py.runtime.calibrating import calibrate
from taso_py.runtime.decisions import Winners
from taso_py.runtime.emit import check_forms, emit, names_of
from taso_py.runtime.evidence import gather
from taso_py.runtime.folder import PAGE, add_page, check_writable
from taso_py.runtime.huggingface import adapt
from taso_py.runtime.kept import state_kept
from taso_py.runtime.planning import Planner, formats_for, tiles_for
from taso_py.runtime.replay import import_source
from taso_py.runtime.resize import describe
from taso_py.runtime.result import Optimized, OptimizeError, Options
from taso_py.runtime.runtimes import CAPTURED, COMPILED, COMPILED_AROUND, runtimes_to_try
from taso_py.runtime.saving import check_savable
from taso_py.runtime.searching import TEMPLATES, search
from taso_py.runtime.source import Source, described, usable
from taso_py.runtime.spec import SourceError
from taso_py.runtime.trial import ORIGINAL, Finalist, Judgement, Trial, check_import
from taso_py.runtime.turn import in_turn
from taso_py.search.follow import add_followed, follow
from taso_py.search.result import SearchResult
from taso_py.search.templates import read_templates
from taso_py.search.trace import Trace, write_trace
from taso_py.unexpected import reported

AUTOCAST = (
    "optimize is called under torch.autocast, which would cast inside of its kernels too; call it outside, and put a "
    "model that is to run under autocast into a module that enters it in forward"
)
"""Why autocast around it is refused."""
IN_TRAINING = (
    "the model is in training mode, and so is the result: it draws random numbers or writes to buffers; call eval() "
    "before optimizing for one that predicts"
)
"""What is noted of dropout that drops, and of batch normalisation that takes the batch's statistics."""


def optimize(
    module: nn.Module | ExportedProgram,
    example_inputs: Sequence[Any] | Tensor = (),
    example_kwargs: Mapping[str, Any] | None = None,
    *,
    output: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Optimized:
    """Optimizes a module for the shapes of its example inputs, on the device that they are on.

    An exported program may leave sizes open (``dynamic_shapes``): it is made fast for those of the example inputs, and
    the result is valid for all in the range of the export.

    Args:
        module: in evaluation mode; it is not changed. A model of transformers is run without its cache of keys and
            values, and the result returns plain tuples and dicts. Or an exported program, which brings its own inputs.
        example_inputs: positional inputs; a tensor alone is the only one.
        example_kwargs: keyword inputs.
        output: the folder to save the result to, which :func:`taso_py.load` reads.
        options: the fields of :class:`Options`.

    Raises:
        TasoError: the module cannot be imported, or an option is wrong; the message is one line. Whatever else goes
            wrong is an :class:`~taso_py.unexpected.UnexpectedError`, whose line names a file with the details.
    """
    source = _source(module, example_inputs, {} if example_kwargs is None else example_kwargs)
    if not isinstance(output, str | os.PathLike | None):  # pyright: ignore[reportUnnecessaryIsInstance] -- a user's
        raise OptimizeError(f"output is the path of a folder, not {output!r}")
    chosen = Options.named(options)
    return optimize_source(source, chosen, read_rules(chosen), None if output is None else Path(output))


def _source(module: Any, args: Any, kwargs: Any) -> Source:
    """What is to be optimized, of arguments that a user may have mistaken.

    Raises:
        SourceError: they are none.
    """
    if not isinstance(module, nn.Module | ExportedProgram):
        raise SourceError(f"a {type(module).__name__} is no model; give an nn.Module or an exported program")
    if isinstance(args, Mapping):
        raise SourceError("example_inputs are positional; give a dict of keyword inputs as example_kwargs")
    if isinstance(args, str) or not isinstance(args, Sequence | Tensor):
        raise SourceError(f"example_inputs are a tensor or a tuple of inputs, not of type {type(args).__name__}")
    if not isinstance(kwargs, Mapping) or not all(isinstance(name, str) for name in kwargs):
        raise SourceError("example_kwargs are a dict of inputs by their names; give positional ones as example_inputs")
    if isinstance(args, Tensor):
        args = (args,)
    if isinstance(module, ExportedProgram) and not (args or kwargs) and module.example_inputs:
        args, kwargs = module.example_inputs
    name = type(module).__name__
    return Source(name, adapt(module) if isinstance(module, nn.Module) else module, tuple(args), dict(kwargs))


def _check_circumstances(device: torch.device) -> None:
    """Makes sure that what is timed is what will run.

    Raises:
        OptimizeError: the device computes nothing, or autocast is on.
    """
    if device.type == "meta":
        raise OptimizeError("the model or its inputs are on the meta device, which computes nothing; move them")
    if torch.is_autocast_enabled(device.type):
        raise OptimizeError(AUTOCAST)


def _in_training(source: Source, program: Program) -> Sequence[str]:
    """What to tell of a model that nobody put into evaluation mode, where that may make a difference."""
    if not isinstance(source.module, nn.Module) or not any(part.training for part in source.module.modules()):
        return ()
    acts = draws(program) or any(map(is_write, program.graph.effects))
    return (IN_TRAINING,) if acts else ()


def read_rules(options: Options, path: Path | None = None) -> Sequence[Substitution]:
    """The rules of a file or folder; by default those that a search is meant for.

    Raises:
        TasoError: they cannot be read.
    """
    return read_templates() if path is None and options.search in TEMPLATES else read_database(path)


def optimize_source(
    source: Source,
    options: Options,
    rules: Sequence[Substitution],
    output: Path | None = None,
    program: Program | None = None,
    forms: Sequence[str] = (),
    trace: Trace | None = None,
) -> Optimized:
    """Optimizes what MODEL names.

    Args:
        source: what to optimize.
        options: how.
        rules: what may be applied.
        output: the folder to save to, if any.
        program: the source as a program, if it was imported before.
        forms: in which forms to save the result beside ``model.pt2``; see :data:`taso_py.runtime.emit.FORMS`.
        trace: what to do to the graph, if no search is to find that out.
    """
    check_forms(forms)
    if output is not None:
        check_writable(output, names_of(forms))
    # What is made in inference mode cannot be exported, nor be used where gradients are asked for.
    with in_turn(), reported(f"optimizing {source.name}") as facts, torch.inference_mode(mode=False), torch.no_grad():
        facts |= {"options": options, "inputs": partial(described, (source.args, source.kwargs))}
        source = replace(source, args=usable(source.args), kwargs=usable(source.kwargs))
        program = program or owned(import_source(source))
        facts |= {"graph": partial(print_graph, program.graph), "device": partial(Environment.current, program.device)}
        _check_circumstances(program.device)
        with draws_undone(program), state_kept(program, [source.callable()]):
            notes = [*_in_training(source, program), *check_import(source, program, options.seed)]
            if isinstance(source.module, ExportedProgram):
                notes.append("the original is timed without PyTorch's own checks of a saved program's arguments")
            if output is not None:
                check_savable(source, program, planned=options.kernels)
            return _Job(source, options, rules, trace, notes).run(program, output, forms)


@dataclass
class _Job:
    """One optimization under way."""

    source: Source
    options: Options
    rules: Sequence[Substitution]
    trace: Trace | None
    notes: Sequence[str]
    """What there is to tell before it begins."""

    def run(self, program: Program, output: Path | None, forms: Sequence[str]) -> Optimized:
        """All stages, in order."""
        runtimes = self._runtimes(program.device)
        with LatencyDatabase() as database:
            tiles = tiles_for(runtimes, self.options.numerics) if self.options.kernels else PLAIN
            cost = self._cost(program, tiles, database, captured=CAPTURED.issuperset(runtimes))
            planner = Planner(cost)
            winners = Winners(program, self.options, self.rules) if self._remembers else None
            found = self._search(program, cost, winners and winners.last())
            with progress_bar(desc="time", total=100, shown=self.options.progress) as bar:

                def on_round(done: int, total: int) -> None:
                    bar.total = total
                    bar.update(done - bar.n)

                trial = Trial(
                    *(self.source, program, planner, self.options.race_seconds, self.options.seed, on_round),
                    reload=self.options.reload or output is not None,
                    saves=output is not None,
                )
                judgement = trial.hold(found, runtimes)
        notes = [*self.notes, *describe(program, self.rules), *trial.notes, *_disturbances(cost.latencies)]
        report, winner = self._report(program, found, judgement, notes), judgement.winner
        optimized = Optimized(winner.runner, report, winner.candidate.trace, winner.plan, winner.name == ORIGINAL)
        if winners is not None:
            winners.remember(optimized)
        return optimized if output is None else self._saved(optimized, program, judgement, output, forms)

    def _saved(
        self, optimized: Optimized, program: Program, judgement: Judgement, output: Path, forms: Sequence[str]
    ) -> Optimized:
        """The result, written to a folder; the page comes last, so that nothing else is lost with it."""
        others, missing = emit(judgement.content, forms)
        report = replace(optimized.report, saved=str(output), notes=(*optimized.report.notes, *missing))
        said = save(output, judgement.content, report, write_trace(optimized.trace), judgement.plan, others)
        try:
            evidence = gather(self.source, program, judgement, progress=self.options.progress)
            if not add_page(output, said, optimization_page(report, evidence)):
                replaced = f"another run has saved its result to {output} since, which is there in place of this one"
                report = replace(report, notes=(*report.notes, replaced), saved=None)
        except KeyboardInterrupt:
            report = replace(report, notes=(*report.notes, f"interrupted before {PAGE} was made; all else is saved"))
        return replace(optimized, report=report)

    @property
    def _remembers(self) -> bool:
        """Whether what won before counts; not where a trace says what to do."""
        return self.options.cache and self.trace is None

    def _runtimes(self, device: torch.device) -> Sequence[str]:
        """What to try; without kernels of its own a plan has nothing to compile around."""
        found = runtimes_to_try(self.options.runtime, device)
        if self.options.kernels or found == (COMPILED_AROUND,):
            return found
        return [runtime for runtime in found if runtime != COMPILED_AROUND]

    def _cost(
        self, program: Program, tiles: tuple[Tile, ...], database: LatencyDatabase, *, captured: bool
    ) -> CostModel:
        """The latencies of what the runtimes can use."""
        return CostModel(
            program.device,
            database,
            weight_bytes=stored_bytes(program.weights.values()),
            tiles=tiles,
            formats=formats_for(tiles),
            progress=self.options.progress,
            captured=captured,
        )

    def _search(self, program: Program, cost: CostModel, last: Trace | None) -> SearchResult:
        """What a search finds and what won last, or what the trace leads to that was given."""
        cost.warm(program.graph)
        calibrate(cost)
        options, limits = self.options, self.options.limits()
        if self.trace is not None:
            return follow(program.graph, self.trace, self.rules, cost, limits)
        found = search(*(program.graph, self.rules, cost, options.search, limits), progress=options.progress)
        return found if last is None else add_followed(found, last, self.rules, cost, limits)

    def _report(self, program: Program, found: SearchResult, judgement: Judgement, notes: Sequence[str]) -> Report:
        winner, speedup, rules = judgement.winner, judgement.speedup, judgement.rules_speedup
        before, after = judgement.seconds
        return Report(
            model=self.source.name,
            device=str(program.device),
            runtime=winner.runtime,
            original_ms=before * 1e3,
            optimized_ms=after * 1e3,
            speedup=speedup.median,
            speedup_low=speedup.low,
            speedup_high=speedup.high,
            rules_speedup=Speedup(rules.median, rules.low, rules.high),
            applied=winner.candidate.applied,
            kernels=_kernels(winner.plan),
            error=judgement.comparison.error,
            original_error=judgement.comparison.original_error,
            comparison_passed=judgement.comparison.passed,
            stop_reason=found.stop_reason.value,
            search_seconds=found.seconds,
            expansions=found.expansions,
            candidates=found.built,
            estimated_ms=(found.original.seconds * 1e3, winner.candidate.seconds * 1e3),
            operators=(_running(program.graph), _running(winner.program.graph)),
            weight_bytes=(stored_bytes(program.weights.values()), stored_bytes(winner.program.weights.values())),
            memory_bytes=_memory_bytes(winner),
            rounds=speedup.rounds,
            timed={name: median(times) * 1e3 for name, times in judgement.first.times.items() if times},
            environment=Environment.current(program.device).as_dict(),
            seed=self.options.seed,
            notes=(*found.notes, *notes),
        )


def _memory_bytes(winner: Finalist) -> int | None:
    """What the weights of a module take that is called as it was built."""
    if winner.name == ORIGINAL or winner.runtime in COMPILED or not isinstance(winner.module, fx.GraphModule):
        return None
    state = (*winner.module.parameters(), *winner.module.buffers())
    return stored_bytes(state) + winner.module.meta[PACKED_BYTES]


def _disturbances(latencies: Latencies) -> list[str]:
    """What to say about latencies that were measured while others kept the machine busy."""
    if not latencies.disturbed:
        return []
    return [
        f"other programs kept the machine busy while {latencies.disturbed} of {latencies.measured} latencies were "
        "measured; those are not kept: run this again on a quiet machine"
    ]


def _running(graph: Graph) -> int:
    """How many operators run each time: those that do not depend on weights and constants only."""
    return sum(not node.is_static and not isinstance(node.op, Input) for node in graph.nodes)


def _kernels(plan: Plan) -> dict[str, int]:
    """How often each tile but the plain operators computes something."""
    return dict(sorted(Counter(step.kernel.name for step in plan.steps.values() if step.kernel is not None).items()))
