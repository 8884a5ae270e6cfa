"""The search compared with hand-made templates, greedy steps and equality saturation.

All strategies start from the same graph and use the same prices, so that their results are compared by cost, without
the noise of a race; end_to_end times the results. Templates are the fusions that frameworks ship, applied wherever they
match, and the same with every step reverted that does not pay.

Invariant: the rows of a model come from one process and one set of latencies.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from experiments.drawing import STYLES, name_rows
from experiments.harness import Experiment, Row, Settings
from experiments.subject import Subject, in_engines, subject
from taso_py.driver.searches import rules_for
from taso_py.options import Options
from taso_py.search.result import Limits, Progress
from taso_py.search.strategies import SEARCHES

QUICK = ("nasrnn", "squeezenet1_1")
FULL = (
    *("nasrnn", "bert_base", "resnext50_32x4d", "inception_v3", "resnet50", "squeezenet1_1", "mobilenet_v3_large"),
    *("densenet121", "vit_b_16", "swin_t", "convnext_tiny", "gpt2", "nasnetalarge"),
)
IN_ENGINES = ("nasrnn", "densenet121", "vit_b_16", "convnext_tiny", "llama")
"""Models that are searched by the prices of engines as well."""
ALPHAS = (1.0, 1.05, 1.1)
BUDGETS = (125, 500, 2000)
STRATEGIES = ("templates", "templates-measured", "greedy", "saturation")
CURVE = "curve"
"""Column of the best costs so far: ``processor seconds:cost``, one after the other."""
MOST_RULES = 24
"""Most rules in the heat map."""


def _measure(name: str, settings: Settings) -> Sequence[Row]:
    with subject(name, settings) as model:
        return [{"model": name, **row} for row in _rows(model, settings)]


def _rows(model: Subject, settings: Settings) -> Iterator[Row]:
    seconds = 5.0 if settings.quick else 120.0
    for strategy in STRATEGIES:
        yield _run_strategy(model, strategy, Limits(seconds=seconds, seed=settings.seed))
    default = Limits()
    tried = [(default.alpha, budget) for budget in BUDGETS]
    tried += [(alpha, default.budget) for alpha in ALPHAS if alpha != default.alpha]
    for alpha, budget in tried:
        limits = Limits(alpha=alpha, budget=budget, seconds=seconds, seed=settings.seed)
        yield _run_strategy(model, "backtracking", limits)


def _run_strategy(model: Subject, strategy: str, limits: Limits) -> Row:
    rules = rules_for(Options(search=strategy))
    started = time.process_time()
    steps: list[tuple[float, float]] = []

    def note(progress: Progress) -> None:
        cost = progress.best_seconds / progress.original_seconds
        if not steps or cost < steps[-1][1]:
            steps.append((time.process_time() - started, cost))

    found = SEARCHES[strategy](model.imported.graph, rules, model.cost, limits, note)
    return {
        "strategy": strategy,
        "alpha": limits.alpha,
        "budget": limits.budget,
        "cost": found.best.seconds / found.original.seconds,
        "steps": len(found.best.applied),
        "cpu_s": time.process_time() - started,
        "stop_reason": found.stop_reason.value,
        "applied": " ".join(f"{rule}:{count}" for rule, count in Counter(found.best.applied).most_common()),
        CURVE: " ".join(f"{seconds:.2f}:{cost:.4f}" for seconds, cost in steps),
    }


def _label(row: Row) -> str:
    if row["strategy"] != "backtracking":
        return row["strategy"]
    return f"alpha {row['alpha']:g}, budget {row['budget']}"


def _plot(figure: Figure, rows: Sequence[Row]) -> None:
    models = list(dict.fromkeys(row["model"] for row in rows))
    height = 0.3 * len(models) + 1
    figure.set_size_inches(10, 2 * height + 5)
    costs, curves, heat = figure.subplots(3, 1, height_ratios=(height + 0.8, 2.6, height + 0.6))
    marks = dict(zip(dict.fromkeys(map(_label, rows)), ("|", "x", "^", "d", ".", "+", "o", "1", "2"), strict=False))
    for label, mark in marks.items():
        found = [row for row in rows if _label(row) == label]
        shade = "black" if label.startswith("alpha") else "0.45"
        places = [models.index(row["model"]) for row in found]
        costs.scatter([row["cost"] for row in found], places, marker=mark, color=shade, label=label)
    costs.axvline(1, color="black", linewidth=0.8)
    name_rows(costs, models)
    costs.set_xlabel("cost of what is found over the cost of the original, by the same prices")
    costs.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize="small")
    usual = [row for row in rows if _label(row) == f"alpha {Limits().alpha:g}, budget {BUDGETS[-1]}"]
    _curves(curves, usual)
    _heat_map(heat, models, usual)


def _curves(axes: Axes, rows: Sequence[Row]) -> None:
    """Draw the best cost so far over time; of the models that gain most, if there are many."""
    gaining = sorted((row for row in rows if row.get(CURVE)), key=lambda row: row["cost"])
    for row, (line, mark) in zip(gaining, STYLES, strict=False):
        points = [tuple(map(float, pair.split(":"))) for pair in row[CURVE].split()]
        times, costs = [at for at, _ in points], [cost for _, cost in points]
        # A curve ends where the search did, not where it last got better.
        times, costs = [*times, row["cpu_s"]], [*costs, costs[-1]]
        axes.step(times, costs, where="post", linestyle=line, color="black", linewidth=0.8, label=row["model"])
        axes.scatter(times[-1:], costs[-1:], marker=mark, color="black", s=18)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("processor seconds of the default search (log scale)")
    axes.set_ylabel("best cost so far")
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize="small")


def _heat_map(axes: Axes, models: Sequence[str], rows: Sequence[Row]) -> None:
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


EXPERIMENT = Experiment(
    "search_vs_greedy",
    "What does the search find that greedy templates miss?",
    reading=(
        "`cost` of what each strategy reaches over that of the original, by the same prices: templates blind and "
        "measured, greedy steps, equality saturation, and the search by alpha and budget; below, the best cost so far "
        "over time, and which rules each model uses; `in onnxruntime` and `in openvino` by the prices of the engine"
    ),
    parts=lambda settings: [*settings.choose(QUICK, FULL), *in_engines(settings.choose(QUICK, IN_ENGINES), settings)],
    measure=_measure,
    plot=_plot,
    drawn=(CURVE,),
)
