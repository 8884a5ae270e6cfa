"""Measurement of calls, repeated when disturbed, with a check that the machine was idle meanwhile.

A parallel region lasts until its last thread is done. While another program holds a core, a call of microseconds can
take as long as the scheduler's time slices, every time; no statistics over such samples finds the true latency. So a
small matrix product of known latency is called after each measurement: it tells whether the measurement is reliable.
The product for a GPU runs there, and takes about as long to launch as to compute: it is late if another program uses
the GPU or the core that launches, and if clocks are low. Speed differences of cores and clocks beyond that are not
corrected.

Invariant: a reliable result consists of several samples that agree to within a factor, and just after them the probe
took as long as ever.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from typing import TypeVar

import torch

from taso_py.kernels.prepared_call import PreparedCall
from taso_py.latency.clock import Clock, Latency, Timer, clock_for, measure, repeats_for, summary
from taso_py.latency.pace import PacedClock, Pacer, Reference, RelativeClock
from taso_py.latency.usual import Pace

T = TypeVar("T")
MORE_S, MOST_S = 0.06, 2.0
"""The longest time for another attempt, unless that is too short for enough calls, and in that case."""
ATTEMPTS, MOST_ATTEMPTS = 3, 10
"""The attempts to get a good measurement, and the most if one has to wait for a quiet machine."""
SAMPLES = 4
WIDTH = 0.5
"""A measurement with fewer samples, or an interval wider than this share of the median, is repeated."""
DOUBT = 1.0
"""A measurement with an interval wider than this share of the median was disturbed, whatever the probe says."""
REST = 2.5
"""On an idle machine, the largest ratio of an average to the fastest call of the probe."""
PAIRS = 20
"""The least number of samples of a call and its reference, unless they are long."""
WARM_UP = 2
"""Calls before anything is measured: the first ones start threads and choose algorithms."""
PATIENCE_S = 5.0
"""The longest total time to wait for a machine to become idle, and to measure again what was disturbed."""
PAUSE_S = 0.1
ROUNDS = 48
"""The number of samples of each call in interleaved measurement."""
LEAST_ROUNDS, ROUNDS_S = 12, 20.0
"""The least number of samples, and the time after which no more are taken, since other programs hold the cores."""
LAUNCHES = 10
"""The products per probe of a GPU; with one, only an interruption of its launch would be seen."""
LARGEST_KEPT = 31 << 20
"""Bytes of a block just below the largest size that glibc adapts to."""


@dataclass
class Probe:
    """Detector of other load: a matrix product on all threads, which takes a fraction of a millisecond."""

    least_s: float = 5e-3
    """The fastest call so far; initially more than any idle machine takes."""
    calls: int = 3
    most: float = field(default_factory=lambda: REST)
    """On an idle machine, the largest ratio of an average to the fastest call."""
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def is_calm(self) -> bool:
        """Return whether calls take about as long now as the fastest ever did."""
        times = [self._timed() for _ in range(self.calls)]
        self.least_s = min(self.least_s, *times)
        return sum(times) <= self.most * self.least_s * self.calls

    def _timed(self) -> float:
        return self._timer(1 if self.device.type == "cpu" else LAUNCHES)

    @cached_property
    def _timer(self) -> Timer:
        operands = [torch.ones(shape, dtype=torch.float32, device=self.device) for shape in ((64, 768), (768, 768))]
        return clock_for(self.device).bind(lambda: torch.mm(*operands))


class Measuring:
    """Measures calls on a device, and detects disturbances."""

    def __init__(
        self,
        device: torch.device,
        probe: Probe | None = None,
        usual: Callable[[Pacer], Pace] | None = None,
        *,
        captured: bool = False,
        is_late: Callable[[], bool] = lambda: False,
    ) -> None:
        """Create an instrument.

        Args:
            device: the device to measure on.
            probe: detects whether it is idle.
            usual: returns the pace to which latencies on the CPU are scaled; called when the first is measured.
            captured: true if calls are captured in CUDA graphs, so that launching them costs the processor nothing.
            is_late: returns whether the time for measuring is used up: then disturbed measurements are not repeated.
        """
        _settle_allocator()
        self._device = device
        self._probe = probe or Probe(device=device)
        self._patience_s = PATIENCE_S
        self._usual = usual
        self._captured = captured
        self._is_late = is_late

    @cached_property
    def _clock(self) -> PacedClock | None:
        """The clock that scales latencies to the usual pace, if they are scaled."""
        if self._usual is None or self._device.type != "cpu":
            return None
        pacer = Pacer()
        return PacedClock(self._plain_clock(), pacer, self._usual(pacer))

    def _plain_clock(self) -> Clock:
        return clock_for(self._device, graph=self._captured)

    @property
    def is_calm(self) -> bool:
        """True if nothing disturbs measurements now."""
        return self._probe.is_calm()

    def measured(
        self, call: Callable[[], object], budget_s: float, beside: Reference | None = None
    ) -> tuple[Latency, bool]:
        """Measure the latency of a call; return it, and whether it is reliable.

        The latency is that of the first good measurement, or else the least: disturbances make a measurement longer.

        Args:
            call: the call to time.
            budget_s: longest time for the first measurement.
            beside: a similar call of known latency, relative to which it is measured.
        """
        if beside is None:
            clock: Clock = self._clock or self._plain_clock()
        else:
            clock = RelativeClock(self._plain_clock(), beside)
            budget_s = max(budget_s, min(MOST_S, PAIRS * 2 * beside.seconds))
        for _ in range(WARM_UP):
            call()
        good: list[Latency] = []
        poor: list[Latency] = []
        for attempt in count(1):
            start = time.perf_counter()
            latency = measure(call, device=self._device, budget_s=budget_s, clock=clock)
            is_calm = self.is_calm
            is_long = SAMPLES * latency.median_s > MOST_S
            is_good = is_calm and (is_long or latency.samples >= SAMPLES) and _spread(latency) <= DOUBT
            (good if is_good else poor).append(latency)
            if good and (is_long or _spread(good[-1]) <= WIDTH):
                break
            if self._is_late():
                break
            if attempt > ATTEMPTS:
                self._patience_s -= time.perf_counter() - start
            if attempt >= ATTEMPTS:
                if good or self._patience_s <= 0 or attempt == MOST_ATTEMPTS:
                    break
                self._wait()
            budget_s = max(MORE_S, budget_s, min(MOST_S, 2 * SAMPLES * latency.median_s))
        if good:
            return min(good, key=lambda latency: latency.median_s), True
        # Of disturbed measurements, the fastest is closest to the truth.
        fastest = min(poor, key=lambda latency: latency.low_s)
        return replace(fastest, median_s=fastest.low_s), False

    def measure_interleaved(self, calls: Mapping[T, Callable[[], object]]) -> tuple[Mapping[T, Latency], bool]:
        """Measure calls interleaved, to compare them with each other; return latencies and whether they are reliable.

        Each is sampled once per round, in random order, so that changes of the machine affect all alike. A call without
        a preparation is first made as often untimed, since other calls have evicted its code and operands.
        """
        clock = self._clock.interleaved() if self._clock is not None else self._plain_clock()
        timers = {what: clock.bind(call) for what, call in calls.items()}
        repeats = {what: repeats_for(clock, calls[what], timer) for what, timer in timers.items()}
        samples = {what: list[float]() for what in calls}
        order, calm = random.Random(0), list[bool]()
        for _ in rounds(ROUNDS, LEAST_ROUNDS, ROUNDS_S):
            for what in order.sample(list(calls), len(calls)):
                if not isinstance(calls[what], PreparedCall):
                    timers[what](repeats[what])
                samples[what].append(timers[what](repeats[what]) / repeats[what])
            calm.append(self.is_calm)
        return {what: summary(sorted(taken)) for what, taken in samples.items()}, 2 * sum(calm) > len(calm)

    def _wait(self) -> None:
        """Wait until the machine is idle, for as long as there is patience."""
        start = time.perf_counter()
        while not self._probe.is_calm() and time.perf_counter() - start < self._patience_s:
            time.sleep(PAUSE_S)
        self._patience_s -= time.perf_counter() - start


def rounds(most: int, least: int, seconds: float) -> Iterator[int]:
    """Yield the numbers of a measurement's rounds: up to ``most``, but no more than ``least`` after ``seconds``."""
    begun = time.perf_counter()
    for number in range(most):
        if number >= least and time.perf_counter() - begun >= seconds:
            return
        yield number


def _settle_allocator() -> None:
    """Let glibc keep the memory of results for later calls.

    It returns blocks as large as the largest one freed before to the system at once, and the next call faults every
    page in again: a convolution with a result of 3 MB takes four times as long alone as in a model. The size adapts up
    to 32 MiB (mallopt(3), M_MMAP_THRESHOLD), which this call achieves.
    """
    torch.empty(LARGEST_KEPT, dtype=torch.uint8)


def _spread(latency: Latency) -> float:
    """Return the width of the median's interval as a share of the median."""
    return (latency.high_s - latency.low_s) / latency.median_s if latency.median_s else 0.0
