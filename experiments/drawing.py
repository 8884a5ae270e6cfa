"""Shared parts of figures: styles of lines, names of rows, and groups of bars.

Invariant: nothing is distinguished by colour alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.harness import Row

STYLES = tuple((line, mark) for line in ("-", "--", ":") for mark in ("o", "s", "^"))
"""Lines and marks of up to nine curves."""
SHADES = ("white", "0.85", "0.7", "0.5", "0.3", "0.1")


def name_rows(axes: Axes, names: Sequence[str]) -> None:
    """Name the places 0, 1, ... of the vertical axis, the first on top."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)


def shade(number: int, count: int) -> str:
    """Return one of this many shades of grey, the first being the lightest."""
    return SHADES[number * (len(SHADES) - 1) // max(1, count - 1)]


def interval_widths(rows: Sequence[Row], way: str) -> list[list[float]]:
    """Return how far the intervals of a column reach below and above its values, as error bars take them."""
    return [
        [max(0.0, row[way] - row[f"{way}_low"]) for row in rows],
        [max(0.0, row[f"{way}_high"] - row[way]) for row in rows],
    ]


def grouped_bars(figure: Figure, rows: Sequence[Row], ways: Sequence[str], label: str) -> None:
    """Draw a group of bars for each model, a bar for each way, with its interval; 1 is marked."""
    figure.set_size_inches(9, 0.19 * len(rows) * (len(ways) + 1) + 1.4)
    axes = figure.subplots()
    height = 0.84 / len(ways)
    for number, way in enumerate(ways):
        there = [(place, row) for place, row in enumerate(rows) if way in row]
        places = [place + (number - (len(ways) - 1) / 2) * height for place, _ in there]
        values = [row[way] for _, row in there]
        spread = interval_widths([row for _, row in there], way)
        colour = shade(number, len(ways))
        axes.barh(places, values, height, color=colour, edgecolor="0.2", label=way.replace("_", " "))
        for ink, width in (("black", 2.2), ("white", 0.8)):
            axes.errorbar(values, places, xerr=spread, fmt="none", ecolor=ink, elinewidth=width)
    axes.axvline(1, color="black", linewidth=0.8)
    name_rows(axes, [row["model"] for row in rows])
    axes.set_xlabel(label)
    figure.legend(loc="outside upper center", ncols=len(ways) if len(ways) < 5 else 3, frameon=False)
