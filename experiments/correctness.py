"""Do results compute what the originals compute?

The small variant of every zoo model is optimized with a budget drawn at random, saved, loaded again and compared; so
are random models, rewritten by random rules and computed by random kernels (:mod:`taso_py.fuzz`).

Invariant: a failure is a row, with what is wrong.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Sequence

import torch
from matplotlib.figure import Figure

from experiments.harness import Experiment, Row, Settings
from taso_py.fuzz.campaign import BATCH, run_batch
from taso_py.ir.errors import TasoError
from taso_py.runtime import zoo
from taso_py.runtime.optimize import Options, optimize_source, read_rules
from taso_py.runtime.source import Source

MODELS = {True: 50, False: 300}
"""How many random models, when quick and when not."""


RANDOM = "random "
"""How the names of parts begin that are a batch of random models; they are computed on a CPU."""


def _parts(settings: Settings) -> Sequence[str]:
    names = zoo.names()[::4] if settings.quick else zoo.names()
    if settings.device != "cpu":
        return names
    batches = range(settings.seed * 1000, settings.seed * 1000 + MODELS[settings.quick] // BATCH)
    return [*names, *(f"{RANDOM}{number}" for number in batches)]


def _measure(part: str, settings: Settings) -> Sequence[Row]:
    if part.startswith(RANDOM):
        return [_random_row(part)]
    return [_zoo_row(part, random.Random(f"{part} {settings.seed}").randrange(1, 200), settings)]


def _zoo_row(name: str, budget: int, settings: Settings) -> Row:
    options = Options(settings.device, budget=budget, time_limit=8.0, race_seconds=1.0, seed=settings.seed)
    try:
        module, args = zoo.get(name).make(settings.seed, small=True)
        device = torch.device(settings.device)
        source = Source(name, module.to(device), tuple(tensor.to(device) for tensor in args))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            report = optimize_source(source, options, read_rules(options)).report
    except TasoError as error:
        return {"model": name, "passed": False, "problem": str(error)}
    refused = [note for note in report.notes if note.startswith("refused")]
    return {
        "model": name,
        "passed": report.comparison_passed and not refused,
        "models": 1,
        "rewrites": len(report.applied),
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
        "problem": "; ".join(failure.reason for failure in tally.failures),
    }


def _plot(figure: Figure, rows: Sequence[Row]) -> None:
    axes = figure.subplots()
    places = range(len(rows))
    axes.barh(places, [row.get("rewrites", 0) for row in rows], color="0.8", edgecolor="0.3")
    axes.set_yticks(list(places), [row["model"] if row["passed"] else f"{row['model']} FAILED" for row in rows])
    axes.invert_yaxis()
    axes.set_xlabel("substitutions applied")


EXPERIMENT = Experiment(
    "correctness",
    "Do results compute what the originals compute?",
    "`passed` must be yes everywhere; `problem` says what is wrong otherwise; `error` and `original_error` are against "
    "float64, of the result and of the model as it was",
    _parts,
    _measure,
    _plot,
)
