"""Several ways to compute one model, raced against the plain way.

Invariant: the ratios of a row are paired, from one race.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from experiments.harness import Row, Settings
from taso_py.judging.timing import Race, race

ORIGINAL = "original"


def speedups(
    calls: Mapping[str, Callable[[], Any]], settings: Settings, *, quick_s: float = 8, full_s: float = 30
) -> Row:
    """Return the speed-ups of all ways over the first, with their intervals.

    Args:
        calls: calls of the model in each way; the first is the baseline.
        settings: settings of the run.
        quick_s: seconds of a quick race.
        full_s: seconds of a full race.
    """
    seconds = quick_s if settings.quick else full_s
    held = race(calls, device=settings.device, seconds=seconds, seed=settings.seed, until_clear=False)
    return {name: figure for way in list(calls)[1:] for name, figure in interval(held, way).items()}


def interval(held: Race, way: str, over: str | None = None, name: str | None = None) -> Mapping[str, float]:
    """Return a speed-up with its interval, in the columns of tables."""
    ratio, column = held.ratio(way, over), name or way
    return {column: ratio.median, f"{column}_low": ratio.low, f"{column}_high": ratio.high}
