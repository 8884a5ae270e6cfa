"""The effect of a limit on the size of rules.

The database is limited to rules whose larger side has at most so many operators; without rules the choice of kernels
remains. As in search_vs_greedy, results of the search are compared by cost.

Invariant: all limits of a model share one process and one set of latencies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from experiments.drawing import STYLES
from experiments.harness import Experiment, Row, Settings
from experiments.subject import subject
from taso_py.rules.database import read_database
from taso_py.search import backtracking
from taso_py.search.result import Limits

QUICK = ("nasrnn", "squeezenet1_1")
FULL = ("nasrnn", "bert_base", "resnext50_32x4d", "inception_v3", "squeezenet1_1", "densenet121", "vit_b_16")
SIZES = (0, 2, 3, 4, 6, 100)


def _measure(name: str, settings: Settings) -> Sequence[Row]:
    seconds = 6.0 if settings.quick else 90.0
    row: dict[str, Any] = {"model": name}
    rules = read_database()
    with subject(name, settings) as model:
        for size in SIZES:
            chosen = [rule for rule in rules if max(rule.size) <= size]
            limits = Limits(seconds=seconds, seed=settings.seed)
            found = backtracking.search(model.imported.graph, chosen, model.cost, limits, None)
            row |= {f"rules_{size}": len(chosen), f"cost_{size}": found.best.seconds / found.original.seconds}
    return [row]


def _plot(figure: Figure, rows: Sequence[Row]) -> None:
    figure.set_size_inches(8, 5)
    axes = figure.subplots()
    for row, (line, mark) in zip(rows, STYLES, strict=False):
        costs = [row[f"cost_{size}"] for size in SIZES]
        axes.plot(range(len(SIZES)), costs, linestyle=line, marker=mark, color="black", label=row["model"])
    axes.set_xticks(range(len(SIZES)), [*map(str, SIZES[:-1]), "all"])
    axes.set_xlabel("operators of a rule's larger side at most")
    axes.set_ylabel("cost over that of the original")
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))


EXPERIMENT = Experiment(
    "rule_size",
    "How large do rules have to be?",
    reading=(
        "`cost_N` is what the search reaches with rules of at most N operators a side, over the cost of the original "
        "by the same prices; `cost_0` is kernels alone"
    ),
    parts=lambda settings: settings.choose(QUICK, FULL),
    measure=_measure,
    plot=_plot,
)
