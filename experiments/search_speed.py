"""Speed of the search, and how soon it finds its result.

Each search has a process of its own and is run twice there: the first run measures unknown latencies, the second, which
takes the same path, is timed in processor time of one thread. An expansion is one graph with everything that the search
needs to know: its cost with the best kernels and memory formats, and every substitution that can be applied to it
anywhere, each with an estimate of its gain. A candidate is a graph that was built and priced. Where a graph is searched
region by region, the graphs are those of regions; the columns that begin with ``whole`` are of searches that never cut
a graph.

Invariant: nothing is measured while a search is timed, or ``measured`` says how much was.
"""

from __future__ import annotations

import gc
import multiprocessing
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace

import torch
from matplotlib.figure import Figure

from experiments.drawing import name_rows
from experiments.harness import Experiment, Row, Settings
from experiments.subject import peak_mib, subject
from taso_py.cost.model import CostModel
from taso_py.ir.graph import Graph
from taso_py.rules.database import read_database
from taso_py.rules.match import Matcher
from taso_py.search.backtracking import Backtracking, search
from taso_py.search.result import Limits, Progress, SearchResult

QUICK = ("resnext50_32x4d", "bert_base")
FULL = (
    *("nasnetalarge", "nasrnn", "bert_base", "resnext50_32x4d", "inception_v3", "resnet50", "squeezenet1_1"),
    *("mobilenet_v3_large", "densenet121", "vit_b_16", "gpt2"),
)
QUICK_LONGER, LONGER = 2, 4
"""Factor on the usual budget and patience of a search for better results."""
WIDER = 1.1
"""The alpha of another search for better results."""
QUICK_WHOLE_BUDGET, WHOLE_BUDGET = 100, 500
"""Most graphs that the search that never cuts a graph may build."""
SECONDS = 900.0
"""Time limit, so long that budgets decide."""
WITHIN = 1.01
"""Ratio to the final cost that counts as reached."""


@dataclass(frozen=True)
class _Run:
    """One search in a process of its own."""

    seconds: float
    """Processor time."""
    built: int
    expansions: int
    ratio: float
    """Cost of the best graph over that of the original."""
    near_seconds: float
    """Processor time until the best so far was within 1% of the final cost."""
    mib: float
    """Peak memory of the process beyond its peak before the search."""
    stop_reason: str
    measured: int
    nodes: int


@dataclass
class _Clock:
    """Records when the best so far improves."""

    started: float = field(default_factory=time.process_time)
    bests: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])

    def __call__(self, progress: Progress) -> None:
        if not self.bests or progress.best_seconds < self.bests[-1][1]:
            self.bests.append((time.process_time() - self.started, progress.best_seconds))

    def near(self, final: float) -> float:
        """Return the time at which the best so far was near the final cost."""
        last = time.process_time() - self.started
        return next((spent for spent, best in self.bests if best <= WITHIN * final), last)


def _whole(graph: Graph, matcher: Matcher, cost: CostModel, limits: Limits, report: _Clock) -> SearchResult:
    return Backtracking(graph, matcher, cost, limits, report).run()


_SEARCHES: Mapping[str, Callable[[Graph, Matcher, CostModel, Limits, _Clock], SearchResult]] = {
    "usual": search,
    "whole": _whole,
}


def _run_search(name: str, kind: str, limits: Limits, settings: Settings) -> _Run:
    torch.set_num_threads(1)
    with subject(name, settings) as model:
        graph, cost = model.imported.graph, model.cost
        matcher = Matcher(read_database(None))
        before = peak_mib()
        _SEARCHES[kind](graph, matcher, cost, limits, _Clock())
        gc.collect()  # garbage of the first run is not charged to the timed one
        measured, clock = cost.latencies.measured, _Clock()
        found = _SEARCHES[kind](graph, matcher, cost, limits, clock)
        return _Run(
            seconds=time.process_time() - clock.started,
            built=found.built,
            expansions=found.expansions,
            ratio=found.best.seconds / found.original.seconds,
            near_seconds=clock.near(found.best.seconds),
            mib=peak_mib() - before,
            stop_reason=found.stop_reason.name.lower(),
            measured=cost.latencies.measured - measured,
            nodes=sum(not node.is_static for node in graph.nodes),
        )


def _run_alone(name: str, kind: str, limits: Limits, settings: Settings) -> _Run:
    """Run a search in a fresh process."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_run_search, name, kind, limits, settings).result()


def _measure(name: str, settings: Settings) -> Sequence[Row]:
    limits = Limits(seconds=SECONDS, seed=settings.seed)
    longer, whole_budget = (QUICK_LONGER, QUICK_WHOLE_BUDGET) if settings.quick else (LONGER, WHOLE_BUDGET)
    more = replace(limits, budget=longer * limits.budget, patience=longer * limits.patience)
    usual = _run_alone(name, "usual", limits, settings)
    longest = _run_alone(name, "usual", more, settings)
    wider = _run_alone(name, "usual", replace(limits, alpha=WIDER), settings)
    whole = _run_alone(name, "whole", replace(limits, budget=whole_budget, patience=whole_budget), settings)
    row = {
        "model": name,
        "nodes": usual.nodes,
        "expansions_per_s": usual.expansions / usual.seconds,
        "candidates_per_s": usual.built / usual.seconds,
        "whole_expansions_per_s": whole.expansions / whole.seconds,
        "seconds": usual.seconds,
        "seconds_to_1%": usual.near_seconds,
        "built": usual.built,
        "stop_reason": usual.stop_reason,
        "cost": usual.ratio,
        "cost_longer": longest.ratio,
        "cost_wider": wider.ratio,
        "cost_whole": whole.ratio,
        "seconds_longer": longest.seconds,
        "seconds_wider": wider.seconds,
        "mib": max(usual.mib, longest.mib),
        "mib_whole": whole.mib,
        "measured": usual.measured + longest.measured + wider.measured + whole.measured,
    }
    return [row]


def _plot(figure: Figure, rows: Sequence[Row]) -> None:
    axes = figure.subplots()
    places = range(len(rows))
    axes.barh(places, [row["seconds"] for row in rows], color="0.85", edgecolor="0.3", label="until it stops")
    axes.barh(places, [row["seconds_to_1%"] for row in rows], height=0.4, color="0.35", label="to within 1%")
    name_rows(axes, [f"{row['model']} ({row['cost']:.2f})" for row in rows])
    axes.set_xlabel("processor seconds of search (in brackets: cost of the result over the original's)")
    axes.legend(loc="lower right")


EXPERIMENT = Experiment(
    "search_speed",
    "How fast is the search, and how soon does it find what it finds?",
    reading=(
        "`cost` is that of the best graph over the original's; `cost_longer` with four times the budget (quick: "
        "twice), `cost_whole` where the graph is never cut; `expansions_per_s` counts graphs matched against all "
        "rules, in processor seconds of one thread with all latencies known; `mib` is memory beyond what the process "
        "had before it searched"
    ),
    parts=lambda settings: settings.choose(QUICK, FULL),
    measure=_measure,
    plot=_plot,
)
