"""Levels of effort: limits on the time that an optimization spends on measuring, searching and timing.

Results are compared in float64 and timed again in a separate race at every level: less effort finds less, but what it
finds is checked as well.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Effort:
    """Limits of one level of effort."""

    measure_s: float
    """Seconds of measuring kernels, for each search; the next run continues with those that are missing."""
    search_s: float
    """Seconds of each search, measuring kernels not included."""
    race_s: float
    """Seconds of the race of all, and of another one with what compilers made. Half of it is for another one of the
    fastest of each engine, where these tie, and for the race that confirms the winner: four times that if a lead is
    uncertain."""
    finalists: int
    """Number of a search's best graphs that are timed end to end."""
    patience: int
    """Number of graphs in a row without an improvement after which a search ends, or that of a region, which has less
    patience if it costs little beside the whole."""
    families: int
    """Number of families of engines that ``auto`` searches, the fastest on the unchanged graph first, and if it is not
    one, those that tie with the last; engines with equal prices are a family."""
    compiles: bool
    """True if ``auto`` tries compilers, which take up to a minute for each graph."""
    compiles_all: bool = False
    """True if ``auto`` tries every form of a compiler; otherwise that around chosen kernels alone, if there is one."""
    compiles_ahead: bool = False
    """True if ``auto`` tries compiling ahead of time, which takes as long again."""
    calibrates: bool = True
    """True if a reference network is run once per machine, so that predictions for PyTorch's kernels are those of whole
    runs; it scales all latencies by one factor, and so changes no choice of kernels."""
    reach: float = 1.0
    """How far a measured call may be from one whose latency is estimated from it; 0 to measure all that are asked for
    (see :mod:`taso_py.latency.similar`)."""
    checks_saving: bool = True
    """True if the unchanged program is saved and loaded before the search where this may fail, so that what cannot be
    saved costs no search; what is found is saved and loaded before it is returned in any case."""
    profile_s: float = 1.5
    """Seconds of timed runs for the profiles of original and result in ``report.html``; 0 for none."""


NORMAL = "normal"
EFFORTS: Mapping[str, Effort] = {
    "quick": Effort(
        measure_s=6.0,
        search_s=4.0,
        race_s=3.0,
        finalists=1,
        patience=25,
        families=1,
        compiles=False,
        calibrates=False,
        reach=2.0,
        checks_saving=False,
        profile_s=0.0,
    ),
    NORMAL: Effort(measure_s=45.0, search_s=20.0, race_s=8.0, finalists=2, patience=50, families=2, compiles=True),
    "thorough": Effort(
        measure_s=math.inf,
        search_s=60.0,
        race_s=20.0,
        finalists=3,
        patience=100,
        families=9,
        compiles=True,
        compiles_all=True,
        compiles_ahead=True,
        reach=0.0,
    ),
}
"""The levels by name, from the shortest."""
MEASURING, SEARCHING, RACING = 0.35, 0.2, 0.15
"""Shares of the user's seconds; the rest is for importing, building and comparing, which have no limit."""
QUICK_S, NORMAL_S = 30.0, 120.0
"""Seconds below which an optimization uses the level ``quick``, and ``normal``."""


def within(seconds: float) -> Effort:
    """Return the effort for about this many seconds, if a third of them suffices to import and compare the model."""
    name = "quick" if seconds < QUICK_S else NORMAL if seconds < NORMAL_S else "thorough"
    level = EFFORTS[name]
    families = min(level.families, 2)  # as many as there usually are
    return replace(
        level,
        measure_s=MEASURING * seconds / families,
        search_s=SEARCHING * seconds / families,
        race_s=RACING * seconds,
        compiles_all=False,
        compiles_ahead=False,
    )
