"""The pace of the machine: its present speed relative to that when the first latency was measured.

A shared machine is up to twice as slow in one minute as in the next: the same kernel measured twice within two seconds
differed by 3% on average, measured ten minutes apart by 16%. A search that compares old measurements with new ones
mistakes the drift for gains and losses. So every sample is followed by two fixed calls, a product that keeps all
threads busy and a call that does next to nothing, and is scaled by how much longer than usual these take. 38 kernels,
measured repeatedly for two minutes, deviated from their medians by 10% on average, and by 5% if scaled so; in another
two minutes by 13%, and by 8%.

Invariant: at the usual pace, latencies are not changed.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from statistics import median

import torch

from taso_py.latency.clock import Clock, CpuClock, Latency, Timer
from taso_py.latency.contention import Watch
from taso_py.latency.database import LatencyDatabase
from taso_py.latency.environment import Environment
from taso_py.latency.schema import LatencyKind
from taso_py.latency.usual import ELEMENTS, KEYS, SIZE, Pace, pace_among

CALLS = 25
"""The number of small calls that are timed at once."""
SHARE = 0.25
"""The time of the products relative to the sample that they scale; at least one product is run."""
LAST = 5
"""The number of readings whose median scales a sample, since one of them may be interrupted."""
READINGS = 40
"""Readings per estimate of the sustained pace."""
MOMENTS, PAUSE_S = 8, 0.02
"""The number of estimates, so far apart, of which the fastest is taken, since others may hold the processor."""


class Pacer:
    """Reads the pace of the processor with as many threads as PyTorch uses."""

    def __init__(self) -> None:
        """Make the operands, and call everything once."""
        matrix = torch.ones(SIZE, SIZE, dtype=torch.float32, device="cpu")
        vector, clock = matrix.new_ones(ELEMENTS), CpuClock()
        self._product = clock.bind(lambda: torch.mm(matrix, matrix))
        self._call = clock.bind(lambda: torch.mul(vector, vector))
        self.read()

    def read(self, products: int = 1) -> Pace:
        """Return the present pace, from so many products."""
        with torch.no_grad():
            return Pace(self._product(products) / products, self._call(CALLS) / CALLS)

    def sustained(self) -> Pace:
        """Return the sustained pace, over a hundredth of a second."""
        return _median([self.read() for _ in range(READINGS)])


def usual_pace(pacer: Pacer, environment: Environment, database: LatencyDatabase) -> tuple[Pace, bool]:
    """Return the usual pace: that at which the first latency of an environment was measured, or else the present one.

    Returns:
        The pace, and whether it is stored. One that was read while cores were missing may be ten times too slow, and
        all latencies would be scaled by it from then on: it serves this run only, whose latencies must not be stored
        either.
    """
    usual = pace_among(database.get_many(environment, KEYS, LatencyKind.PACE))
    if usual is not None:
        return usual, True
    watch = Watch()
    # Other processes may begin at the same time: all use the pace that is stored first.
    pace = min(_moments(pacer), key=lambda pace: pace.product_s)
    if watch.contention(spins=True).is_heavy:
        return pace, False
    found = zip(KEYS, (pace.product_s, pace.call_s), strict=True)
    read = {key: Latency(s, s, s, samples=READINGS, outliers=0) for key, s in found}
    known = database.put_first(environment, read, LatencyKind.PACE)
    return Pace(*[known[key].median_s for key in KEYS]), True


def _moments(pacer: Pacer) -> Iterator[Pace]:
    """Yield the paces of several moments."""
    for _ in range(MOMENTS):
        time.sleep(PAUSE_S)
        yield pacer.sustained()


def _median(readings: Collection[Pace]) -> Pace:
    return Pace(median([pace.product_s for pace in readings]), median([pace.call_s for pace in readings]))


class PacedClock:
    """A clock whose samples are scaled to the usual pace."""

    min_sample_s = 0.5e-3

    def __init__(self, clock: Clock, pacer: Pacer, usual: Pace, last: int = LAST) -> None:
        """Scale the samples of a clock by pace readings that follow them at once, the median of the last few."""
        self._clock, self._pacer, self._usual, self._last = clock, pacer, usual, last

    def interleaved(self) -> PacedClock:
        """Return a clock for interleaved samples, each scaled by a reading of its own."""
        return PacedClock(self._clock, self._pacer, self._usual, last=1)

    def now(self) -> float:
        return self._clock.now()

    def bind(self, fn: Callable[[], object]) -> Timer:
        timer = self._clock.bind(fn)
        readings: deque[Pace] = deque(maxlen=self._last)

        def paced(repeats: int) -> float:
            seconds = timer(repeats)
            readings.append(self._pacer.read(max(1, math.ceil(SHARE * seconds / self._usual.product_s))))
            return seconds / _median(readings).slowness(self._usual, seconds / repeats)

        return paced


@dataclass(frozen=True)
class Reference:
    """A call of known latency, next to which a similar one is measured."""

    call: Callable[[], object]
    seconds: float
    """Its latency, on a CPU at its usual pace."""


class RelativeClock:
    """A clock whose samples are scaled by samples of a reference call that follow them at once."""

    def __init__(self, clock: Clock, reference: Reference) -> None:
        """Scale the samples of a clock by those of a reference."""
        self._clock, self._reference = clock, reference
        self.min_sample_s = clock.min_sample_s

    def now(self) -> float:
        return self._clock.now()

    def bind(self, fn: Callable[[], object]) -> Timer:
        timer, reference = self._clock.bind(fn), self._clock.bind(self._reference.call)

        def relative(repeats: int) -> float:
            return timer(repeats) / reference(repeats) * repeats * self._reference.seconds

        return relative
