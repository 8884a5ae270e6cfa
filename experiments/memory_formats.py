"""Joint choice of kernels and memory formats, compared with simpler choices.

The same graph is computed by plain operators; by the best kernels with all values dense; with all values channels last;
with covers chosen for dense values and formats afterwards; and with both chosen jointly.

Invariant: all are predicted by the same prices and measured in turns, so that the ratios are paired.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from experiments.drawing import grouped_bars
from experiments.harness import Experiment, Row, Settings
from experiments.subject import Subject, subject
from experiments.ways import ORIGINAL, speedups
from taso_py.backend.plan import NO_PLAN, Format
from taso_py.cost.choice import Choice, choose

QUICK = ("squeezenet1_1", "mobilenet_v3_large")
FULL = (
    *("resnet50", "resnext50_32x4d", "inception_v3", "squeezenet1_1", "mobilenet_v3_large", "efficientnet_b0"),
    *("densenet121", "convnext_tiny", "nasnetalarge"),
)
WAYS = ("dense", "channels_last", "formats_afterwards", "jointly")


def _choices(model: Subject) -> Mapping[str, Choice]:
    graph, cost = model.program.graph, model.cost
    return {
        "dense": choose(graph, cost, formats=[Format.DENSE]),
        "channels_last": choose(graph, cost, formats=[Format.CHANNELS_LAST]),
        "formats_afterwards": choose(graph, cost, starts=[Format.DENSE]),
        "jointly": choose(graph, cost),
    }


def _measure(name: str, settings: Settings) -> Sequence[Row]:
    with subject(name, settings) as model:
        choices = _choices(model)
        calls = {ORIGINAL: model.call(NO_PLAN), **{way: model.call(choices[way].plan) for way in WAYS}}
        predicted = {f"{way}_predicted_ms": choices[way].seconds * 1e3 for way in WAYS}
        return [{"model": name, **speedups(calls, settings), **predicted}]


def _plot(figure: Figure, rows: Sequence[Row]) -> None:
    grouped_bars(figure, rows, WAYS, "speed-up over plain operators, same graph (medians, 95% intervals)")


EXPERIMENT = Experiment(
    "memory_formats",
    "What is choosing kernels and memory formats together worth?",
    reading=(
        "each column is the speed-up of one way to choose over plain calls, for a graph that is not rewritten; "
        "`jointly` should be at least each other within its interval"
    ),
    parts=lambda settings: settings.choose(QUICK, FULL),
    measure=_measure,
    plot=_plot,
)
