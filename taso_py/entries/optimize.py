"""Optimization of the entry points of one model, one after the other, on weights and state that they share.

Invariant: each result is as :func:`taso_py.driver.optimize.optimize` would choose it by itself. The modules share what
the entry points of the model share, in copies of their own: calls change neither the model nor what it computes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from taso_py.backend import Plan, Program, build
from taso_py.backend.weights import assemble, tie
from taso_py.backend.writes import state_of
from taso_py.checking.preserve import preserve_state
from taso_py.driver.evidence import gather_evidence
from taso_py.driver.optimize import search_and_evaluate
from taso_py.driver.prepare import PreparedSource, prepare
from taso_py.driver.result import Optimized
from taso_py.driver.searches import Searches, rules_for
from taso_py.engines.engine import Runner
from taso_py.engines.table import ENGINES
from taso_py.entries.entry import EntryPoint, EntryPointError, import_together
from taso_py.files import encoded
from taso_py.ir.errors import TasoError, in_a_line
from taso_py.judging.evaluation import EvaluationOutcome
from taso_py.models.source import Source
from taso_py.options import Options
from taso_py.report.optimization import Report
from taso_py.report.optimization_page import optimization_page
from taso_py.rules.substitution import Substitution
from taso_py.saving import compact
from taso_py.saving.artifact import without_weights
from taso_py.saving.folder import ENTRIES, PAGE, check_result_writable, folder_of
from taso_py.saving.sized import Shapes
from taso_py.saving.together import SavableEntry, write_entries
from taso_py.search.trace import write_trace


@dataclass(frozen=True)
class OptimizedEntries:
    """The results of the entry points of one model, by name."""

    modules: Mapping[str, Runner]
    """Called like the entry points. Where nothing was faster, the original graph as plain calls."""
    results: Mapping[str, Optimized]
    """Report, trace and plan of each."""

    @property
    def reports(self) -> Mapping[str, Report]:
        """The report of each."""
        return {name: result.report for name, result in self.results.items()}


def optimize_entry_points(
    entries: Mapping[str, EntryPoint], *, output: str | os.PathLike[str] | None = None, **options: Any
) -> OptimizedEntries:
    """Optimize several entry points of one model, which go on to share its weights and its state.

    Args:
        entries: the entry points, by names that are valid in Python.
        output: the folder to save all of them to, which :func:`taso_py.load` reads.
        options: the fields of :class:`Options`.

    Raises:
        TasoError: one cannot be imported, or an option is wrong; the message is one line that names the entry point.
    """
    given: Any = entries
    points: list[Any] = list(given.values()) if isinstance(given, Mapping) else [given]
    foreign = [point for point in points if not isinstance(point, EntryPoint)]
    if foreign:
        raise EntryPointError(f"entries must be a dict of EntryPoint by names, not of {in_a_line(foreign[0])}")
    chosen, folder = Options.from_mapping(options), None if output is None else folder_of(output)
    wrong = next((name for name in entries if not str(name).isidentifier()), None)
    if wrong is not None or not entries:
        raise EntryPointError(f"give entry points by names that are valid in Python, not {wrong!r}")
    found = optimize_into(folder, {name: entry.source(name) for name, entry in entries.items()}, chosen)
    return OptimizedEntries(
        MappingProxyType({name: entry.optimized.module for name, entry in found.items()}),
        MappingProxyType({name: entry.optimized for name, entry in found.items()}),
    )


@dataclass(frozen=True)
class OptimizedEntry:
    """The result of an entry point, and the form in which it is saved."""

    optimized: Optimized
    savable: SavableEntry | None
    """None if it is not to be saved."""
    has_state: bool = False
    """True if it writes to buffers, or reads one that another entry point writes to."""


def optimize_into(
    folder: Path | None, sources: Mapping[str, Source], options: Options, sizes: Mapping[str, Shapes] | None = None
) -> Mapping[str, OptimizedEntry]:
    """Optimize sources that are entry points of one model, and save them with a page for each.

    Args:
        folder: the folder to save to; None not to save.
        sources: the entry points, by name.
        options: the options for each.
        sizes: the sizes that each is for, if they are one model at several sizes.

    Raises:
        TasoError: one cannot be optimized, or the folder cannot be written to.
    """
    saves = folder is not None
    if folder is not None:
        check_result_writable(folder, index=ENTRIES)
    found = optimize_together(sources, options, saves=saves, pages=saves)
    if folder is not None:
        savable = {name: entry.savable for name, entry in found.items() if entry.savable is not None}
        write_entries(folder, savable, sizes)
    return found


def optimize_together(
    sources: Mapping[str, Source], options: Options, *, saves: bool, pages: bool = False
) -> Mapping[str, OptimizedEntry]:
    """Optimize sources that are entry points of one model.

    Args:
        sources: the entry points, by name.
        options: the options for each.
        saves: whether the results will be saved.
        pages: whether a page is saved with each.

    Raises:
        TasoError: one cannot be optimized; the message names it.
    """
    rules, programs = rules_for(options), import_together(sources)
    found: dict[str, OptimizedEntry] = {}
    for name, source in sources.items():
        try:
            found[name] = _optimized(source, programs[name], options, rules, saves=saves, pages=pages)
        except TasoError as error:
            raise EntryPointError(f"entry point {name}: {error}") from error
    return found


def _optimized(
    source: Source, program: Program, options: Options, rules: Sequence[Substitution], *, saves: bool, pages: bool
) -> OptimizedEntry:
    with prepare(source, options, program, saves=saves) as ready:
        optimized, outcome = search_and_evaluate(ready, Searches(ready, rules, None), saves=saves)
        optimized = replace(optimized, module=_on_shared_state(ready, outcome))
        savable = _savable(ready, optimized, outcome, pages) if saves else None
        return OptimizedEntry(optimized, savable, has_state=bool(program.state))


def _on_shared_state(ready: PreparedSource, outcome: EvaluationOutcome) -> Runner:
    """Return the winner's runner, made to use the state that all entry points share.

    In place of the model itself comes its graph as plain calls: the model has weights and state of its own.
    """
    source, program, winner = ready.source, ready.program, outcome.winner
    module, runner = winner.module, winner.runner
    if winner.is_original:
        module = runner = build(program, Plan(direct=True))
    if program.state:
        tie(module, program.state)
    if program.state and runner is not module:
        with preserve_state(program, [module], (source.args, source.kwargs)):
            engine, resizable = ENGINES[winner.engine.name], bool(program.open)
            return engine.prepare(module, source.args, source.kwargs, resizable=resizable)
    return runner


def _savable(ready: PreparedSource, optimized: Optimized, outcome: EvaluationOutcome, has_page: bool) -> SavableEntry:
    """Return the form in which a result is saved, with the tensors that it shares."""
    content, weights = without_weights(outcome.saved.content)
    winner = outcome.winner
    shared = {**winner.program.weights, **ready.program.state}
    _, places = assemble(winner.program.graph, winner.program.weights, winner.program.parameters)
    own = {place: shared[key] for key, place in places.items() if place in weights}
    others = dict(outcome.saved.files)
    form = outcome.saved.compact
    if has_page:
        others[PAGE] = encoded(optimization_page(optimized.report, gather_evidence(ready, outcome)))
    return SavableEntry(
        content=content,
        weights={**weights, **own},
        state=[places[key] for key in state_of(winner.program.graph)],
        report=optimized.report,
        trace=write_trace(optimized.trace),
        plan=outcome.saved.plan,
        others=others,
        compact=None if form is None else compact.without_weights(form, content, weights),
    )
