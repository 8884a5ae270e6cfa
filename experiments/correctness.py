"""Correctness of results: they compute what the originals compute.

The small variant of every zoo model is searched with a budget drawn at random, at random prices: so rules are applied
and kernels and memory formats chosen that would not pay, and many more than would. The result is saved, loaded again
and compared with the original against float64, as is each rule where it was applied. A full run also optimizes each
model in the usual way, where the result has to be faster, too. In addition there are random models, rewritten by random
rules and computed by random kernels (:mod:`fuzz`).

Invariant: a failure is a row that names the problem.
"""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import torch
from matplotlib.figure import Figure

from experiments.drawing import name_rows
from experiments.harness import Experiment, Row, Settings
from fuzz.campaign import BATCH, run_batch
from fuzz.prices import InventedCost
from taso_py.backend import build, fold, poison, retype
from taso_py.checking.cases import program_cases
from taso_py.checking.compare import Oracle
from taso_py.checking.regions import check_regions
from taso_py.cost.choice import choose
from taso_py.driver.optimize import optimize_source
from taso_py.driver.searches import rules_for
from taso_py.ir.errors import TasoError
from taso_py.kernels.check import KernelChecks
from taso_py.kernels.saved import dump
from taso_py.kernels.tile import Cover, Formats
from taso_py.models import zoo
from taso_py.models.importing import import_source
from taso_py.models.source import Source
from taso_py.options import Options
from taso_py.rules.database import read_database
from taso_py.saving.artifact import deserialize, reimport, serialize
from taso_py.search.backtracking import search
from taso_py.search.result import Limits

MODELS = {True: 50, False: 300}
"""Number of random models, by whether the run is quick."""
RANDOM, USUAL = "random ", "optimized "
"""Prefixes of parts that are a batch of random models, on a CPU, and of those whose result has to be faster."""
SECONDS, MOST_BUILT = 8.0, 200
"""Limits of a search; its budget is drawn below the second."""
FUSED = 0.5
"""Price of fused kernels relative to others, low so that many are chosen."""


def _parts(settings: Settings) -> Sequence[str]:
    names = zoo.names()[::4] if settings.quick else zoo.names()
    usual = [] if settings.quick else [f"{USUAL}{name}" for name in names]
    batches = range(settings.seed * 1000, settings.seed * 1000 + MODELS[settings.quick] // BATCH)
    randoms = [f"{RANDOM}{number}" for number in batches] if settings.device == "cpu" else []
    return [*names, *usual, *randoms]


def _measure(part: str, settings: Settings) -> Sequence[Row]:
    if part.startswith(RANDOM):
        return [_random_row(part)]
    budget = random.Random(f"{part} {settings.seed}").randrange(1, MOST_BUILT)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            source = _source(part.removeprefix(USUAL), settings)
            row = (_check_optimization if part.startswith(USUAL) else _check_at_random_prices)(source, budget, settings)
    except TasoError as error:
        row = {"passed": False, "problem": str(error)}
    return [{"model": part, **row}]


def _source(name: str, settings: Settings) -> Source:
    module, args = zoo.get(name).make(settings.seed, small=True)
    device = torch.device(settings.device)
    return Source(name, module.to(device), tuple(tensor.to(device) for tensor in args))


class _Running(InventedCost):
    """Random prices, infinite where a kernel fails on operands of its own types."""

    @cached_property
    def _trials(self) -> KernelChecks:
        return KernelChecks(self.device)

    def cover_seconds(self, cover: Cover, formats: Formats) -> float:
        return super().cover_seconds(cover, formats) if self._trials.runs(cover, formats[0]) else math.inf


def _check_at_random_prices(source: Source, budget: int, settings: Settings) -> Row:
    """Search at random prices and compare the result in its saved form."""
    program = import_source(source)
    cost = _Running(settings.seed, fused=FUSED, device=program.device)
    best = search(program.graph, read_database(), cost, Limits(budget=budget, seconds=SECONDS, seed=settings.seed)).best
    content = serialize(build(fold(replace(program, graph=best.graph))), source.args, source.kwargs)
    plan = choose(reimport(content).graph, cost).plan
    result = poison(deserialize(content, dump(plan.eager())))
    cases = program_cases(program, source.args, source.kwargs, settings.seed)
    compared = Oracle(source.callable(), build(retype(program)), cases).compare(result)
    regions = check_regions((match for match, _ in best.steps), settings.seed, program.device)
    wrong = [f"{region.rule} is off by {region.error:.1e}" for region in regions if not region.passed]
    if not compared.passed:
        wrong.append(compared.reason)
    return {
        "passed": not wrong,
        "models": 1,
        "budget": budget,
        "rewrites": len(best.applied),
        "kernels": sum(step.kernel is not None for step in plan.steps.values()),
        "error": compared.error,
        "original_error": compared.original_error,
        "problem": "; ".join(wrong),
    }


def _check_optimization(source: Source, budget: int, settings: Settings) -> Row:
    """Optimize in the usual way."""
    options = Options(budget=budget, time_limit=SECONDS, race_seconds=1.0, seed=settings.seed, cache=False)
    report = optimize_source(source, options, rules_for(options)).report
    refused = [note for note in report.notes if note.startswith("refused")]
    return {
        "passed": report.comparison_passed and not refused,
        "models": 1,
        "budget": budget,
        "rewrites": len(report.applied),
        "kernels": sum(report.kernels.values()),
        "error": report.error,
        "original_error": report.original_error,
        "problem": "; ".join(refused),
    }


def _random_row(part: str) -> Row:
    tally = run_batch(int(part.removeprefix(RANDOM)), BATCH)
    return {
        "model": part,
        "passed": not tally.failures,
        "models": tally.tried,
        "rewrites": tally.rules.total(),
        "kernels": tally.kernels.total(),
        "problem": "; ".join(failure.reason for failure in tally.failures),
    }


def _plot(figure: Figure, rows: Sequence[Row]) -> None:
    axes = figure.subplots()
    places = range(len(rows))
    axes.barh(places, [row.get("rewrites", 0) for row in rows], color="0.8", edgecolor="0.3")
    name_rows(axes, [row["model"] if row["passed"] else f"{row['model']} FAILED" for row in rows])
    axes.set_xlabel("substitutions applied")


EXPERIMENT = Experiment(
    "correctness",
    "Do results compute what the originals compute?",
    reading=(
        "`passed` must be yes everywhere; `problem` says what is wrong otherwise; `rewrites` and `kernels` count what "
        "was put to the test, taken at invented prices but in the rows called optimized; `error` and `original_error` "
        "are against float64, of the result and of the model as it was"
    ),
    parts=_parts,
    measure=_measure,
    plot=_plot,
    is_check=True,
)
