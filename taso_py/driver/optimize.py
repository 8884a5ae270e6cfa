"""The main job: import, search, build, race, compare, save.

Invariant: what is returned was timed end to end against the original in a fresh race and compared with it against
float64; where nothing is surely faster, the original graph comes back and the report says so.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.export import ExportedProgram

from taso_py.backend import Program
from taso_py.checking.resize import OpenInputs, describe
from taso_py.driver.decisions import Winners
from taso_py.driver.planning import planner_of
from taso_py.driver.prepare import Prepared, prepared, source_of
from taso_py.driver.reporting import Found, bounds_of, disturbances, peaks_of, report_of, unkept
from taso_py.driver.result import Optimized, OptimizeError, Options
from taso_py.driver.searches import Searches, rules_for
from taso_py.driver.selection import select, without_hopeless
from taso_py.driver.write import check_output, write
from taso_py.engines.engine import KERNEL_PRICES
from taso_py.engines.names import AUTO
from taso_py.judging.trial import ORIGINAL, Finalist, Judgement, Trial
from taso_py.latency.contention import Watch
from taso_py.latency.database import LatencyDatabase
from taso_py.models.source import Source
from taso_py.report.optimization import Report
from taso_py.rules.substitution import Substitution
from taso_py.search.trace import Trace


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
    source = source_of(module, example_inputs, {} if example_kwargs is None else example_kwargs)
    if not isinstance(output, str | os.PathLike | None):  # pyright: ignore[reportUnnecessaryIsInstance] -- a user's
        raise OptimizeError(f"output is the path of a folder, not {output!r}")
    chosen = Options.named(options)
    return optimize_source(source, chosen, rules_for(chosen), None if output is None else Path(output))


def optimize_source(
    source: Source,
    options: Options,
    rules: Sequence[Substitution],
    output: Path | None = None,
    program: Program | None = None,
    forms: Sequence[str] = (),
    trace: Trace | None = None,
) -> Optimized:
    """Optimize a source.

    Args:
        source: what to optimize.
        options: how.
        rules: what may be applied.
        output: the folder to save to, if any.
        program: the source as a program, if it was imported before.
        forms: in which forms to save the result beside ``model.pt2``; see :data:`taso_py.saving.emit.FORMS`.
        trace: what to do to the graph, if no search is to find that out.
    """
    saves = output is not None
    check_output(output, forms)
    with prepared(source, options, program, saves=saves) as ready:
        optimized, judgement = _searched_and_judged(ready, Searches(ready, rules, trace), saves=saves)
        return optimized if output is None else write(optimized, ready, judgement, output, forms)


def _searched_and_judged(ready: Prepared, searches: Searches, *, saves: bool) -> tuple[Optimized, Judgement]:
    """Return the fastest result in any engine that was found, and the evaluation that says so."""
    source, program, options, phases = ready.source, ready.program, ready.options, ready.phases
    scouting = phases.phase("engines", "how fast each is without rules")
    with scouting if options.runtime == AUTO else nullcontext():
        selection = select(source, program, options)
    missing = selection.notes
    with LatencyDatabase() as database:
        costs = {prices: searches.cost_of(group, database) for prices, group in selection.searched.items()}
        remembers = options.cache and searches.trace is None
        winners = Winners(program, options, searches.rules) if remembers else None
        last, watch = winners and winners.last(), Watch(program.device)
        found = searches.run(selection.searched, costs, last)
        if options.runtime == AUTO and KERNEL_PRICES in costs:
            found, hopeless = without_hopeless(found, costs[KERNEL_PRICES])
            missing = [*missing, *hopeless]
        measuring = watch.contention()
        trial = Trial(
            source,
            program,
            planner_of(costs),
            options.limited,
            options.seed,
            phases,
            reload=options.reload or saves,
            saves=saves,
        )
        judgement = trial.hold(found, selection.others)
        limits = bounds_of(source, program, judgement, costs)
    with phases.phase("memory", "the most that a call takes"):
        peaks = peaks_of(source, program, judgement.winner, judgement.seconds)
    notes = [
        *ready.notes,
        *missing,
        *describe(program, searches.rules),
        *trial.notes,
        *(note for cost in costs.values() for note in disturbances(cost.latencies, measuring)),
        *unkept(database),
    ]
    report = report_of(
        Found(
            source=source,
            program=program,
            searches=found,
            judgement=judgement,
            bounds=limits,
            measuring=measuring,
            peaks=peaks,
            notes=notes,
            phases=phases.seconds,
            seed=options.seed,
        )
    )
    optimized = _optimized(program, judgement.winner, report)
    if winners is not None:
        winners.remember(optimized)
    return optimized, judgement


def _optimized(program: Program, winner: Finalist, report: Report) -> Optimized:
    return Optimized(
        module=winner.runner,
        report=report,
        trace=winner.candidate.trace,
        plan=winner.plan,
        keeps_original=winner.name == ORIGINAL,
        inputs=OpenInputs.of(program),
    )
