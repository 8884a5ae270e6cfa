"""Several ways to compute one model, raced against the plain way: the row of a table, and its figure.

Invariant: the ratios of a row are paired, from one race.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from experiments.harness import Row, Settings
from taso_py.runtime.timing import Race, race

ORIGINAL = "original"
SHADES = ("white", "0.85", "0.7", "0.5", "0.3", "0.1")


def raced(calls: Mapping[str, Callable[[], Any]], settings: Settings, *, quick_s: float = 8, full_s: float = 30) -> Row:
    """The speed-ups of all ways over the first, with their intervals.

    Args:
        calls: computes the model in each way; the first is what the others are compared with.
        settings: of the run.
        quick_s: how long a quick race lasts, in seconds.
        full_s: how long another one lasts.
    """
    seconds = quick_s if settings.quick else full_s
    held = race(calls, device=settings.device, seconds=seconds, seed=settings.seed, until_clear=False)
    return {name: figure for way in list(calls)[1:] for name, figure in interval(held, way).items()}


def interval(held: Race, way: str, over: str | None = None, name: str | None = None) -> Mapping[str, float]:
    """A speed-up with its interval, in the columns that tables have for it."""
    ratio, column = held.ratio(way, over), name or way
    return {column: ratio.median, f"{column}_low": ratio.low, f"{column}_high": ratio.high}


def bars(figure: Figure, rows: Sequence[Row], ways: Sequence[str], label: str) -> None:
    """A group of bars for each model, a bar for each way, with its interval."""
    figure.set_size_inches(9, 0.2 * len(rows) * (len(ways) + 1) + 1.4)
    axes = figure.subplots()
    height = 0.84 / len(ways)
    for i, way in enumerate(ways):
        there = [place for place, row in enumerate(rows) if way in row]
        places = [place + (i - (len(ways) - 1) / 2) * height for place in there]
        values = [rows[place][way] for place in there]
        ends = [(rows[place][f"{way}_low"], rows[place][f"{way}_high"]) for place in there]
        spread = [[max(0.0, v - low) for v, (low, _) in zip(values, ends, strict=True)]]
        spread += [[max(0.0, high - v) for v, (_, high) in zip(values, ends, strict=True)]]
        shade = SHADES[i * (len(SHADES) - 1) // max(1, len(ways) - 1)]
        axes.barh(places, values, height, color=shade, edgecolor="0.2", label=way.replace("_", " "))
        axes.errorbar(values, places, xerr=spread, fmt="none", ecolor="black", elinewidth=2.2)
        axes.errorbar(values, places, xerr=spread, fmt="none", ecolor="white", elinewidth=0.8)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_yticks(range(len(rows)), [row["model"] for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel(label)
    figure.legend(loc="outside upper center", ncols=len(ways) if len(ways) < 5 else 3, frameon=False)
