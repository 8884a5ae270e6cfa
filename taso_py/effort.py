"""How much time an optimization takes, to find faster graphs and to be sure that they are faster.

What is found at any effort is compared in float64 and timed afresh before it is returned: less effort finds less, and
proves as much of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Effort:
    """The limits of one level of effort."""

    measure_s: float
    """Seconds of measuring what operators and kernels cost, for each search; later runs go on from what is known."""
    search_s: float
    """Seconds of each search, without what it takes to measure kernels."""
    race_s: float
    """Seconds of the race of all; one that confirms its winner takes up to half of it, or four times that in doubt."""
    finalists: int
    """How many of a search's best graphs are timed end to end."""
    families: int
    """For how many families of engines ``auto`` searches, those first that are fastest without rules; engines that ask
    for the same prices are a family."""
    compiles: bool
    """Whether ``auto`` tries compilers, which take up to a minute for a graph."""


NORMAL = "normal"
EFFORTS: Mapping[str, Effort] = {
    "quick": Effort(measure_s=6.0, search_s=4.0, race_s=3.0, finalists=1, families=1, compiles=False),
    NORMAL: Effort(measure_s=45.0, search_s=20.0, race_s=8.0, finalists=2, families=2, compiles=True),
    "thorough": Effort(measure_s=math.inf, search_s=60.0, race_s=20.0, finalists=3, families=9, compiles=True),
}
"""The levels by name, from the shortest."""
MEASURING, SEARCHING, RACING = 0.35, 0.2, 0.15
"""Shares of the seconds that a user gives; what is left is for reading, building and comparing, as long as it takes."""
QUICK_S, NORMAL_S = 30.0, 120.0
"""Seconds below which an optimization is quick, and normal."""


def within(seconds: float) -> Effort:
    """Return the effort that takes about so many seconds, for a model that is read and compared in a third of them."""
    name = "quick" if seconds < QUICK_S else NORMAL if seconds < NORMAL_S else "thorough"
    level = EFFORTS[name]
    families = min(level.families, 2)  # as many as there usually are
    return replace(
        level,
        measure_s=MEASURING * seconds / families,
        search_s=SEARCHING * seconds / families,
        race_s=RACING * seconds,
    )
