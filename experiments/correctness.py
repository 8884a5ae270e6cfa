"""Do results compute what the originals compute?

The small variant of every zoo model is optimized with a budget drawn at random, saved, loaded again and compared; so
are random models, rewritten by random rules and computed by random kernels (:mod:`taso_py.fuzz`).

Invariant: a failure is a row, with what is wrong.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from matplotlib.figure import Figure
from tqdm import tqdm

from experiments.harness import Experiment, Settings
from taso_py.fuzz.campaign import BATCH, run_batch
from taso_py.ir.errors import TasoError
from taso_py.runtime import zoo
from taso_py.runtime.optimize import Options, optimize_source, read_rules
from taso_py.runtime.source import Source

MODELS = {True: 50, False: 300}
"""How many random models, when quick and when not."""


def _run(settings: Settings) -> Sequence[Mapping[str, Any]]:
    chance = random.Random(settings.seed)
    names = zoo.names()[::4] if settings.quick else zoo.names()
    rows = [_zoo_row(name, chance.randrange(1, 200), settings) for name in tqdm(names, desc="zoo", unit="model")]
    batches = range(settings.seed * 1000, settings.seed * 1000 + MODELS[settings.quick] // BATCH)
    return [*rows, *(_random_row(number) for number in tqdm(batches, desc="random", unit="batch"))]


def _zoo_row(name: str, budget: int, settings: Settings) -> Mapping[str, Any]:
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


def _random_row(number: int) -> Mapping[str, Any]:
    tally = run_batch(number, BATCH)
    return {
        "model": f"random {number}",
        "passed": not tally.failures,
        "models": tally.tried,
        "rewrites": tally.rules.total(),
        "problem": "; ".join(failure.reason for failure in tally.failures),
    }


def _plot(figure: Figure, rows: Sequence[Mapping[str, Any]]) -> None:
    axes = figure.subplots()
    places = range(len(rows))
    axes.barh(places, [row.get("rewrites", 0) for row in rows], color="0.8", edgecolor="0.3")
    axes.set_yticks(list(places), [row["model"] if row["passed"] else f"{row['model']} FAILED" for row in rows])
    axes.invert_yaxis()
    axes.set_xlabel("substitutions applied")


EXPERIMENT = Experiment("correctness", "Do results compute what the originals compute?", _run, _plot)
