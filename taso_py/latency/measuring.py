"""Latencies of calls, measured again where something disturbed them, and whether the machine was at rest meanwhile.

A parallel region lasts until its last thread is done. While another program holds a core, a call of microseconds can
take as long as the scheduler's turns, every time; no statistics over such samples finds the true latency. So a small
matrix product of known latency is called after each measurement: it tells whether the others can be believed. That of a
GPU runs there, and takes about as long to launch as to compute: it is late where another program has the GPU, where one
has the core that launches, and where clocks are low. How fast cores and clocks are beyond that is not taken off.

Invariant: what is answered as good consists of several samples that agree to within a factor, just after which the
probe took as long as ever.
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
"""Longest time for another attempt, unless that is too short for enough calls; and then."""
ATTEMPTS, MOST_ATTEMPTS = 3, 10
"""How often a call is measured until it is good; and how often if that has to be waited for."""
SAMPLES = 4
WIDTH = 0.5
"""A measurement with fewer samples, or an interval wider than this share of the median, is made again."""
DOUBT = 1.0
"""A measurement with an interval wider than this share of the median was disturbed, whatever the probe says."""
REST = 2.5
"""How many times the fastest call of the probe an average one takes at most on a machine at rest."""
PAIRS = 20
"""How often a call and one that it is measured beside are timed at least, unless they are long."""
WARM_UP = 2
"""Calls before anything is measured: the first ones start threads and choose algorithms."""
PATIENCE_S = 5.0
"""How long to wait in all for a machine to come to rest."""
PAUSE_S = 0.1
TURNS = 48
"""How often each call is sampled of those that are measured in turns."""
LEAST_TURNS, TURNS_S = 12, 20.0
"""How often it is where that takes so long, as it does where other programs hold the cores."""
LAUNCHES = 10
"""How many products a GPU is probed by at once, or an interruption of one launch would be all that is seen."""
LARGEST_KEPT = 31 << 20
"""Bytes of a block just below the largest that glibc adapts to."""


@dataclass
class Probe:
    """Tells whether a device is ours: a matrix product on all threads, which takes a fraction of a millisecond."""

    least_s: float = 5e-3
    """The fastest call so far; to begin with, more than any machine at rest takes."""
    calls: int = 3
    most: float = field(default_factory=lambda: REST)
    """How many times the fastest call an average one takes at most on a machine at rest."""
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def is_calm(self) -> bool:
        """Whether calls take about as long now as they ever did."""
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
    """Measures calls on a device, and tells whether it was at rest."""

    def __init__(
        self,
        device: torch.device,
        probe: Probe | None = None,
        usual: Callable[[Pacer], Pace] | None = None,
        *,
        captured: bool = False,
        is_late: Callable[[], bool] = lambda: False,
    ) -> None:
        """Prepare to measure.

        Args:
            device: where.
            probe: tells whether it is at rest.
            usual: the pace to which latencies on the CPU are scaled, asked for when the first is measured.
            captured: whether calls are captured in CUDA graphs, so that launching them costs the processor nothing.
            is_late: whether the time to measure is used up: then nothing is measured again that was disturbed.
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
        """What scales latencies, where they are scaled."""
        if self._usual is None or self._device.type != "cpu":
            return None
        pacer = Pacer()
        return PacedClock(self._plain_clock(), pacer, self._usual(pacer))

    def _plain_clock(self) -> Clock:
        return clock_for(self._device, graph=self._captured)

    @property
    def is_calm(self) -> bool:
        """Whether nothing disturbs measurements now."""
        return self._probe.is_calm()

    def measured(
        self, call: Callable[[], object], budget_s: float, beside: Reference | None = None
    ) -> tuple[Latency, bool]:
        """The latency of a call, and whether it can be believed.

        It is the first measurement that is good, or else the least: what disturbs a measurement makes it longer.

        Args:
            call: what to time.
            budget_s: longest time for the first measurement.
            beside: what is known of a similar call, from which it shall differ by as much as it really does.
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
            latency = measure(call, device=self._device, budget_s=budget_s, clock=clock)
            is_calm = self.is_calm
            is_long = SAMPLES * latency.median_s > MOST_S
            is_good = is_calm and (is_long or latency.samples >= SAMPLES) and _spread(latency) <= DOUBT
            (good if is_good else poor).append(latency)
            if good and (is_long or _spread(good[-1]) <= WIDTH):
                break
            if self._is_late():
                break
            if attempt >= ATTEMPTS:
                if good or self._patience_s <= 0 or attempt == MOST_ATTEMPTS:
                    break
                self._wait()
            budget_s = max(MORE_S, budget_s, min(MOST_S, 2 * SAMPLES * latency.median_s))
        if good:
            return min(good, key=lambda latency: latency.median_s), True
        # What was disturbed throughout is still closest to the truth where it was fastest.
        fastest = min(poor, key=lambda latency: latency.low_s)
        return replace(fastest, median_s=fastest.low_s), False

    def in_turns(self, calls: Mapping[T, Callable[[], object]]) -> tuple[Mapping[T, Latency], bool]:
        """The latencies of calls that are compared with each other, and whether they can be believed.

        Each is sampled once a round, in an order drawn anew, so that all see the same of what changes meanwhile. Where
        calls are not prepared, a turn begins with as many that are not timed: others displaced their code and operands.
        """
        clock = self._clock.alternating() if self._clock is not None else self._plain_clock()
        timers = {what: clock.bind(call) for what, call in calls.items()}
        repeats = {what: repeats_for(clock, calls[what], timer) for what, timer in timers.items()}
        samples = {what: list[float]() for what in calls}
        order, calm = random.Random(0), list[bool]()
        for _ in rounds(TURNS, LEAST_TURNS, TURNS_S):
            for what in order.sample(list(calls), len(calls)):
                if not isinstance(calls[what], PreparedCall):
                    timers[what](repeats[what])
                samples[what].append(timers[what](repeats[what]) / repeats[what])
            calm.append(self.is_calm)
        return {what: summary(sorted(taken)) for what, taken in samples.items()}, 2 * sum(calm) > len(calm)

    def _wait(self) -> None:
        """Waits a little, for as long as there is patience."""
        start = time.perf_counter()
        while not self._probe.is_calm() and time.perf_counter() - start < self._patience_s:
            time.sleep(PAUSE_S)
        self._patience_s -= time.perf_counter() - start


def rounds(most: int, least: int, seconds: float) -> Iterator[int]:
    """Counts the rounds of a measurement: up to ``most``, but no further than ``least`` once so long a time is over."""
    begun = time.perf_counter()
    for number in range(most):
        if number >= least and time.perf_counter() - begun >= seconds:
            return
        yield number


def _settle_allocator() -> None:
    """Lets glibc keep the memory of results for later calls.

    It gives back to the system at once whatever is as large as the largest block that was freed before, and the next
    call faults every page in again: a convolution whose result takes 3 MB takes four times as long alone as in a model.
    The size adapts up to 32 MiB (mallopt(3), M_MMAP_THRESHOLD), where this brings it.
    """
    torch.empty(LARGEST_KEPT, dtype=torch.uint8)


def _spread(latency: Latency) -> float:
    """The width of the median's interval as a share of the median."""
    return (latency.high_s - latency.low_s) / latency.median_s if latency.median_s else 0.0
