"""Definition of an experiment, and the settings that it is run with.

An experiment is a list of parts, each measured by itself: a model, a class of rules, a shape. So a run may be
interrupted, and a part fail, without losing the others (:mod:`experiments.running`).

Invariant: nothing here is measured, drawn or written.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row: TypeAlias = Mapping[str, Any]
"""One row of a table: numbers, strings and booleans by column. ``x_low`` and ``x_high`` are the interval of ``x``."""


@dataclass(frozen=True)
class Settings:
    """Settings of a run."""

    device: str
    quick: bool
    out: Path
    seed: int

    def choose(self, quick: Sequence[str], full: Sequence[str]) -> Sequence[str]:
        """Return what a quick or full run takes."""
        return quick if self.quick else full


@dataclass(frozen=True)
class Experiment:
    """A question and the way to answer it."""

    name: str
    question: str
    reading: str
    """How to read the table and the figure; words in backticks are columns."""
    parts: Callable[[Settings], Sequence[str]]
    """Returns the names of the parts to measure."""
    measure: Callable[[str, Settings], Sequence[Row]]
    """Returns the rows of one part. A module-level function: a process of its own calls it."""
    plot: Callable[[Figure, Sequence[Row]], None]
    """Draws the rows of all parts; readable in black and white."""
    arrange: Callable[[Sequence[Row]], Sequence[Row]] = list
    """Sorts the rows of all parts, and adds summaries."""
    headline: Callable[[Sequence[Row]], Sequence[str]] = lambda _: ()
    """Sums up the rows of all parts in sentences, without a capital or a full stop."""
    drawn: Collection[str] = ()
    """Columns for the figure only; the file has them, the table for readers has not."""
    apart: bool = False
    """True if each part needs a process of its own; otherwise all share one, one after the other."""
    is_check: bool = False
    """True if it checks that results are right; with limited time, nothing is measured before it."""
    is_long: bool = False
    """True if a part may take all the time there is, even in a quick run; with limited time, others go first."""
    devices: Collection[str] = ("cpu", "cuda")
    """Kinds of devices that it measures; what does not depend on the device is run on a CPU."""
