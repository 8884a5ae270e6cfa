"""Races: interleaved end-to-end timing of implementations of the same computation.

A machine's speed drifts by more than candidates differ. So every contestant runs once in each round, in random order,
and speed-ups are ratios of times within a round; their median and its confidence interval assume no distribution.

The previous contestant has evicted a contestant's weights from the caches, where they would stay in a model that is
called again and again. So if a contestant's turn is several calls, every turn begins with as many untimed ones.

Threads that slept are often woken on one core, where they compute in turns until the scheduler moves one, up to 50 ms
later. A contestant whose threads sleep during the turns of others therefore computes for a while before it is timed.

Invariant: only complete rounds count, so that every contestant's n-th time belongs to the baseline's n-th time.
"""

from __future__ import annotations

import enum
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeAlias

from taso_py.ir.errors import TasoError
from taso_py.latency.clock import Clock, Timer, calibrate, clock_for, median_interval
from taso_py.latency.contention import NOTHING, Contention, Watch
from taso_py.latency.environment import Device

Progress: TypeAlias = Callable[[float], None]
"""Called after each round with the share of the race that is over, by rounds or by time."""

ROUNDS = 100
SECONDS = 30.0
SAMPLE_S = 10e-3
"""Shortest sample; shorter calls are repeated, since noise lasts for milliseconds and would affect many short
rounds."""
WAKE_S, AWAKE_SAMPLE_S = 0.06, 20e-3
"""Time for which threads that slept compute before a sample, and its length, as so long a wait pays for a longer one.
MobileNet's calls on two cores take 13 ms, and 25 to 31 in one turn of four if it computes for 10 or 30 ms before; from
60 ms on, none does."""
CONFIDENCE = 0.95
MIN_ROUNDS = 6
"""Fewest rounds that give an interval at 95 %."""
CONFIRMING_ROUNDS = 10
"""Fewest rounds of a confirming race, however slow the model, so that one disturbed round does not decide."""
OBVIOUS = 0.05
"""Lead that is timed for as many rounds again, however slow the model: it is unsure for the noise, not for its size."""
LOOKS = (1 / 8, 1 / 4, 1 / 2, 1, 2, 4)
"""Shares of its rounds or seconds after which a confirming race is checked for a clear result."""
PROSPECT = 0.25
"""Smallest lead that is timed for longer, relative to the lower half of its interval."""
INDIFFERENCE = 0.005
"""Gain of rules that does not matter."""
TIE = 0.01
"""Lead that is not looked for: a contestant that surely does not lead by more is dropped, or not timed any longer."""
SURE = 0.99
"""Confidence for dropping a contestant; higher than for a report, since it is tested after every round. On simulated
machines (noise from 1 to 8 %, leads from 0.5 to 10 %) the winner is as near to the fastest as with 99.9 % and half of
``TIE``, in two thirds of the time."""
HOPELESS = 1.5
HOPELESS_ROUNDS = 3
"""A contestant that takes ``HOPELESS`` times as long as the best in each of the first rounds is dropped."""


class RaceStop(enum.Enum):
    """Reason for which a race ended."""

    CLEAR = "the winner is clear"
    ROUNDS = "all rounds are run"
    TIME = "the time is used up"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class Ratio:
    """A speed-up: the median of the ratios of the baseline's times to a contestant's, paired by round."""

    median: float
    low: float
    high: float
    rounds: int
    coverage: float
    """The probability that the true median lies between ``low`` and ``high``; at least 95 % from six rounds on."""
    confidence: float = CONFIDENCE
    """The probability that was asked for, which few rounds do not give."""

    @property
    def faster(self) -> bool:
        """True if the whole confidence interval lies above 1, and has the coverage that was asked for."""
        return self.coverage >= self.confidence and self.low > 1


@dataclass(frozen=True)
class Race:
    """Result of a race."""

    times: Mapping[str, tuple[float, ...]]
    """Seconds a call, by contestant and round, the baseline first; a contestant that was dropped has fewer rounds."""
    stop: RaceStop
    confidence: float = CONFIDENCE
    """Confidence level of intervals; higher if the race was checked several times."""
    contention: Contention = NOTHING
    """Load of the processor's cores by other programs during the race."""

    @property
    def baseline(self) -> str:
        """The name of the first contestant, which the others are compared with."""
        return next(iter(self.times))

    @property
    def rounds(self) -> int:
        """The number of complete rounds."""
        return len(self.times[self.baseline])

    def ratio(self, name: str, over: str | None = None) -> Ratio:
        """Return a contestant's speed-up over another, by default over the baseline; over itself it is exactly 1.

        Raises `TasoError` if the race was interrupted before the first round was complete.
        """
        other = over or self.baseline
        times, others = self.times[name], self.times[other]
        if name == other:
            return Ratio(1.0, 1.0, 1.0, len(times), 1.0)
        if not times or not others:
            raise TasoError(f"the race ended before {name!r} was timed; let it run longer")
        return _ratio(others, times, self.confidence)

    def best(self) -> str:
        """Return the contestant with the highest median speed-up of those that ran to the end, or the baseline.

        The maximum of several noisy measurements is biased upwards: `confirm` it before it is reported.
        """
        names = [name for name, times in self.times.items() if len(times) == self.rounds] if self.rounds else []
        return max(names, key=lambda name: self.ratio(name).median, default=self.baseline)


def race(
    contestants: Mapping[str, Callable[[], object]],
    *,
    device: Device,
    rounds: int = ROUNDS,
    seconds: float = SECONDS,
    clock: Clock | None = None,
    seed: int = 0,
    until_clear: bool = True,
    least: int = 1,
    settle: Callable[[], None] | None = None,
    on_round: Progress | None = None,
) -> Race:
    """Time contestants in interleaved rounds; an interrupt from the keyboard ends the race early.

    Args:
        contestants: what to call, by name, the baseline first.
        device: where they run; ignored if a clock is given.
        rounds: how many rounds there are at most.
        seconds: time, warm-up included, after which no round begins, except for the first ``least`` ones.
        clock: the clock to use; by default that of the device.
        seed: seed of the order within the rounds.
        until_clear: drop contestants that are surely not faster than the best by more than `TIE`, though
            never the baseline, and end the race when only the best is left. Otherwise all run to the end.
        least: how many rounds there are however long they take, if that many are allowed.
        settle: called before every turn, to wait until the thread pools of other contestants are idle; the contestant
            then computes for `WAKE_S` before it is timed.
        on_round: called with the progress of the race.
    """
    if not contestants or rounds < 1:
        raise TasoError("a race needs at least a baseline and one round")
    watch = Watch(device)
    course = _RunningRace(clock or clock_for(device), contestants, random.Random(seed), on_round, settle)
    stop = course.run(least, rounds, seconds, until_clear)
    return Race(course.times(), stop, contention=watch.contention())


def confirm(
    baseline: Callable[[], object],
    winner: Callable[[], object],
    *,
    device: Device,
    rounds: int = ROUNDS,
    seconds: float = SECONDS,
    clock: Clock | None = None,
    seed: int = 1,
    doubt: float = 1 - CONFIDENCE,
    settle: Callable[[], None] | None = None,
    on_round: Progress | None = None,
) -> Race:
    """Time the winner of a race against the baseline again, in a race of the two under these names.

    The race is checked several times, at moments that are fixed beforehand, and ends as soon as the result is clear:
    large gains take a second, small ones minutes. The allowed error probability is divided equally among the checks
    (Bonferroni; Pocock, Group sequential methods in the design and analysis of clinical trials, Biometrika 1977).

    Args:
        baseline: the implementation that the winner is compared with.
        winner: the winner of the race.
        device: where they run; ignored if a clock is given.
        rounds: how many rounds there are at most before the check that is due after ``seconds``.
        seconds: how long the race lasts if it is not clear earlier; if a lead is uncertain, up to four times as long,
            or longer for the rounds that a slow model needs.
        clock: the clock to use; by default that of the device.
        seed: seed of the order within the rounds.
        doubt: the allowed probability that the interval misses the true ratio.
        settle: called before every turn, see :func:`race`.
        on_round: called with the progress of the race.
    """
    pair = {"baseline": baseline, "winner": winner}
    watch = Watch(device)
    clock = clock or clock_for(device)

    def report_progress(_: float) -> None:
        if on_round is not None:
            on_round(min(1.0, max(course.rounds / rounds, (clock.now() - begun) / seconds if seconds > 0 else 0.0)))

    course = _RunningRace(clock, pair, random.Random(seed), report_progress, settle)
    begun, found, elapsed = clock.now(), None, 0.0
    for share in LOOKS:
        if found is not None and not _needs_more_rounds(found, is_due=elapsed >= 1):
            break
        least = CONFIRMING_ROUNDS
        if found is not None and share > 1 and found.ratio("winner").median > 1 + OBVIOUS:
            least *= 2
        more = max(min(least, rounds), round(rounds * share)) - course.rounds
        left = seconds * share - (clock.now() - begun)
        if found is None or more > 0:
            stop = course.run(least, more, left, until_clear=False)
            found = Race(course.times(), stop, 1 - doubt / len(LOOKS), watch.contention())
        elapsed = share
    assert found is not None
    return found


def _needs_more_rounds(found: Race, *, is_due: bool) -> bool:
    """Return whether a confirming race must go on; once the time is due, only for a lead that may become sure."""
    if found.stop is RaceStop.INTERRUPTED:
        return False
    ratio = found.ratio("winner")
    return not _is_clear(ratio) and (not is_due or _may_become_sure(ratio))


def _is_clear(ratio: Ratio) -> bool:
    """Return whether a gain is sure and its interval narrower than itself, or there is surely none that matters."""
    return ratio.coverage >= ratio.confidence and (ratio.low - 1 > ratio.high - ratio.low or ratio.high <= 1 + TIE)


def _may_become_sure(ratio: Ratio) -> bool:
    """Return whether there is an unsure lead that is large enough beside its interval to become sure."""
    return not ratio.faster and ratio.median - 1 > (ratio.median - ratio.low) * PROSPECT


class _RunningRace:
    """State of a race while it runs."""

    def __init__(
        self,
        clock: Clock,
        contestants: Mapping[str, Callable[[], object]],
        order: random.Random,
        on_round: Progress | None,
        settle: Callable[[], None] | None,
    ) -> None:
        self._clock, self._on_round = clock, on_round or (lambda _share: None)
        self._settle = settle
        self._timers: dict[str, Timer] = {name: clock.bind(fn) for name, fn in contestants.items()}
        self._repeats: dict[str, int] = {}
        self._order = order
        self._baseline = next(iter(contestants))
        self._running = list(contestants)
        self._rounds: list[dict[str, float]] = []

    @property
    def rounds(self) -> int:
        """The number of complete rounds."""
        return len(self._rounds)

    def times(self) -> dict[str, tuple[float, ...]]:
        """Return the seconds by contestant and round."""
        return {name: tuple(found[name] for found in self._rounds if name in found) for name in self._timers}

    def run(self, least: int, rounds: int, seconds: float, until_clear: bool) -> RaceStop:
        """Run up to ``rounds`` further rounds, after a warm-up if there was none; the arguments are those of `race`."""
        try:
            return self._run(least, rounds, seconds, until_clear)
        except KeyboardInterrupt:
            return RaceStop.INTERRUPTED

    def _run(self, least: int, rounds: int, seconds: float, until_clear: bool) -> RaceStop:
        begun = self._clock.now()
        deadline = begun + seconds
        for name, timer in self._timers.items():
            if name not in self._repeats:
                sample_s = SAMPLE_S if self._settle is None else AWAKE_SAMPLE_S
                self._repeats[name] = calibrate(self._clock, timer, deadline=deadline, sample_s=sample_s)
        for done in range(rounds):
            if len(self._rounds) >= least and self._clock.now() >= deadline:
                return RaceStop.TIME
            self._run_round(is_warm=max(self._repeats.values()) > 1)
            time_share = (self._clock.now() - begun) / seconds if seconds > 0 else 1.0
            self._on_round(max((done + 1) / rounds, min(time_share, (done + 1) / least)))
            if until_clear and self._drop_hopeless():
                return RaceStop.CLEAR
        return RaceStop.ROUNDS

    def _run_round(self, *, is_warm: bool) -> None:
        """Time every remaining contestant once."""
        names = self._order.sample(self._running, len(self._running))
        turns = {name: self._run_turn(self._timers[name], self._repeats[name], is_warm=is_warm) for name in names}
        self._rounds.append(turns)

    def _run_turn(self, timer: Timer, repeats: int, *, is_warm: bool) -> float:
        """Return the seconds per call of one contestant's turn."""
        if self._settle is not None:
            self._settle()
            _wake(timer, repeats)
        elif is_warm:
            timer(repeats)
        return timer(repeats) / repeats

    def _drop_hopeless(self) -> bool:
        """Drop contestants without a chance against the best; return whether the best alone is left."""
        times = self.times()
        best = min(self._running, key=lambda name: median(times[name]))
        hopeless = {name for name in self._running if name != best and _has_no_chance(times[name], times[best])}
        clear = len(hopeless) == len(self._running) - 1
        self._running = [name for name in self._running if name == self._baseline or name not in hopeless]
        return clear and len(self._rounds) >= MIN_ROUNDS


def _wake(timer: Timer, repeats: int) -> None:
    """Compute for ``WAKE_S``, in samples of so many calls."""
    awake_s = 0.0
    for _ in range(math.ceil(WAKE_S / AWAKE_SAMPLE_S)):
        if awake_s < WAKE_S:
            awake_s += timer(repeats)


def _has_no_chance(times: Sequence[float], best: Sequence[float]) -> bool:
    ratio = _ratio(times, best, SURE)
    hopeless = ratio.rounds >= HOPELESS_ROUNDS and ratio.low >= HOPELESS
    return hopeless or (ratio.coverage >= SURE and ratio.low > 1 - TIE)


def _ratio(dividends: Sequence[float], divisors: Sequence[float], confidence: float) -> Ratio:
    """Return the speed-up by the rounds that both contestants ran."""
    ratios = sorted(mine / max(other, 1e-12) for mine, other in zip(dividends, divisors, strict=False))
    interval = median_interval(ratios, confidence)
    return Ratio(interval.median, interval.low, interval.high, len(ratios), interval.coverage, confidence)
