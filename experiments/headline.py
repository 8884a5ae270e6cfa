"""Sentences that sum up a table of ratios: geometric mean, largest, smallest, and the number of certain ones.

Invariant: a sentence counts every row that it is given, losses like gains.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import geometric_mean

from experiments.harness import Row
from experiments.table import cell

LARGEST = 3
"""Number of the largest ratios that are named."""


def count_certain(rows: Sequence[Row], ratio: str) -> tuple[int, int]:
    """Return how many intervals of a ratio lie wholly above 1, and how many wholly below."""
    return sum(row[f"{ratio}_low"] > 1 for row in rows), sum(row[f"{ratio}_high"] < 1 for row in rows)


def ratios_in_words(rows: Sequence[Row], ratio: str, *, than: str) -> str:
    """Return one sentence on how much faster models run.

    Args:
        rows: one per model, at least one.
        ratio: the column with the speed-up, which has an interval.
        than: the name of the baseline.
    """
    gained, lost = count_certain(rows, ratio)
    ordered = sorted(rows, key=lambda row: row[ratio], reverse=True)
    mean = geometric_mean([row[ratio] for row in rows])
    largest = ", ".join(_named(row, ratio) for row in ordered[:LARGEST])
    rest = f"; smallest: {_named(ordered[-1], ratio)}" if len(ordered) > LARGEST else ""
    count = f"{len(rows)} models" if len(rows) > 1 else "1 model"
    return (
        f"geometric mean of {count}: {mean:.3f} times as fast as {than}; {gained} certainly faster, {lost} certainly "
        f"slower; largest: {largest}{rest}"
    )


def batch_of(row: Row) -> str:
    """Return the batch of a row's model as its name states it, empty for the usual one."""
    return row["model"].partition("@")[2]


def by_batch(rows: Sequence[Row]) -> Mapping[str, Sequence[Row]]:
    """Return the rows in groups of one batch each, under words that name it."""
    return {
        f"batch {batch}" if batch else "usual batch": [row for row in rows if batch_of(row) == batch]
        for batch in dict.fromkeys(map(batch_of, rows))
    }


def _named(row: Row, ratio: str) -> str:
    value, interval = cell(row, ratio)
    return f"{row['model']} {value}" + (f" ({interval})" if interval else "")
