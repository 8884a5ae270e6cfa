"""Does the cost model say what a model takes, before it is built?

The model's own run, computed plainly, calibrates the prices; so what is asked is whether the graph computed by the
kernels and memory formats that were chosen, which was never run before, takes as long as predicted. Beside it stands
the plain sum of latencies measured alone, which is what cost models usually are.

Invariant: what is measured runs alone, not in turns with others, as it would when it is used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from matplotlib.figure import Figure
from tqdm import tqdm

from experiments.harness import Experiment, Settings
from experiments.subject import subject, timed
from taso_py.backend.plan import NO_PLAN
from taso_py.cost.choice import choose
from taso_py.cost.model import Context

QUICK = ("squeezenet1_1", "nasrnn", "mobilenet_v3_large", "distilbert")
FULL = (
    *("resnet50", "resnext50_32x4d", "inception_v3", "squeezenet1_1", "mobilenet_v3_large", "efficientnet_b0"),
    *("densenet121", "convnext_tiny", "nasnetalarge", "vit_b_16", "swin_t", "nasrnn", "bert_base", "distilbert"),
    *("gpt2", "llama", "t5", "whisper_encoder"),
)
WITHIN = (0.9, 1.1)
"""What counts as a good prediction."""


def _run(settings: Settings) -> Sequence[Mapping[str, Any]]:
    names = QUICK if settings.quick else FULL
    rows = [_row(name, settings) for name in tqdm(names, desc="fidelity", unit="model")]
    return sorted(rows, key=lambda row: -abs(row["predicted/measured"] - 1))


def _row(name: str, settings: Settings) -> Mapping[str, Any]:
    with subject(name, settings) as model:
        graph = model.program.graph
        choice = choose(graph, model.cost)
        plain = timed(model.call(NO_PLAN), settings)
        chosen = timed(model.call(replace(choice.plan, overwrites=True)), settings)
        model.cost.recalibrate(Context())
        alone = choose(graph, model.cost).seconds
    return {
        "model": name,
        "plain_ms": plain.median_s * 1e3,
        "measured_ms": chosen.median_s * 1e3,
        "measured_low": chosen.low_s * 1e3,
        "measured_high": chosen.high_s * 1e3,
        "predicted_ms": choice.seconds * 1e3,
        "predicted/measured": choice.seconds / chosen.median_s,
        "plain_sum/measured": alone / chosen.median_s,
        "speedup": plain.median_s / chosen.median_s,
    }


def _plot(figure: Figure, rows: Sequence[Mapping[str, Any]]) -> None:
    axes = figure.subplots()
    places = range(len(rows))
    axes.axvspan(*WITHIN, color="0.9")
    axes.axvline(1, color="black", linewidth=0.8)
    axes.scatter([row["predicted/measured"] for row in rows], places, color="black", label="calibrated", zorder=3)
    axes.scatter(
        [row["plain_sum/measured"] for row in rows], places, facecolors="white", edgecolors="0.3", label="plain sum"
    )
    axes.set_yticks(list(places), [row["model"] for row in rows])
    axes.invert_yaxis()
    axes.set_xlabel("predicted over measured latency of the kernels chosen")
    axes.legend(loc="lower left")


EXPERIMENT = Experiment("fidelity", "Does the cost model say what a model takes, before it is built?", _run, _plot)
