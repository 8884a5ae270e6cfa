"""Fidelity of the cost model: predicted against measured latencies of whole models.

Latencies are measured call by call, and scaled by the ratio of a run to the sum of its calls for a small network, which
is none of these models. So the question is whether the graph, computed by the chosen kernels and memory formats, takes
as long as predicted; of the model only single calls ran before. Latencies in an engine for whole graphs are not scaled
here; an optimization scales them to a run of the unchanged graph.

Invariant: on a CPU, predictions and measurements are both at its sustained speed.
"""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from experiments.drawing import name_rows
from experiments.harness import Experiment, Row, Settings
from experiments.subject import IN, in_engines, subject

QUICK = ("squeezenet1_1", "nasrnn", "distilbert")
FULL = (
    *("resnet50", "resnext50_32x4d", "inception_v3", "squeezenet1_1", "mobilenet_v3_large", "efficientnet_b0"),
    *("densenet121", "convnext_tiny", "nasnetalarge", "vit_b_16", "swin_t", "nasrnn", "bert_base", "distilbert"),
    *("gpt2", "llama", "t5", "whisper_encoder"),
)
IN_ENGINES = (
    *("resnet50", "resnext50_32x4d", "inception_v3", "squeezenet1_1", "mobilenet_v3_large", "densenet121"),
    *("convnext_tiny", "vit_b_16", "swin_t", "nasrnn", "bert_base", "llama"),
)
"""Models that are priced and run in engines as well."""
SECONDS = 12.0
"""Running time of a model."""
WITHIN = (0.9, 1.1)
"""Range of a good prediction."""


def _worst_first(rows: Sequence[Row]) -> Sequence[Row]:
    return sorted(rows, key=lambda row: -abs(row["predicted/measured"] - 1))


def _measure(name: str, settings: Settings) -> Sequence[Row]:
    with subject(name, settings) as model:
        choice = model.cost.choice(model.program.graph)
        took = model.cost.latencies.of_run(model.call(choice.plan), SECONDS)
    row = {
        "model": name,
        "measured_ms": took.median_s * 1e3,
        "predicted_ms": choice.seconds * 1e3,
        "predicted/measured": choice.seconds / took.median_s,
        "predicted/measured_low": choice.seconds / took.high_s,
        "predicted/measured_high": choice.seconds / took.low_s,
        "sum/measured": choice.seconds / model.cost.scale / took.median_s,
    }
    return [row]


def _headline(rows: Sequence[Row]) -> Sequence[str]:
    """Return how many predictions are good, for PyTorch's kernels and each engine."""
    where: dict[str, list[bool]] = {}
    for row in rows:
        good = WITHIN[0] <= row["predicted/measured"] <= WITHIN[1]
        where.setdefault(row["model"].partition(IN)[2] or "PyTorch's kernels", []).append(good)
    counts = "; ".join(f"{engine}: {sum(found)} of {len(found)} models" for engine, found in where.items())
    return [f"predicted within {WITHIN[1] - 1:.0%}: {counts}"] if rows else []


def _plot(figure: Figure, rows: Sequence[Row]) -> None:
    axes = figure.subplots()
    places = range(len(rows))
    axes.axvspan(*WITHIN, color="0.9")
    axes.axvline(1, color="black", linewidth=0.8)
    axes.scatter([row["predicted/measured"] for row in rows], places, color="black", label="predicted", zorder=3)
    axes.scatter(
        [row["sum/measured"] for row in rows], places, facecolors="white", edgecolors="0.3", label="sum of its calls"
    )
    name_rows(axes, [row["model"] for row in rows])
    axes.set_xlabel("predicted over measured latency of the kernels chosen")
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))


EXPERIMENT = Experiment(
    "fidelity",
    "Does the cost model say what a model takes, before it is built?",
    reading=(
        "`predicted/measured` of the kernels that were chosen, worst first, should be within 0.9 and 1.1, the grey "
        "band; `sum/measured` is what their latencies add up to, before the scale that a run of a small network gives, "
        "which is the same for all models; on a CPU all are at its usual pace; in an engine for whole graphs the two "
        "are the same"
    ),
    parts=lambda settings: [*settings.choose(QUICK, FULL), *in_engines(settings.choose(QUICK, IN_ENGINES), settings)],
    measure=_measure,
    plot=_plot,
    headline=_headline,
    arrange=_worst_first,
)
