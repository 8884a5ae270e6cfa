"""The main job: import, search, build, race, compare, save.

Invariant: a result that is returned has won a fresh race against the original, end to end, and its outputs were
compared with float64; if nothing is significantly faster, the original is returned and the report says so.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.export import ExportedProgram

from taso_py.backend import Program
from taso_py.checking.resize import OpenInputs, open_size_notes
from taso_py.driver.decisions import Winners
from taso_py.driver.planning import planner_of
from taso_py.driver.prepare import PreparedSource, prepare, source_of
from taso_py.driver.reporting import Findings, bounds_of, measurement_notes, peaks_of, report_of, storage_notes
from taso_py.driver.result import Optimized
from taso_py.driver.searches import Searches, rules_for
from taso_py.driver.selection import library_seconds_of, select
from taso_py.driver.write import check_output, write
from taso_py.ir.errors import in_a_line
from taso_py.judging.evaluation import Evaluation, EvaluationOutcome
from taso_py.latency.contention import Watch
from taso_py.latency.database import LatencyDatabase
from taso_py.models.source import Source
from taso_py.options import OptimizeError, Options
from taso_py.report.optimization import Report
from taso_py.rules.substitution import Substitution
from taso_py.saving.folder import folder_of
from taso_py.search.trace import Trace


def optimize(
    module: nn.Module | ExportedProgram,
    example_inputs: Sequence[Any] | Tensor = (),
    example_kwargs: Mapping[str, Any] | None = None,
    *,
    output: str | os.PathLike[str] | None = None,
    positive: Sequence[str] = (),
    **options: Any,
) -> Optimized:
    """Optimize a module for the shapes of its example inputs, on the device that they are on.

    An exported program may have open sizes (``dynamic_shapes``): it is optimized for those of the example inputs, and
    the result is valid for all sizes in the range of the export.

    Args:
        module: a module in evaluation mode, which is not changed, or an exported program, which brings its own inputs.
            A model of transformers is run without its key-value cache, and the result returns plain tuples and dicts.
        example_inputs: positional inputs; a single tensor may be given as it is.
        example_kwargs: keyword inputs.
        output: the folder to save the result to, which :func:`taso_py.load` reads.
        positive: names of inputs that have no element which is zero or negative, in any call, as ``forward`` names
            them; rules may rely on it.
        options: the fields of :class:`Options`.

    Raises:
        TasoError: the module cannot be imported, or an option is wrong; the message is one line. Any other failure is
            an :class:`~taso_py.unexpected.UnexpectedError`, whose message names a file with the details.
    """
    source = source_of(module, example_inputs, {} if example_kwargs is None else example_kwargs)
    if not isinstance(positive, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance] -- a user's
        raise OptimizeError(f"positive must be a list of names of inputs, not {in_a_line(positive)}")
    source = replace(source, positive=(positive,) if isinstance(positive, str) else tuple(positive))
    chosen, folder = Options.from_mapping(options), None if output is None else folder_of(output)
    return optimize_source(source, chosen, rules_for(chosen), folder)


def optimize_source(
    source: Source,
    options: Options,
    rules: Sequence[Substitution],
    output: Path | None = None,
    program: Program | None = None,
    forms: Sequence[str] = (),
    trace: Trace | None = None,
) -> Optimized:
    """Optimize a source, and save the result if a folder is given.

    Args:
        source: what to optimize.
        options: the options of the optimization.
        rules: the rules that the search may apply.
        output: the folder to save to, if any.
        program: the source as a program, if it has been imported already.
        forms: formats to save the result in beside ``model.pt2``; see :data:`taso_py.saving.emit.FORMS`.
        trace: the steps to apply in place of a search.
    """
    saves = output is not None
    check_output(output, forms, options.runtime, is_onnx=source.onnx is not None)
    with prepare(source, options, program, saves=saves) as ready:
        optimized, outcome = search_and_evaluate(ready, Searches(ready, rules, trace), saves=saves)
        return optimized if output is None else write(optimized, ready, outcome, output=output, forms=forms)


def search_and_evaluate(
    ready: PreparedSource, searches: Searches, *, saves: bool
) -> tuple[Optimized, EvaluationOutcome]:
    """Return the fastest result over all engines (with a saved form if ``saves``), and the outcome that chose it."""
    source, program, options, phases = ready.source, ready.program, ready.options, ready.phases
    selection = select(ready.expected, options, phases, searches.rules)
    with LatencyDatabase() as database:
        winners = Winners(program, options, searches.rules) if options.cache and searches.trace is None else None
        last = winners.last() if winners else None
        share = winners.share(last) if winners else 1.0
        watch = Watch(program.device)
        found, costs, selection = searches.run(selection, database, last, share)
        measuring = watch.contention()
        evaluation = Evaluation(
            ready.expected,
            planner=planner_of(costs),
            effort=options.evaluation_effort(share),
            phases=phases,
            reload=options.reload or saves,
            saves=saves,
            built=selection.built,
            library_seconds=library_seconds_of(options.runtime, costs),
        )
        outcome = evaluation.run(found, selection.others)
        limits = bounds_of(source, program, outcome, costs)
    with phases.phase("memory", "peak of a call"):
        peaks = peaks_of(source, program, outcome.winner, outcome.seconds)
    notes = [
        *ready.notes,
        *selection.notes,
        *open_size_notes(program, searches.rules),
        *evaluation.notes,
        *(note for cost in costs.values() for note in measurement_notes(cost.latencies, measuring)),
        *storage_notes(database),
    ]
    report = report_of(
        Findings(
            source=source,
            program=program,
            searches=found,
            outcome=outcome,
            bounds=limits,
            measuring=measuring,
            peaks=peaks,
            notes=notes,
            phases=phases.seconds,
            seed=options.seed,
        )
    )
    optimized = _optimized(program, outcome, report)
    if winners is not None:
        winners.remember(optimized)
    return optimized, outcome


def _optimized(program: Program, outcome: EvaluationOutcome, report: Report) -> Optimized:
    winner = outcome.winner
    return Optimized(
        module=winner.runner,
        report=report,
        trace=winner.candidate.trace,
        plan=winner.plan,
        keeps_original=winner.is_original,
        inputs=OpenInputs.of(program),
    )
