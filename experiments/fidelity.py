"""Does the cost model say what a model takes, before it is built?

The model's own run, computed plainly, calibrates the prices; so what is asked is whether the graph computed by the
kernels and memory formats that were chosen, which was never run before, takes as long as predicted. Beside it stands
the plain sum of latencies measured alone, which is what cost models usually are.

Invariant: the plain graph runs in turns with what is measured, so that a machine that has become slower or faster since
it was calibrated does not count: what is compared are shares of the plain graph's time.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from matplotlib.figure import Figure

from experiments.drawing import name_rows
from experiments.harness import Experiment, Row, Settings
from experiments.subject import subject
from experiments.ways import ORIGINAL
from taso_py.backend.plan import NO_PLAN, Format
from taso_py.cost.model import Context
from taso_py.kernels.table import PLAIN
from taso_py.runtime.timing import race

QUICK = ("squeezenet1_1", "nasrnn", "distilbert")
FULL = (
    *("resnet50", "resnext50_32x4d", "inception_v3", "squeezenet1_1", "mobilenet_v3_large", "efficientnet_b0"),
    *("densenet121", "convnext_tiny", "nasnetalarge", "vit_b_16", "swin_t", "nasrnn", "bert_base", "distilbert"),
    *("gpt2", "llama", "t5", "whisper_encoder"),
)
SECONDS = 12.0
"""How long the two run in turns."""
WITHIN = (0.9, 1.1)
"""What counts as a good prediction."""


def _worst_first(rows: Sequence[Row]) -> Sequence[Row]:
    return sorted(rows, key=lambda row: -abs(row["predicted/measured"] - 1))


def _measure(name: str, settings: Settings) -> Sequence[Row]:
    with subject(name, settings) as model:
        graph = model.program.graph
        choice = model.cost.choice(graph)
        plain = model.repriced(tiles=PLAIN, formats=[Format.DENSE]).graph_cost(graph)
        ways = {ORIGINAL: model.call(NO_PLAN), "chosen": model.call(choice.plan)}
        held = race(ways, device=settings.device, seconds=SECONDS, seed=settings.seed, until_clear=False)
        model.cost.recalibrate(Context())
        alone = model.cost.choice(graph).seconds
    medians = {way: median(times) for way, times in held.times.items()}
    drift = medians[ORIGINAL] / plain
    speedup = held.ratio("chosen")
    row = {
        "model": name,
        "plain_ms": medians[ORIGINAL] * 1e3,
        "measured_ms": medians["chosen"] * 1e3,
        "predicted_ms": choice.seconds * drift * 1e3,
        "predicted/measured": choice.seconds / plain * speedup.median,
        "predicted/measured_low": choice.seconds / plain * speedup.low,
        "predicted/measured_high": choice.seconds / plain * speedup.high,
        "plain_sum/measured": alone / plain * speedup.median,
        "drift": drift,
        "speedup": speedup.median,
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
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))


EXPERIMENT = Experiment(
    "fidelity",
    "Does the cost model say what a model takes, before it is built?",
    "`predicted/measured` of the kernels that were chosen, worst first, should be within 0.9 and 1.1, the grey band; "
    "`plain_sum/measured` is what adding up latencies measured alone would say; `drift` is how much longer the plain "
    "graph took than when it calibrated the prices, which all figures are free of",
    lambda settings: settings.choose(QUICK, FULL),
    _measure,
    _plot,
    arrange=_worst_first,
)
