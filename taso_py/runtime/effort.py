"""How much time an optimization takes, to find faster graphs and to be sure that they are faster.

What is found at any effort is compared in float64 and timed afresh before it is returned: less effort finds less, and
proves as much of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Effort:
    """The limits of one level of effort."""

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
    "quick": Effort(search_s=4.0, race_s=3.0, finalists=1, families=1, compiles=False),
    NORMAL: Effort(search_s=20.0, race_s=8.0, finalists=2, families=2, compiles=True),
    "thorough": Effort(search_s=60.0, race_s=20.0, finalists=3, families=9, compiles=True),
}
"""The levels by name, from the shortest."""
