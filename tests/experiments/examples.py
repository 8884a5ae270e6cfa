"""Experiments that measure nothing, for tests of how experiments are run. Worker processes import this by name."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.harness import Experiment, Row, Settings
from taso_py.ir.errors import TasoError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CALLS, PROCESS = "calls.txt", "process.txt"


def settings(folder: Path, seed: int = 0) -> Settings:
    return Settings("cpu", quick=True, out=folder, seed=seed)


def calls(folder: Path) -> list[str]:
    """The parts that were measured so far, in order."""
    path = folder / CALLS
    return path.read_text().split() if path.exists() else []


def measure(part: str, settings: Settings) -> Sequence[Row]:
    """Notes that it was called, and does what the part's name says."""
    with (settings.out / CALLS).open("a") as file:
        file.write(f"{part}\n")
    if part == "refuses":
        raise TasoError("cannot do <that>; do this")
    if part == "raises":
        raise ZeroDivisionError("by nothing\nat all")
    if part == "dies":
        os._exit(1)
    if part == "sleeps":
        (settings.out / PROCESS).write_text(str(os.getpid()))
        time.sleep(600)
    value = float(len(part))
    return [{"part": part, "ratio": value, "ratio_low": value - 0.5, "ratio_high": value + 0.5, "good": True}]


def plot(figure: Figure, rows: Sequence[Row]) -> None:
    figure.subplots().barh([row["part"] for row in rows], [row["ratio"] for row in rows])


def cannot_plot(_figure: Figure, _rows: Sequence[Row]) -> None:
    raise ValueError("no such colour")


def experiment(*parts: str, plot: Callable[[Figure, Sequence[Row]], None] = plot) -> Experiment:
    reading = "`ratio` should be as long as the part's name"
    return Experiment("example", "How long is a name?", reading, lambda _: parts, measure, plot)
