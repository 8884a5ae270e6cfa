"""What every experiment is, and the settings that it is run with.

An experiment is a list of parts, each measured by itself: a model, a class of rules, a shape. That is what lets a run
be interrupted, and a part fail, without the others being lost (:mod:`experiments.running`).

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
    """How an experiment is run."""

    device: str
    quick: bool
    out: Path
    seed: int

    def choose(self, quick: Sequence[str], full: Sequence[str]) -> Sequence[str]:
        """The parts of a run that is quick or not."""
        return quick if self.quick else full


@dataclass(frozen=True)
class Experiment:
    """A question and how it is answered."""

    name: str
    question: str
    reading: str
    """How to read the table and the figure; words in backticks are columns."""
    parts: Callable[[Settings], Sequence[str]]
    """The names of what is measured."""
    measure: Callable[[str, Settings], Sequence[Row]]
    """Gives the rows of one part. A function of a module: a process of its own calls it."""
    plot: Callable[[Figure, Sequence[Row]], None]
    """Draws the rows of all parts; readable in black and white."""
    arrange: Callable[[Sequence[Row]], Sequence[Row]] = list
    """Puts the rows of all parts in order, and adds what sums them up."""
    headline: Callable[[Sequence[Row]], Sequence[str]] = lambda _: ()
    """Sums up the rows of all parts in sentences, without a capital or a full stop."""
    drawn: Collection[str] = ()
    """The columns that the figure is for; the file has them, the table that people read has not."""
    apart: bool = False
    """Whether each part needs a process of its own; otherwise all share one, one after the other."""
    is_check: bool = False
    """Whether it says if results are right; where time is limited, nothing is measured before."""
    is_long: bool = False
    """Whether a part may take all the time there is, however quick the run; where time is limited, others go first."""
    on_device: bool = True
    """Whether it measures the device; otherwise a run for a GPU leaves it out."""
