"""The main job: import, search, build, race, compare, save.

Invariant: what is returned was timed end to end against the original in a fresh race and compared with it against
float64; where nothing is surely faster, the original graph comes back and the report says so.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from taso_py.backend import NO_PLAN, Plan, Program
from taso_py.backend.contract import draws, draws_undone
from taso_py.backend.schema import stored_bytes
from taso_py.backend.weights import owned
from taso_py.backend.writes import is_write
from taso_py.cost.contention import Watch
from taso_py.cost.database import LatencyDatabase
from taso_py.cost.environment import Environment
from taso_py.cost.model import CostModel
from taso_py.engines.engine import KERNEL_PRICES, Engine
from taso_py.engines.names import AUTO
from taso_py.engines.prices import session_cost
from taso_py.engines.session import SessionEngine
from taso_py.frontend.hooks import hooks_set_aside
from taso_py.ir.graph import Graph
from taso_py.ir.text import print_graph
from taso_py.kernels.table import PLAIN
from taso_py.progress import Phases
from taso_py.report.optimization import Report
from taso_py.report.optimization_page import optimization_page
from taso_py.rules.database import read_database
from taso_py.rules.substitution import Substitution
from taso_py.runtime.artifact import save
from taso_py.runtime.calibrating import calibrate
from taso_py.runtime.decisions import Winners
from taso_py.runtime.emit import check_forms, emit, file_of_form, names_of
from taso_py.runtime.evidence import gather
from taso_py.runtime.folder import ONNX, PAGE, add_page, check_writable
from taso_py.runtime.huggingface import adapt
from taso_py.runtime.kept import state_kept
from taso_py.runtime.planning import Planner, formats_for, tiles_for
from taso_py.runtime.replay import import_source
from taso_py.runtime.reporting import Found, bounds_of, disturbances, peaks_of, report_of, unkept
from taso_py.runtime.resize import OpenInputs, describe
from taso_py.runtime.result import Optimized, OptimizeError, Options
from taso_py.runtime.saving import check_savable
from taso_py.runtime.searching import TEMPLATES, search
from taso_py.runtime.selection import select, without_hopeless
from taso_py.runtime.source import Source, described, usable
from taso_py.runtime.spec import SourceError
from taso_py.runtime.trial import ORIGINAL, Finalist, Judgement, Searched, Trial, check_import
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
    phases, watch = Phases(shown=options.progress), Watch()
    if output is not None:
        check_writable(output, names_of(forms))
    # What is made in inference mode cannot be exported, nor be used where gradients are asked for.
    with (
        in_turn(),
        reported(f"optimizing {source.name}") as facts,
        torch.inference_mode(mode=False),
        torch.no_grad(),
        hooks_set_aside(source.module, source.args, source.kwargs) as hooks,
    ):
        facts |= {"options": options, "inputs": partial(described, (source.args, source.kwargs))}
        source = replace(source, args=usable(source.args), kwargs=usable(source.kwargs))
        with phases.phase("import", "the model, as a graph of operators"):
            program = program or owned(import_source(source))
        facts |= {"graph": partial(print_graph, program.graph), "device": partial(Environment.current, program.device)}
        _check_circumstances(program.device)
        with draws_undone(program), state_kept(program, [source.callable()]):
            with phases.phase("check", "that the graph computes what the model does"):
                checked = check_import(source, program, options.seed)
                notes = [*source.notes, *hooks, *_in_training(source, program), *checked]
            if isinstance(source.module, ExportedProgram) and source.onnx is None:
                notes.append(
                    "the original program is timed as plain calls, without PyTorch's own checks of its arguments"
                )
            if output is not None:
                check_savable(source, program)
            if phases.shown and program.device.type == "cpu":
                _warn(phases, watch)
            return _Job(source, options, rules, trace, notes, phases).run(program, output, forms)


def _warn(phases: Phases, watch: Watch) -> None:
    """Says before anything is timed that it will be disturbed; afterwards the report says what was."""
    now = watch.contention(spins=True)
    if not now.is_quiet:
        phases.say(f"note: {now.text}; timing takes longer then, and shows less; {now.advice}")


@dataclass
class _Job:
    """One optimization under way."""

    source: Source
    options: Options
    rules: Sequence[Substitution]
    trace: Trace | None
    notes: Sequence[str]
    """What there is to tell before it begins."""
    phases: Phases

    def run(self, program: Program, output: Path | None, forms: Sequence[str]) -> Optimized:
        """All stages, in order."""
        phases = self.phases
        scouting = phases.phase("engines", "how fast each is without rules")
        with scouting if self.options.runtime == AUTO else nullcontext():
            selection = select(self.source, program, self.options)
        groups, missing = selection.searched, selection.notes
        with LatencyDatabase() as database:
            costs = {prices: self._cost(program, group, database) for prices, group in groups.items()}
            winners = Winners(program, self.options, self.rules) if self._remembers else None
            last, watch = winners and winners.last(), Watch(program.device)
            searches = [
                Searched(self._search(program, costs[prices], group[0], last), group)
                for prices, group in groups.items()
            ]
            if self.options.runtime == AUTO and KERNEL_PRICES in costs:
                searches, hopeless = without_hopeless(searches, costs[KERNEL_PRICES])
                missing = [*missing, *hopeless]
            measuring = watch.contention()
            trial = Trial(
                self.source,
                program,
                _planner(costs),
                self.options.limited,
                self.options.seed,
                phases,
                reload=self.options.reload or output is not None,
                saves=output is not None,
            )
            judgement = trial.hold(searches, selection.others)
            limits = bounds_of(self.source, program, judgement, costs)
        with phases.phase("memory", "the most that a call takes"):
            peaks = peaks_of(self.source, program, judgement.winner, judgement.seconds)
        notes = [
            *self.notes,
            *missing,
            *describe(program, self.rules),
            *trial.notes,
            *(note for cost in costs.values() for note in disturbances(cost.latencies, measuring)),
            *unkept(database),
        ]
        report = report_of(
            Found(
                source=self.source,
                program=program,
                searches=searches,
                judgement=judgement,
                bounds=limits,
                measuring=measuring,
                peaks=peaks,
                notes=notes,
                phases=phases.seconds,
                seed=self.options.seed,
            )
        )
        optimized = _optimized(program, judgement.winner, report)
        if winners is not None:
            winners.remember(optimized)
        return optimized if output is None else self._saved(optimized, program, judgement, output, forms)

    def _saved(
        self, optimized: Optimized, program: Program, judgement: Judgement, output: Path, forms: Sequence[str]
    ) -> Optimized:
        """The result, written to a folder; the page comes last, so that nothing else is lost with it."""
        winner = judgement.winner
        own = winner.engine.files(winner.module)
        if self.source.onnx is not None:
            forms = [*forms, "onnx"]
        others = [form for form in forms if file_of_form(form) not in own]
        with self.phases.phase("emit", "the result in other forms") if len(others) > 1 else nullcontext():
            emitted, missing = emit(judgement.content, others)
        report = replace(
            optimized.report,
            saved=str(output),
            notes=(*optimized.report.notes, *missing),
            phases=dict(self.phases.seconds),
        )
        files = {**emitted, **own}
        if self.source.onnx is not None and winner.name != ORIGINAL and ONNX in files:
            files[ONNX] = self.source.onnx.renamed(files[ONNX])
        said = save(output, judgement.content, report, write_trace(optimized.trace), judgement.plan, files)
        try:
            with self.phases.phase("page", f"{PAGE}, with a profile of both"):
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

    def _cost(self, program: Program, engines: Sequence[Engine], database: LatencyDatabase) -> CostModel:
        """The latencies of what engines with equal prices can use."""
        weight_bytes, progress = stored_bytes(program.weights.values()), self.options.progress
        if isinstance(engines[0], SessionEngine):
            return session_cost(engines[0], program.graph, database, progress=progress)
        tiles = tiles_for(engines, self.options.numerics) if self.options.kernels else PLAIN
        return CostModel(
            program.device,
            database,
            weight_bytes=weight_bytes,
            tiles=tiles,
            formats=formats_for(tiles),
            progress=progress,
            captured=all(engine.is_captured for engine in engines),
        )

    def _search(self, program: Program, cost: CostModel, engine: Engine, last: Trace | None) -> SearchResult:
        """What a search finds and what won last, or what the trace leads to that was given."""
        what = "its operators, one by one, on this machine"
        cost.latencies.limit_s = self.options.limited.measure_s
        with self.phases.phase("measure", what if engine.prices == KERNEL_PRICES else f"{what}, in {engine.name}"):
            cost.warm(program.graph)
            calibrate(cost, engine)
        options, limits = self.options, self.options.limits()
        with self.phases.phase("search", "for faster graphs"):
            if self.trace is not None:
                return follow(program.graph, self.trace, self.rules, cost, limits)
            found = search(program.graph, self.rules, cost, options.search, limits, progress=options.progress)
            return found if last is None else add_followed(found, last, self.rules, cost, limits)


def _optimized(program: Program, winner: Finalist, report: Report) -> Optimized:
    """The result that a winner is."""
    return Optimized(
        module=winner.runner,
        report=report,
        trace=winner.candidate.trace,
        plan=winner.plan,
        keeps_original=winner.name == ORIGINAL,
        inputs=OpenInputs.of(program),
    )


def _planner(costs: Mapping[str, CostModel]) -> Callable[[Graph, Engine], Plan]:
    """What chooses kernels, for engines that let it."""
    return Planner(costs[KERNEL_PRICES]) if KERNEL_PRICES in costs else lambda _graph, _engine: NO_PLAN
