"""How much faster do models get, by what, and beside what people use?

Each model has a process of its own, so that nothing is warm from the one before. There all ways to run it are made, and
then timed in turns: as it is; by the best kernels without any substitution; by hand-made templates; by ours in eager
mode; by Inductor, by default and with freezing; and by ours with Inductor behind it. *Auto* is whichever of ours was
the faster one in the races that the optimizer held before, so the table's own race had no part in choosing it.

A model that is done is not run again: remove its file under ``runs/`` to repeat it.

Invariant: all ratios of a row are paired, from one race; losses are shown like gains.
"""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from math import exp, log
from typing import Any

import torch
from matplotlib.figure import Figure
from tqdm import tqdm

from experiments.harness import Experiment, Settings
from experiments.subject import priced
from taso_py.backend import build
from taso_py.ir.errors import TasoError, first_line
from taso_py.runtime.optimize import Optimized, Options, optimize_source, read_rules
from taso_py.runtime.runtimes import COMPILED, RuntimeUnavailableError, prepare
from taso_py.runtime.source import Source, load_source
from taso_py.runtime.timing import Race, race

QUICK = ("nasrnn", "squeezenet1_1")
FULL = (
    *("resnet50", "resnext50_32x4d", "inception_v3", "squeezenet1_1", "nasnetalarge", "nasrnn", "bert_base"),
    *("mobilenet_v3_large", "efficientnet_b0", "densenet121", "convnext_tiny", "vit_b_16", "swin_t", "vit_base"),
    *("mixer_b16", "gpt2", "llama", "t5", "whisper_encoder"),
)
KERNELS, TEMPLATES, EAGER, INDUCTOR = "kernels", "templates", "ours", "ours+inductor"
OURS = (EAGER, INDUCTOR)
OTHERS = ("original", *COMPILED)
"""What the result is compared with."""

Call = Callable[[], Any]


@dataclass(frozen=True)
class _Made:
    """What is timed for a model."""

    calls: Mapping[str, Call]
    auto: str
    """Which of ours is chosen."""
    results: Mapping[str, Optimized]


def _run(settings: Settings) -> Sequence[Mapping[str, Any]]:
    names = QUICK if settings.quick else FULL
    rows = [_row(name, settings) for name in tqdm(names, desc="end_to_end", unit="model")]
    return [*rows, _summary(rows)]


def _row(name: str, settings: Settings) -> Mapping[str, Any]:
    done = settings.out / "runs" / f"{name}.json"
    if not done.exists():
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            try:
                row = pool.submit(_measured, name, settings).result()
            except TasoError as error:
                return {"model": name, "note": f"failed: {first_line(error)}"}
        done.parent.mkdir(parents=True, exist_ok=True)
        done.write_text(json.dumps(row, indent=2) + "\n")
    return json.loads(done.read_text())


def _measured(name: str, settings: Settings) -> Mapping[str, Any]:
    source = load_source(f"zoo:{name}", device=settings.device, seed=settings.seed)
    with torch.no_grad():
        made = _made(source, settings)
        seconds = 20.0 if settings.quick else 60.0
        raced = race(made.calls, device=settings.device, seconds=seconds, seed=settings.seed, until_clear=False)
    return {"model": name, **_figures(raced, made.auto), **_facts(made.results)}


def _made(source: Source, settings: Settings) -> _Made:
    """Every way to run a model."""
    limit = 20.0 if settings.quick else 60.0
    options = Options(settings.device, time_limit=limit, race_seconds=10.0, seed=settings.seed, reload=False)
    asked = {
        TEMPLATES: replace(options, search="templates-measured"),
        EAGER: options,
        INDUCTOR: replace(options, runtime="inductor"),
    }
    results = {way: optimize_source(source, chosen, read_rules(chosen)) for way, chosen in asked.items()}
    runners: dict[str, Callable[..., Any]] = {"original": source.callable(), KERNELS: _kernels(source)}
    runners |= {way: result.module for way, result in results.items()}
    for runtime in COMPILED:
        try:
            runners[runtime] = prepare(source.callable(), runtime, source.args, source.kwargs)
        except RuntimeUnavailableError:
            continue
    auto = max(OURS, key=lambda way: results[way].report.speedup)
    return _Made({way: _call(runner, source) for way, runner in runners.items()}, auto, results)


def _call(runner: Callable[..., Any], source: Source) -> Call:
    return lambda: runner(*source.args, **source.kwargs)


def _kernels(source: Source) -> Callable[..., Any]:
    """The unchanged graph, computed by the kernels and memory formats that suit it best."""
    with priced(source) as model:
        return build(model.program, model.cost.plan(model.program.graph))


def _figures(raced: Race, auto: str) -> Mapping[str, Any]:
    """The ratios of a race: over the original, and of ours over the best of the others."""
    row: dict[str, Any] = {"original_ms": 1e3 * min(raced.times["original"])}
    for way in raced.times:
        row |= _interval(raced, way, "original", way)
    best = max((way for way in OTHERS if way in raced.times), key=lambda way: raced.ratio(way).median)
    row |= {"best_other": best, "auto_is": auto}
    row |= _interval(raced, auto, best, "auto/best_other")
    row |= _interval(raced, EAGER, KERNELS, "ours/kernels")
    row |= _interval(raced, EAGER, TEMPLATES, "ours/templates")
    return row | {"rounds": raced.rounds}


def _interval(raced: Race, way: str, over: str, name: str) -> Mapping[str, float]:
    ratio = raced.ratio(way, over)
    return {name: ratio.median, f"{name}_low": ratio.low, f"{name}_high": ratio.high}


def _facts(results: Mapping[str, Optimized]) -> Mapping[str, Any]:
    report = results[EAGER].report
    return {
        "rules": len(report.applied),
        "search_s": report.search_seconds,
        "stop_reason": report.stop_reason,
        "passed": all(result.report.comparison_passed for result in results.values()),
        "error": report.error,
        "original_error": report.original_error,
    }


def _summary(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The geometric means, and how many models gain surely."""
    done = [row for row in rows if "rounds" in row]
    names = (KERNELS, TEMPLATES, *OURS, *COMPILED, "auto/best_other", "ours/kernels")
    means = {name: _mean([row[name] for row in done if name in row]) for name in names}
    gained = sum(row["auto/best_other_low"] > 1 for row in done)
    return {"model": "geometric mean", **means, "note": f"{gained} of {len(done)} surely faster than all others"}


def _mean(ratios: Sequence[float]) -> float:
    return exp(sum(map(log, ratios)) / len(ratios)) if ratios else float("nan")


def _plot(figure: Figure, rows: Sequence[Mapping[str, Any]]) -> None:
    done = [row for row in rows if "rounds" in row]
    axes = figure.subplots()
    marks = {KERNELS: "|", TEMPLATES: "x", "inductor": "<", "inductor-freezing": ">", EAGER: "o", INDUCTOR: "s"}
    for way, mark in marks.items():
        places = [place for place, row in enumerate(done) if way in row]
        shade = "black" if way in OURS else "0.45"
        axes.scatter([done[place][way] for place in places], places, marker=mark, color=shade, label=way, zorder=3)
    for place, row in enumerate(done):
        auto = row["auto_is"]
        axes.plot([row[f"{auto}_low"], row[f"{auto}_high"]], [place, place], color="black", linewidth=2)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_yticks(range(len(done)), [row["model"] for row in done])
    axes.invert_yaxis()
    axes.grid(axis="y", color="0.9")
    axes.set_xlabel("speed-up over the original in eager mode (paired medians; bar: 95% interval of what is chosen)")
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))


EXPERIMENT = Experiment("end_to_end", "How much faster do models get, and by what?", _run, _plot)
