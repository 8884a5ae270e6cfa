"""Speed-ups on a GPU where the processor launches a call's kernels all at once, as CUDA graphs.

In eager mode a GPU of today waits for launches in most models at a small batch, so whatever removes those looks good.
Here the ways that do are compared: CUDA graphs of the model as it is, PyTorch's compiler with CUDA graphs
(``mode="reduce-overhead"``), the best kernels without any substitution, and the search, guided by the latencies of
kernels without their launches, with these kernels or with the compiler around them, whose prices know what it fuses.
Whichever of the two wins a race of their own, held before, is compared with the others. Models in half precision are
what GPUs are bought for, and come besides.

Invariant: all ratios of a row are paired, from one race; losses are shown like gains.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import geometric_mean, median
from typing import Any

import torch
from matplotlib.figure import Figure

from experiments.drawing import grouped_bars
from experiments.harness import Experiment, Row, Settings
from experiments.headline import ratios_in_words
from experiments.subject import priced
from experiments.ways import ORIGINAL, interval
from taso_py.driver.optimize import optimize_source
from taso_py.driver.searches import rules_for
from taso_py.engines.engine import EngineUnavailableError, Runner
from taso_py.engines.table import ENGINES, prepare
from taso_py.ir.errors import first_line
from taso_py.judging.timing import race
from taso_py.models.source import Source, load_source
from taso_py.options import Options

GRAPH, INDUCTOR, COMPILED = "cudagraph", "inductor", "inductor+cudagraph"
AROUND = "inductor-kernels-cudagraph"
"""The engine behind the last of ours."""
KERNELS, OURS, OURS_COMPILED = "kernels", "ours", "ours+inductor"
OTHERS = (ORIGINAL, GRAPH, INDUCTOR, COMPILED)
"""Alternatives of users without taso-py."""
WAYS = (GRAPH, INDUCTOR, COMPILED, KERNELS, OURS, OURS_COMPILED)
"""All that are compared with the original."""
QUICK = ("nasrnn", "resnet50 fp16", "bert_base fp16", "resnext50_32x4d")
FULL = (
    *("nasrnn", "resnet50", "bert_base", "resnext50_32x4d", "squeezenet1_1", "inception_v3", "mobilenet_v3_large"),
    *("efficientnet_b0", "densenet121", "convnext_tiny", "vit_b_16", "swin_t", "gpt2", "llama", "whisper_encoder"),
    *("resnet50 fp16", "bert_base fp16", "resnext50_32x4d fp16", "inception_v3 fp16", "mobilenet_v3_large fp16"),
    *("vit_b_16 fp16", "llama bf16", "gpt2 fp16", "resnet50@16 fp16", "bert_base@16 fp16"),
)
"""Names of models in the zoo, with a batch and an element type other than float32."""
SECONDS, QUICK_SECONDS = 10.0, 5.0


def _measure(part: str, settings: Settings) -> Sequence[Row]:
    name, _, dtype = part.partition(" ")
    source = load_source(f"zoo:{name}", device=settings.device, dtype=dtype or None, seed=settings.seed)
    options = Options(runtime=GRAPH, cache=False, seed=settings.seed)
    if settings.quick:
        options = replace(options, time_limit=16.0, race_seconds=3.0)
    seconds = QUICK_SECONDS if settings.quick else SECONDS
    with torch.no_grad():
        ways, missing = _others(source)
        compiled = replace(options, runtime=AROUND)
        results = {OURS_COMPILED: optimize_source(source, compiled, rules_for(compiled))}
        results[OURS] = optimize_source(source, options, rules_for(options))
        ways |= {KERNELS: _kernels(source), **{way: result.module for way, result in results.items()}}
        calls = {way: source.call_of(runner) for way, runner in ways.items()}
        ours = {way: calls[way] for way in results}
        chosen = race(ours, device=settings.device, seconds=seconds / 2, seed=settings.seed + 1).best()
        held = race(calls, device=settings.device, seconds=seconds, seed=settings.seed, until_clear=False)
    best = max((way for way in OTHERS if way in calls), key=lambda way: held.ratio(way).median)
    report = results[chosen].report
    row: dict[str, Any] = {"model": part, "original_ms": median(held.times[ORIGINAL]) * 1e3}
    for way in list(calls)[1:]:
        row |= interval(held, way)
    row |= {"ours is": chosen, "best of others": best, **interval(held, chosen, best, "ours/others")}
    row |= {**interval(held, OURS, KERNELS, "rules"), "rules applied": len(report.applied)}
    row |= {"predicted_ms": report.estimated_ms[1], "measured_ms": median(held.times[chosen]) * 1e3}
    row |= {"passed": report.comparison_passed, "error": report.error, "original_error": report.original_error}
    return [row | {"seconds": sum(report.phases.values()), "missing": "; ".join(missing)}]


def _others(source: Source) -> tuple[dict[str, Runner], list[str]]:
    """Return the alternatives by name, and the reasons why some cannot run the model; captures come last."""
    found: dict[str, Runner] = {ORIGINAL: source.callable()}
    missing: list[str] = []
    ways: dict[str, Callable[[], Runner]] = {
        INDUCTOR: lambda: prepare(source.callable(), INDUCTOR, source.args, source.kwargs),
        COMPILED: lambda: _reduce_overhead(source),
        GRAPH: lambda: prepare(source.callable(), GRAPH, source.args, source.kwargs),
    }
    for way, make in ways.items():
        try:
            found[way] = make()
        except (EngineUnavailableError, RuntimeError) as error:
            missing.append(f"{way}: {first_line(error)}")
    return found, missing


def _reduce_overhead(source: Source) -> Runner:
    """Return the model compiled as PyTorch's documentation advises for small batches; it is called until it replays."""
    compiled: Runner = torch.compile(source.callable(), mode="reduce-overhead", dynamic=False)
    for _ in range(3):
        compiled(*source.args, **source.kwargs)
    return compiled


def _kernels(source: Source) -> Runner:
    """Return the unchanged graph with the best kernels and memory formats, as a CUDA graph."""
    engine = ENGINES[GRAPH]
    with priced(source, captured=True) as model:
        built = engine.build(model.program, model.cost.plan(model.program.graph))
    return engine.prepare(built, source.args, source.kwargs)


def _headline(rows: Sequence[Row]) -> Sequence[str]:
    """Return a sentence for each element type."""
    words: list[str] = []
    for dtype in dict.fromkeys(map(_dtype, rows)):
        own = [row for row in rows if _dtype(row) == dtype]
        best = ratios_in_words(own, "ours/others", than="the best of eager mode, CUDA graphs and Inductor")
        mean = geometric_mean([row[row.get("ours is", OURS)] for row in own])
        words.append(f"{dtype}: {best}; over eager mode {mean:.3f}")
    return words


def _dtype(row: Row) -> str:
    return row["model"].partition(" ")[2] or "float32"


def _plot(figure: Figure, rows: Sequence[Row]) -> None:
    ways = [way for way in WAYS if any(way in row for row in rows)]
    grouped_bars(figure, rows, ways, "speed-up over the original in eager mode (paired medians, 95% intervals)")


EXPERIMENT = Experiment(
    "captured",
    "How much faster do models get on a GPU whose launches cost nothing?",
    reading=(
        "every column is a median of paired ratios over the original in eager mode, with its 95% interval: `cudagraph` "
        "is the model as it is, captured; `inductor` PyTorch's compiler by default, and `inductor+cudagraph` with "
        '`mode="reduce-overhead"`; `kernels` the best kernels without substitutions and `ours` with them, both '
        "captured, `ours+inductor` the compiler around the kernels of a search of its own; `ours/others` compares "
        "whichever of these two is chosen with the best of the others, `rules` compares `ours` with `kernels`; of the "
        "one chosen, `predicted_ms` is the sum of its kernels' latencies, without copies of inputs and outputs; "
        "`seconds` is what optimizing took"
    ),
    parts=lambda settings: settings.choose(QUICK, FULL),
    measure=_measure,
    plot=_plot,
    headline=_headline,
    apart=True,
    devices=("cuda",),
)
