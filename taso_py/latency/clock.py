"""Measurement of the time that calls take on a device, on machines that are never quite idle.

Every figure is a median, since noise on a busy machine has a long tail on one side. Its interval comes from order
statistics: the number of samples below the true median is binomial whatever their distribution (David and Nagaraja,
Order Statistics, 2003, section 7.1).

Invariant: only a `Clock` reads the time, so that all decisions here can be tested with an invented one.
"""

from __future__ import annotations

import contextlib
import functools
import math
import random
import time
from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from statistics import median
from typing import Any, Protocol, TypeAlias

import torch

from taso_py.backend.capture import capture_cuda_graph
from taso_py.collector import collector_paused
from taso_py.ir.errors import TasoError, first_line
from taso_py.kernels.prepared_call import PreparedCall
from taso_py.latency.environment import Device, resolve_device

Timer: TypeAlias = Callable[[int], float]
"""Calls its function that many times and returns the seconds that all the calls took together."""

BUDGET_S = 0.25
CONFIDENCE = 0.95
WIDTH = 0.02
MIN_SAMPLES = 10
MAX_SAMPLES = 1000
FAR = 10
"""Factor by which a call may exceed a sample that is long enough so that one is surely enough."""
MAX_REPEATS = 100_000
MOST_CAPTURED, CAPTURED_S = 64, 2e-3
"""The most calls in a CUDA graph that is timed, and about how long they take: starting it adds a percent at most."""
PLAIN_CALLS = 3
"""The number of plain calls from which the number of captured ones follows."""
DEPTHS = 64
"""The number of stack depths at which samples are taken; a call takes some hundred bytes, so that they cover a page."""
OUTLIER_DEVIATIONS = 3.5
"""The usual bound for scores from the median absolute deviation (Iglewicz and Hoaglin, How to Detect and Handle
Outliers, 1993)."""
OUTLIER_SHARE = 0.05
"""A sample within this share of the median is never an outlier, however quiet the machine."""


class TimingError(TasoError):
    """An impossible latency, or a function that cannot be timed in the requested way."""


@dataclass(frozen=True)
class Latency:
    """The seconds that one call takes; raises `TimingError` if its figures contradict each other."""

    median_s: float
    low_s: float
    """Lower end of the median's confidence interval; the fastest sample if there were too few for one."""
    high_s: float
    """Upper end of the interval; the slowest sample if there were too few for one."""
    samples: int
    outliers: int
    """Samples far from the median. They are counted, not removed."""

    def __post_init__(self) -> None:
        """Check what holds for every measurement."""
        ordered = 0 <= self.low_s <= self.median_s <= self.high_s < math.inf
        if not (ordered and 0 <= self.outliers < self.samples):
            raise TimingError(f"{self} is no latency: it needs 0 <= low <= median <= high and outliers < samples")

    def scaled(self, factor: float) -> Latency:
        """Return the latency with all times multiplied by a factor."""
        return replace(self, median_s=factor * self.median_s, low_s=factor * self.low_s, high_s=factor * self.high_s)


@dataclass(frozen=True)
class Interval:
    """A median and its confidence interval."""

    low: float
    median: float
    high: float
    coverage: float
    """The probability that the true median lies between ``low`` and ``high``, for independent samples."""


class Clock(Protocol):
    """A device's clock, which can time calls."""

    min_sample_s: float
    """The shortest sample that the clock's resolution allows."""

    def now(self) -> float:
        """Return the seconds since some moment, for budgets."""
        ...

    def bind(self, fn: Callable[[], object]) -> Timer:
        """Return a timer of a function; raise `TimingError` if this clock cannot time it."""
        ...


class CpuClock:
    """Wall-clock time, with the garbage collector paused while it runs.

    The address of the stack can make a difference of a fifth: at one depth of twenty, MKL's products of BERT take 54 ms
    in place of 45, at every call. So each sample is taken at a depth of its own, and the median is that of most depths
    (Mytkowicz and others, Producing wrong data without doing anything obviously wrong!, ASPLOS 2009).
    """

    min_sample_s: float = 200e-6

    def __init__(self) -> None:
        """Create a clock; the stack depths of its samples are the same in every run."""
        self._depths = random.Random(0)

    def now(self) -> float:
        return time.perf_counter()

    def bind(self, fn: Callable[[], object]) -> Timer:
        def sample(repeats: int) -> float:
            with collector_paused():
                if isinstance(fn, PreparedCall):
                    return sum(_prepared(fn) for _ in repeat(None, repeats))
                start = time.perf_counter_ns()
                for _ in repeat(None, repeats):
                    fn()
                return (time.perf_counter_ns() - start) * 1e-9

        return lambda repeats: _at_depth(self._depths.randrange(DEPTHS), functools.partial(sample, repeats))


def _prepared(fn: PreparedCall) -> float:
    fn.prepare()
    start = time.perf_counter_ns()
    fn.call()
    return (time.perf_counter_ns() - start) * 1e-9


def _at_depth(depth: int, run: Callable[[], float]) -> float:
    """Run at a given stack depth: every level has an additional C frame, since it is called by ``map``."""
    return run() if depth == 0 else next(map(_at_depth, (depth - 1,), (run,)))


class Event(Protocol):
    """The part of ``torch.cuda.Event`` that a `CudaClock` uses."""

    def record(self) -> None:
        """Record this point in the queue of the current stream."""
        ...

    def synchronize(self) -> None:
        """Wait until the device has reached the event."""
        ...

    def elapsed_time(self, end_event: Any) -> float:
        """Return the milliseconds from this event to a later one that was reached."""
        ...


class CudaClock:
    """Time between two events in the GPU's own queue.

    Plain calls include the CPU's launch time if that is longer than the kernels, as in eager execution. With ``graph``
    calls are captured in a CUDA graph once, whose replays are timed: the kernels alone.
    """

    min_sample_s: float = 500e-6

    def __init__(
        self, device: Device = "cuda", *, graph: bool = False, event: Callable[[], Event] | None = None
    ) -> None:
        """Create a clock of one GPU, with ``torch.cuda.Event`` or the events that ``event`` makes."""
        self._graph = graph
        self._event = event or _cuda_event
        self._scope = contextlib.nullcontext if event else functools.partial(torch.cuda.device, resolve_device(device))

    def now(self) -> float:
        return time.perf_counter()

    def bind(self, fn: Callable[[], object]) -> Timer:
        """Return a timer of a function; what is captured is captured here, so that no budget pays for it."""
        alone = self._timer(fn, 1)
        if not self._graph:
            return alone
        seconds = min(alone(1) for _ in range(PLAIN_CALLS))
        calls = max(1, min(MOST_CAPTURED, math.ceil(CAPTURED_S / max(seconds, 1e-9))))
        with self._scope(), collector_paused():
            return self._timer(_capture(fn, calls), calls)

    def _timer(self, run: Callable[[], object], calls: int) -> Timer:
        """Return a timer of a function, given one that makes so many calls of it."""

        def timer(repeats: int) -> float:
            with self._scope(), collector_paused():
                runs = math.ceil(repeats / calls)
                start, end = self._event(), self._event()
                start.record()
                _call(run, runs)
                end.record()
                end.synchronize()
                return start.elapsed_time(end) * 1e-3 * repeats / (runs * calls)

        return timer


def clock_for(device: Device, *, graph: bool = False) -> Clock:
    """Return the clock of a device; ``graph`` as in `CudaClock`. Raises `DeviceError` if the device is not here."""
    resolved = resolve_device(device)
    return CpuClock() if resolved.type == "cpu" else CudaClock(resolved, graph=graph)


def measure(
    fn: Callable[[], object],
    *,
    device: Device,
    budget_s: float = BUDGET_S,
    confidence: float = CONFIDENCE,
    width: float = WIDTH,
    clock: Clock | None = None,
) -> Latency:
    """Measure the latency of a function, which is called at least twice and otherwise as often as needed.

    Args:
        fn: the function to time; the caller sets modes such as ``torch.inference_mode``.
        device: the device it runs on; ignored if a clock is given.
        budget_s: seconds, warm-up included, after which sampling ends.
        confidence: the probability with which the interval shall contain the true median.
        width: sampling ends once the interval is at most this share of the median wide.
        clock: by default the clock of the device.
    """
    clock = clock or clock_for(device)
    timer, deadline = clock.bind(fn), clock.now() + budget_s
    repeats = repeats_for(clock, fn, timer, deadline=deadline)
    samples: list[float] = []
    while True:
        insort(samples, timer(repeats) / repeats)
        interval = median_interval(samples, confidence)
        narrow = interval.coverage >= confidence and interval.high - interval.low <= width * interval.median
        if (narrow and len(samples) >= MIN_SAMPLES) or len(samples) == MAX_SAMPLES or clock.now() >= deadline:
            return summary(samples, confidence)


def repeats_for(clock: Clock, fn: Callable[[], object], timer: Timer, *, deadline: float = math.inf) -> int:
    """Return the number of calls per sample: one if the function is prepared, or else as many as the clock needs."""
    return 1 if isinstance(fn, PreparedCall) else calibrate(clock, timer, deadline=deadline)


def summary(ordered: Sequence[float], confidence: float = CONFIDENCE) -> Latency:
    """Return the latency with these samples, given in ascending order."""
    interval = median_interval(ordered, confidence)
    return Latency(interval.median, interval.low, interval.high, samples=len(ordered), outliers=_outliers(ordered))


def calibrate(clock: Clock, timer: Timer, *, deadline: float = math.inf, sample_s: float = 0.0) -> int:
    """Warm up, and return the number of calls whose sample lasts ``sample_s`` seconds and is long enough for the clock.

    The faster of two readings counts; otherwise an interruption of the only one would lead to too few calls. A call
    that takes `FAR` times as long, even if it is the first, needs no others. After the ``deadline``, in the clock's
    seconds, the number reached is returned.
    """
    sample_s = max(sample_s, clock.min_sample_s)
    if timer(1) >= FAR * sample_s > 0:
        return 1
    repeats = 1
    while clock.now() < deadline and repeats < MAX_REPEATS:
        spent = min(timer(repeats), timer(repeats))
        if spent >= sample_s:
            break
        wanted = math.ceil(1.1 * repeats * sample_s / max(spent, 1e-9))
        repeats = min(max(wanted, repeats + 1), 10 * repeats, MAX_REPEATS)
    return repeats


def median_interval(ordered: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """Return the median of samples in ascending order, and the narrowest interval with the given confidence.

    With too few samples for that (less than six for 95 %) the interval is their range, and its coverage is lower.
    """
    rank, coverage = _rank(len(ordered), confidence)
    return Interval(ordered[rank], median(ordered), ordered[-1 - rank], coverage=coverage)


@functools.cache
def _rank(count: int, confidence: float) -> tuple[int, float]:
    """Return the number of samples to drop at each end for a confidence interval of the median, and its coverage."""
    rank, below, term = 0, 1, 1
    while True:
        term = term * (count - rank) // (rank + 1)
        wider = below + term
        if 2 * (rank + 1) >= count or 1 - 2 * wider / 2**count < confidence:
            return rank, 1 - 2 * below / 2**count
        rank, below = rank + 1, wider


def _outliers(ordered: Sequence[float]) -> int:
    middle = median(ordered)
    spread = 1.4826 * median(abs(sample - middle) for sample in ordered)
    bound = max(OUTLIER_DEVIATIONS * spread, OUTLIER_SHARE * middle)
    return sum(abs(sample - middle) > bound for sample in ordered)


def _call(fn: Callable[[], object], repeats: int) -> None:
    for _ in repeat(None, repeats):
        fn()


def _cuda_event() -> Event:
    return torch.cuda.Event(enable_timing=True)


def _capture(fn: Callable[[], object], repeats: int) -> Callable[[], object]:
    """Capture that many calls in a CUDA graph on the current device, and replay it once."""
    try:
        graph, _ = capture_cuda_graph(functools.partial(_call, fn, repeats), torch.device("cuda"))
    except RuntimeError as error:
        reason = first_line(error)
        raise TimingError(f"this cannot be captured in a CUDA graph ({reason}); time it without one") from error
    graph.replay()
    return graph.replay
