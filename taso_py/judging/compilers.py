"""Compilers, which take up to a minute for a graph: they are built where they can still win, after a race of all else.

A compiler calls the same libraries for matrix products, convolutions and attention as eager PyTorch does. So their
latencies, scaled to the eager run of the same graph, are a lower bound on its time, however well it fuses the rest.

Invariant: a compiler waits only if its graphs are raced in eager mode.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import median

from taso_py.engines.engine import KERNEL_PRICES, Engine
from taso_py.ir.graph import Graph
from taso_py.ir.node import is_running
from taso_py.judging.finalists import EngineSearch, Finalist
from taso_py.judging.plausible import PYTHON_S
from taso_py.judging.timing import TIE, Race
from taso_py.ops.opaque import Opaque
from taso_py.search.result import Candidate

OFF = 2.0
"""Factor by which a run may exceed its estimate; more is work that has no price, which a compiler may do better."""


def without_waiting(searches: Sequence[EngineSearch]) -> tuple[Sequence[EngineSearch], Sequence[EngineSearch]]:
    """Return searches without the compilers that wait for the race of all else, and those with these alone."""
    now, later = list[EngineSearch](), list[EngineSearch]()
    for found in searches:
        compilers = [engine for engine in found.engines if engine.is_compiler and engine.prices == KERNEL_PRICES]
        others = [engine for engine in found.engines if engine not in compilers]
        if compilers and any(map(_is_eager, others)):
            now.append(replace(found, engines=others))
            later.append(replace(found, engines=compilers))
        else:
            now.append(found)
    return now, later


def promising(
    waiting: Sequence[EngineSearch],
    finalists: Mapping[str, Finalist],
    race: Race,
    library_seconds: Callable[[Graph], float],
) -> tuple[Sequence[EngineSearch], Sequence[str]]:
    """Return the searches if their compilers may still win; otherwise none, and a note.

    Args:
        waiting: searches with the compilers that waited for the race.
        finalists: the finalists by name.
        race: the race of all else.
        library_seconds: returns the time that libraries take for a graph's products, convolutions and attention.
    """
    raced = [(finalists[name], median(times)) for name, times in race.times.items() if times]
    best, best_s = min(raced, key=lambda one: one[1])
    bounds = [
        _least_seconds(finalist, run_s, library_seconds)
        for finalist, run_s in raced
        if not finalist.is_original and _is_eager(finalist.engine)
    ]
    if min(bounds, default=0.0) <= (1 - TIE) * best_s:
        return waiting, ()
    names = ", ".join(engine.name for found in waiting for engine in found.engines)
    what = "matrix products and attention alone take longer there than the whole model in"
    return (), [f"{names}: not tried, since {what} {best.engine.name}"]


def leading(found: EngineSearch, finalists: Mapping[str, Finalist], race: Race) -> Candidate:
    """Return the graph of a search that was the fastest in eager mode.

    Args:
        found: the search.
        finalists: the finalists by name.
        race: the race of all that runs without compilers.
    """
    graphs = [found.result.original, *found.result.candidates]
    raced = [
        name
        for name, times in race.times.items()
        if times and not finalists[name].is_original and _is_eager(finalists[name].engine)
    ]
    fastest = sorted(raced, key=lambda name: -race.ratio(name).median)
    return next((finalists[name].candidate for name in fastest if finalists[name].candidate in graphs), graphs[0])


def _least_seconds(finalist: Finalist, run_s: float, library_seconds: Callable[[Graph], float]) -> float:
    """Return a lower bound on the time of a graph in a compiler, given that of its run in eager mode."""
    graph, estimate_s = finalist.candidate.graph, finalist.candidate.seconds
    if any(isinstance(node.op, Opaque) for node in graph.nodes):
        return 0.0  # such operators have no price
    library_s, called_s = library_seconds(graph), PYTHON_S * sum(map(is_running, graph.nodes))
    if not (estimate_s > 0 and math.isfinite(estimate_s) and math.isfinite(library_s)):
        return 0.0
    return library_s * min(OFF, max(0.0, run_s - called_s) / estimate_s)


def _is_eager(engine: Engine) -> bool:
    return engine.prices == KERNEL_PRICES and not engine.is_compiler
