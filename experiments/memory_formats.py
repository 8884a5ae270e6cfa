"""What is choosing kernels and memory formats together worth?

The same graph is computed by plain operators; by the best kernels with all values dense; with all values channels last;
with covers chosen for dense values and formats afterwards; and with both chosen jointly.

Invariant: all are predicted by the same prices and measured in turns, so that the ratios are paired.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from tqdm import tqdm

from experiments.harness import Experiment, Settings
from experiments.subject import Subject, subject
from taso_py.backend.plan import NO_PLAN, Format
from taso_py.cost.choice import Choice, choose
from taso_py.runtime.timing import race

QUICK = ("squeezenet1_1", "mobilenet_v3_large", "convnext_tiny")
FULL = (
    *("resnet50", "resnext50_32x4d", "inception_v3", "squeezenet1_1", "mobilenet_v3_large", "efficientnet_b0"),
    *("densenet121", "convnext_tiny", "nasnetalarge"),
)
WAYS = ("dense", "channels_last", "formats_afterwards", "jointly")


def _run(settings: Settings) -> Sequence[Mapping[str, Any]]:
    names = QUICK if settings.quick else FULL
    return [_row(name, settings) for name in tqdm(names, desc="memory_formats", unit="model")]


def _choices(model: Subject) -> Mapping[str, Choice]:
    graph, cost = model.program.graph, model.cost
    return {
        "dense": choose(graph, cost, formats=[Format.DENSE]),
        "channels_last": choose(graph, cost, formats=[Format.CHANNELS_LAST]),
        "formats_afterwards": choose(graph, cost, starts=[Format.DENSE]),
        "jointly": choose(graph, cost),
    }


def _row(name: str, settings: Settings) -> Mapping[str, Any]:
    with subject(name, settings) as model:
        choices = _choices(model)
        calls = {"original": model.call(NO_PLAN), **{way: model.call(choices[way].plan) for way in WAYS}}
        raced = race(calls, device=settings.device, seconds=8 if settings.quick else 30, seed=settings.seed)
    row: dict[str, Any] = {"model": name}
    for way in WAYS:
        ratio = raced.ratio(way)
        row |= {f"{way}_predicted_ms": choices[way].seconds * 1e3, way: ratio.median}
        row |= {f"{way}_low": ratio.low, f"{way}_high": ratio.high}
    return row


def _plot(figure: Figure, rows: Sequence[Mapping[str, Any]]) -> None:
    axes = figure.subplots()
    shades = dict(zip(WAYS, ("white", "0.8", "0.55", "0.2"), strict=True))
    height = 0.8 / len(WAYS)
    for i, way in enumerate(WAYS):
        places = [place + (i - 1.5) * height for place in range(len(rows))]
        speedups = [row[way] for row in rows]
        spread = [[row[way] - row[f"{way}_low"] for row in rows], [row[f"{way}_high"] - row[way] for row in rows]]
        axes.barh(places, speedups, height=height, color=shades[way], edgecolor="0.2", label=way.replace("_", " "))
        axes.errorbar(speedups, places, xerr=spread, fmt="none", ecolor="black", elinewidth=0.8)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_yticks(range(len(rows)), [row["model"] for row in rows])
    axes.invert_yaxis()
    axes.set_xlabel("speed-up over the same graph computed by plain operators (paired medians, 95% intervals)")
    axes.legend(loc="lower right")


EXPERIMENT = Experiment("memory_formats", "What is choosing kernels and memory formats together worth?", _run, _plot)
