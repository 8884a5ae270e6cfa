"""What does the search find that hand-made templates, greedy steps and equality saturation miss?

All strategies start from the same graph and pay the same prices, so what they reach is compared by cost, without the
noise of a race; end_to_end times the results. Templates are the fusions that frameworks ship, applied wherever they
match, and the same with every step reverted that does not pay.

Invariant: the rows of a model come from one process and one set of latencies.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from tqdm import tqdm

from experiments.harness import Experiment, Settings
from experiments.subject import Subject, subject
from taso_py.runtime.optimize import SEARCHES, Options, read_rules
from taso_py.search.result import Limits

QUICK = ("nasrnn", "squeezenet1_1")
FULL = (
    *("nasrnn", "bert_base", "resnext50_32x4d", "inception_v3", "resnet50", "squeezenet1_1", "mobilenet_v3_large"),
    *("densenet121", "vit_b_16", "swin_t", "convnext_tiny", "gpt2", "nasnetalarge"),
)
ALPHAS = (1.0, 1.05, 1.1)
BUDGETS = (125, 500, 2000)
STRATEGIES = ("templates", "templates-measured", "greedy", "saturation")
MOST_RULES = 24
"""How many rules the heat map shows."""


def _run(settings: Settings) -> Sequence[Mapping[str, Any]]:
    names = QUICK if settings.quick else FULL
    rows: list[Mapping[str, Any]] = []
    for name in tqdm(names, desc="search_vs_greedy", unit="model"):
        with subject(name, settings) as model:
            rows += [{"model": name, **row} for row in _rows(model, settings)]
    return rows


def _rows(model: Subject, settings: Settings) -> Iterator[Mapping[str, Any]]:
    seconds = 20.0 if settings.quick else 120.0
    for strategy in STRATEGIES:
        yield _searched(model, strategy, Limits(seconds=seconds, seed=settings.seed))
    default = Limits()
    tried = [(default.alpha, budget) for budget in BUDGETS]
    tried += [(alpha, default.budget) for alpha in ALPHAS if alpha != default.alpha]
    for alpha, budget in tried:
        limits = Limits(alpha=alpha, budget=budget, seconds=seconds, seed=settings.seed)
        yield _searched(model, "backtracking", limits)


def _searched(model: Subject, strategy: str, limits: Limits) -> Mapping[str, Any]:
    rules = read_rules(Options(search=strategy))
    started = time.process_time()
    found = SEARCHES[strategy](model.imported.graph, rules, model.cost, limits, None)
    return {
        "strategy": strategy,
        "alpha": limits.alpha,
        "budget": limits.budget,
        "cost": found.best.seconds / found.original.seconds,
        "steps": len(found.best.trace.steps),
        "cpu_s": time.process_time() - started,
        "stop_reason": found.stop_reason.value,
        "applied": " ".join(f"{rule}:{count}" for rule, count in Counter(found.best.trace.applied).most_common()),
    }


def _label(row: Mapping[str, Any]) -> str:
    if row["strategy"] != "backtracking":
        return row["strategy"]
    return f"alpha {row['alpha']:g}, budget {row['budget']}"


def _plot(figure: Figure, rows: Sequence[Mapping[str, Any]]) -> None:
    models = list(dict.fromkeys(row["model"] for row in rows))
    figure.set_size_inches(11, 0.45 * len(models) + 7)
    costs, heat = figure.subplots(2, 1)
    marks = dict(zip(dict.fromkeys(map(_label, rows)), ("|", "x", "^", "d", ".", "+", "o", "1", "2"), strict=False))
    for label, mark in marks.items():
        found = [row for row in rows if _label(row) == label]
        shade = "black" if label.startswith("alpha") else "0.45"
        places = [models.index(row["model"]) for row in found]
        costs.scatter([row["cost"] for row in found], places, marker=mark, color=shade, label=label)
    costs.axvline(1, color="black", linewidth=0.8)
    costs.set_yticks(range(len(models)), models)
    costs.invert_yaxis()
    costs.set_xlabel("cost of what is found over the cost of the original, by the same prices")
    costs.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    _heat_map(heat, models, [row for row in rows if _label(row) == f"alpha {Limits().alpha:g}, budget {BUDGETS[-1]}"])


def _heat_map(axes: Any, models: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    counts: dict[str, dict[str, int]] = {}
    for row in rows:
        pairs = (part.split(":") for part in row["applied"].split())
        counts[row["model"]] = {rule: int(count) for rule, count in pairs}
    total: Counter[str] = sum((Counter(found) for found in counts.values()), Counter[str]())
    rules = [rule for rule, _ in total.most_common(MOST_RULES)]
    values = [[counts.get(model, {}).get(rule, 0) for rule in rules] for model in models]
    if not rules:
        axes.set_axis_off()
        return
    axes.imshow(values, cmap="Greys", aspect="auto", vmin=0)
    for i, row in enumerate(values):
        for j, count in enumerate(row):
            if count:
                shade = "white" if 2 * count > max(map(max, values)) else "black"
                axes.text(j, i, str(count), ha="center", va="center", fontsize=7, color=shade)
    axes.set_xticks(range(len(rules)), rules, rotation=60, ha="right", fontsize=7)
    axes.set_yticks(range(len(models)), models)
    axes.set_xlabel("how often each rule is applied by the default search")


EXPERIMENT = Experiment("search_vs_greedy", "What does the search find that greedy templates miss?", _run, _plot)
