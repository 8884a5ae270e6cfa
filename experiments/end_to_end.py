"""End-to-end latencies: how much faster models get, by what, and compared with other compilers.

Each model has a process of its own, so that nothing is warm from the one before. There all ways to run it are built,
and then timed in turns: the original; the best kernels without any substitution; hand-made templates; ours in eager
mode; Inductor, by default, with freezing and with max-autotune; and ours with Inductor behind it. On a GPU the original
and ours are also captured as CUDA graphs, and Inductor runs its compiled code as such, by itself and behind ours.
*Auto* is whichever of ours wins a race of their own, held before as the optimizer holds it, so the table's race has no
part in choosing it.

What substitutions add to kernels is mostly little: the two have another race of their own, which has more rounds. Where
the optimizer uses no rule, both are the same graph, and that race shows the noise of its figures.

Invariant: all ratios of a row are paired, from one race but for that; losses are shown like gains.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import geometric_mean
from typing import Any

import torch
from matplotlib.figure import Figure

from experiments.drawing import name_rows
from experiments.harness import Experiment, Row, Settings
from experiments.headline import batch_of, by_batch, count_certain, ratios_in_words
from experiments.subject import priced
from experiments.ways import ORIGINAL, interval
from taso_py.backend import build
from taso_py.driver.optimize import optimize_source
from taso_py.driver.result import Optimized
from taso_py.driver.searches import rules_for
from taso_py.engines.engine import EngineUnavailableError, Runner
from taso_py.engines.inductor import WHOLE_MODULE_FORMS
from taso_py.engines.table import prepare
from taso_py.judging.timing import Race, race
from taso_py.models.source import Source, load_source
from taso_py.options import Options

QUICK = ("squeezenet1_1",)
FULL = (
    *("resnet50", "resnext50_32x4d", "inception_v3", "squeezenet1_1", "nasnetalarge", "nasrnn", "bert_base"),
    *("mobilenet_v3_large", "efficientnet_b0", "densenet121", "convnext_tiny", "vit_b_16", "swin_t", "vit_base"),
    *("mixer_b16", "gpt2", "llama", "t5", "whisper_encoder", "mobileone_s0"),
)
LARGER, BATCHES = ("squeezenet1_1", "resnet50", "nasrnn", "bert_base"), {"cpu": 8, "cuda": 16}
"""Models that are timed on a larger batch as well, and its size, by device."""
KERNELS, TEMPLATES, EAGER, INDUCTOR, REPLAYED = "kernels", "templates", "ours", "ours+inductor", "ours+cudagraph"
OURS = (EAGER, INDUCTOR, REPLAYED)
COMPILERS = tuple(engine.name for engine in WHOLE_MODULE_FORMS)
"""Forms of Inductor that compile all of a module."""
COMPILED_CAPTURED = "inductor-cudagraph"
GRAPH = "cudagraph"
"""The runtime of a GPU that captures a module as it is."""
BASELINES = {"cpu": COMPILERS, "cuda": (*COMPILERS, COMPILED_CAPTURED, GRAPH)}
"""Runtimes of the original, by device; those that capture come after those that only compile."""
OTHERS = (ORIGINAL, *BASELINES["cuda"])
"""Everything that the result is compared with."""
MEAN = "geometric mean"
"""First words of rows that sum up others."""

Call = Callable[[], Any]


@dataclass(frozen=True)
class _Ways:
    """Everything that is timed for a model."""

    calls: Mapping[str, Call]
    auto: str
    """The one of ours that is chosen."""
    results: Mapping[str, Optimized]
    missing: Mapping[str, str]
    """Reasons why the original cannot be run in some runtimes."""


def _measure(name: str, settings: Settings) -> Sequence[Row]:
    source = load_source(f"zoo:{name}", device=settings.device, seed=settings.seed)
    with torch.no_grad():
        made = _build_ways(source, settings)
        seconds = 8.0 if settings.quick else 60.0
        raced = race(made.calls, device=settings.device, seconds=seconds, seed=settings.seed, until_clear=False)
        pair = {way: made.calls[way] for way in (KERNELS, EAGER)}
        seed = settings.seed + 2
        alone = race(pair, device=settings.device, seconds=seconds, rounds=1000, seed=seed, until_clear=False)
    gained = interval(alone, EAGER, KERNELS, "ours/kernels")
    return [{"model": name, **_figures(raced, made.auto), **gained, **_facts(made)}]


def _build_ways(source: Source, settings: Settings) -> _Ways:
    """Build every way to run a model."""
    limit, seconds = (6.0, 3.0) if settings.quick else (60.0, 20.0)
    options = Options(time_limit=limit, race_seconds=seconds, seed=settings.seed, cache=False)
    asked = {
        TEMPLATES: replace(options, search="templates-measured"),
        EAGER: options,
        INDUCTOR: replace(options, runtime="inductor"),
    }
    results = {way: optimize_source(source, chosen, rules_for(chosen)) for way, chosen in asked.items()}
    runners: dict[str, Callable[..., Any]] = {ORIGINAL: source.callable(), KERNELS: _kernels(source)}
    runners |= {way: result.module for way, result in results.items()}
    prepared, missing = _baselines(source, settings)
    runners |= prepared
    if settings.device == "cuda":
        # Last, so that a capture that fails cannot be why a compiler does.
        chosen = replace(options, runtime=GRAPH)
        results[REPLAYED] = optimize_source(source, chosen, rules_for(chosen))
        runners[REPLAYED] = results[REPLAYED].module
    calls = {way: source.call_of(runner) for way, runner in runners.items()}
    ours = {way: calls[way] for way in OURS if way in calls}
    auto = race(ours, device=settings.device, seconds=seconds, seed=settings.seed + 1).best()
    return _Ways(calls, auto, results, missing)


def _baselines(source: Source, settings: Settings) -> tuple[dict[str, Runner], dict[str, str]]:
    """Return the original in each runtime, and the reasons of runtimes that cannot run it."""
    prepared: dict[str, Runner] = {}
    missing: dict[str, str] = {}
    for runtime in BASELINES[settings.device]:
        try:
            prepared[runtime] = prepare(source.callable(), runtime, source.args, source.kwargs)
        except EngineUnavailableError as error:
            missing[runtime] = str(error)
    return prepared, missing


def _kernels(source: Source) -> Callable[..., Any]:
    """Build the unchanged graph with the best kernels and memory formats."""
    with priced(source) as model:
        return build(model.program, model.cost.plan(model.program.graph))


def _figures(raced: Race, auto: str) -> Row:
    """Return the ratios of a race: over the original, and of ours over the best of the others."""
    row: dict[str, Any] = {"original_ms": 1e3 * min(raced.times[ORIGINAL])}
    for way in raced.times:
        row |= interval(raced, way) if way != ORIGINAL else {}
    best = max((way for way in OTHERS if way in raced.times), key=lambda way: raced.ratio(way).median)
    row |= {"best_other": best, "auto_is": auto}
    row |= interval(raced, auto, best, "auto/best_other")
    row |= interval(raced, EAGER, TEMPLATES, "ours/templates")
    return row | {"rounds": raced.rounds}


def _facts(made: _Ways) -> Row:
    report = made.results[EAGER].report
    return {
        "rules": len(report.applied),
        "templates_rules": len(made.results[TEMPLATES].report.applied),
        "search_s": report.search_seconds,
        "stop_reason": report.stop_reason,
        "passed": all(result.report.comparison_passed for result in made.results.values()),
        "error": report.error,
        "original_error": report.original_error,
        **({"missing": "; ".join(made.missing.values())} if made.missing else {}),
    }


def _parts(settings: Settings) -> Sequence[str]:
    return settings.choose(QUICK, (*FULL, *larger_batches(settings.device)))


def larger_batches(device: str) -> Sequence[str]:
    """Return the names of models on a larger batch than usual."""
    return [f"{name}@{BATCHES[device]}" for name in LARGER]


def _with_summaries(rows: Sequence[Row]) -> Sequence[Row]:
    """Return the rows, each batch with its geometric means."""
    return [*rows, *map(_summary, by_batch(rows).values())]


def _summary(rows: Sequence[Row]) -> Row:
    """Return the geometric means of models of one batch, and the number of them with a certain gain or loss."""
    batch = batch_of(rows[0])
    names = (KERNELS, TEMPLATES, *OURS, *BASELINES["cuda"], "auto/best_other", "ours/kernels", "ours/templates")
    means = {name: geometric_mean([row[name] for row in rows]) for name in names if all(name in row for row in rows)}
    gained, lost = count_certain(rows, "auto/best_other")
    note = f"of {len(rows)}, {gained} surely faster than the best of the others, {lost} surely slower"
    return {"model": f"{MEAN}@{batch}" if batch else MEAN, **means, "note": note}


def _headline(rows: Sequence[Row]) -> Sequence[str]:
    """Return a sentence for each batch."""
    models = [row for row in rows if not row["model"].startswith(MEAN)]
    return [f"{batch}: {_in_words(of_batch)}" for batch, of_batch in by_batch(models).items()]


def _in_words(rows: Sequence[Row]) -> str:
    best = ratios_in_words(rows, "auto/best_other", than="the best of eager mode and the compilers")
    eager = geometric_mean([row[row["auto_is"]] for row in rows])
    kernels = geometric_mean([row[KERNELS] for row in rows])
    return f"{best}; over eager mode {eager:.3f}, of which kernels and memory formats alone {kernels:.3f}"


def _plot(figure: Figure, rows: Sequence[Row]) -> None:
    done = [row for row in rows if not row["model"].startswith(MEAN)]
    figure.set_size_inches(9, 0.62 * len(done) + 1)
    axes = figure.subplots()
    marks = {KERNELS: "|", TEMPLATES: "x", **dict(zip(BASELINES["cuda"], "<>^v1", strict=True))}
    marks |= {EAGER: "o", INDUCTOR: "s", REPLAYED: "D"}
    ways = [way for way in marks if any(way in row for row in done)]
    for number, way in enumerate(ways):
        # Each way has a line of its own within a model's, since equally fast ones would hide each other.
        shift = 0.7 * (number / max(1, len(ways) - 1) - 0.5)
        shade = "black" if way in OURS else "0.45"
        there = [(place + shift, row) for place, row in enumerate(done) if way in row]
        values, places = [row[way] for _, row in there], [place for place, _ in there]
        axes.scatter(values, places, marker=marks[way], color=shade, label=way, zorder=3, s=22)
        for place, row in there:
            axes.plot([row[f"{way}_low"], row[f"{way}_high"]], [place, place], color=shade, linewidth=1)
    axes.axvline(1, color="black", linewidth=0.8)
    name_rows(axes, [row["model"] for row in done])
    for place in range(1, len(done)):
        axes.axhline(place - 0.5, color="0.9", linewidth=0.8)
    axes.set_xlabel("speed-up over the original in eager mode (paired medians, 95% intervals)")
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))


EXPERIMENT = Experiment(
    "end_to_end",
    "How much faster do models get, and by what?",
    reading=(
        "every column is a median of paired ratios over the original in eager mode, with its 95% interval: the best "
        "kernels without substitutions, hand-made templates, ours, Inductor by default, with freezing, and with "
        "max-autotune and freezing, ours with Inductor behind it, and on a GPU CUDA graphs, of the model as it is, of "
        "what Inductor compiled of it, and of ours; `auto/best_other` compares what the optimizer chooses with the "
        "best of the original and the compilers, `ours/kernels` is what substitutions add to kernels; where `rules` "
        "and `templates_rules` are 0, kernels, templates and ours are one graph built three times, and differ by what "
        "builds do; `missing` says why a runtime is not compared with"
    ),
    parts=_parts,
    measure=_measure,
    plot=_plot,
    arrange=_with_summaries,
    headline=_headline,
    apart=True,
    is_long=True,
)
