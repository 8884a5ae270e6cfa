"""Does the cost model say what a model takes, before it is built?

The model's own run, computed plainly, calibrates the prices; so what is asked is whether the graph computed by the
kernels and memory formats that were chosen, which was never run before, takes as long as predicted. Beside it stands
the plain sum of latencies measured alone, which is what cost models usually are.

Invariant: what is measured runs alone, not in turns with others, as it would when it is used.
"""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from experiments.drawing import name_rows
from experiments.harness import Experiment, Row, Settings
from experiments.subject import subject, timed
from taso_py.backend.plan import NO_PLAN
from taso_py.cost.model import Context

QUICK = ("squeezenet1_1", "nasrnn", "distilbert")
FULL = (
    *("resnet50", "resnext50_32x4d", "inception_v3", "squeezenet1_1", "mobilenet_v3_large", "efficientnet_b0"),
    *("densenet121", "convnext_tiny", "nasnetalarge", "vit_b_16", "swin_t", "nasrnn", "bert_base", "distilbert"),
    *("gpt2", "llama", "t5", "whisper_encoder"),
)
WITHIN = (0.9, 1.1)
"""What counts as a good prediction."""


def _worst_first(rows: Sequence[Row]) -> Sequence[Row]:
    return sorted(rows, key=lambda row: -abs(row["predicted/measured"] - 1))


def _measure(name: str, settings: Settings) -> Sequence[Row]:
    with subject(name, settings) as model:
        graph = model.program.graph
        choice = model.cost.choice(graph)
        plain = timed(model.call(NO_PLAN), settings)
        chosen = timed(model.call(choice.plan), settings)
        model.cost.recalibrate(Context())
        alone = model.cost.choice(graph).seconds
    row = {
        "model": name,
        "plain_ms": plain.median_s * 1e3,
        "measured_ms": chosen.median_s * 1e3,
        "measured_ms_low": chosen.low_s * 1e3,
        "measured_ms_high": chosen.high_s * 1e3,
        "predicted_ms": choice.seconds * 1e3,
        "predicted/measured": choice.seconds / chosen.median_s,
        "plain_sum/measured": alone / chosen.median_s,
        "speedup": plain.median_s / chosen.median_s,
    }
    return [row]


def _plot(figure: Figure, rows: Sequence[Row]) -> None:
    axes = figure.subplots()
    places = range(len(rows))
    axes.axvspan(*WITHIN, color="0.9")
    axes.axvline(1, color="black", linewidth=0.8)
    axes.scatter([row["predicted/measured"] for row in rows], places, color="black", label="calibrated", zorder=3)
    axes.scatter(
        [row["plain_sum/measured"] for row in rows], places, facecolors="white", edgecolors="0.3", label="plain sum"
    )
    name_rows(axes, [row["model"] for row in rows])
    axes.set_xlabel("predicted over measured latency of the kernels chosen")
    axes.legend(loc="lower left")


EXPERIMENT = Experiment(
    "fidelity",
    "Does the cost model say what a model takes, before it is built?",
    "`predicted/measured` of the kernels that were chosen, worst first, should be within 0.9 and 1.1, the grey band; "
    "`plain_sum/measured` is what adding up latencies measured alone would say",
    lambda settings: settings.choose(QUICK, FULL),
    _measure,
    _plot,
    arrange=_worst_first,
)
