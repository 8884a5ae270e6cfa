"""Racing implementations of the same computation against each other, end to end.

A machine's speed drifts by more than candidates differ. So every contestant runs once in each round, in an order drawn
anew, and what counts are the ratios within a round; their median and its interval assume no distribution of times.

Whoever ran before has displaced a contestant's weights from the caches, in which they stay where a model is called
again and again. So where a contestant's turn is several calls, every turn begins with as many calls that are not timed:
with its own caches for all or for none.

Invariant: only whole rounds count, so that every contestant's n-th time belongs to the baseline's n-th time.
"""

from __future__ import annotations

import enum
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
"""Told after each round which share of a race is over, by its rounds or by its time."""

ROUNDS = 100
SECONDS = 30.0
SAMPLE_S = 10e-3
"""Shorter calls are repeated: noise lasts for milliseconds, so that many short rounds would all see the same of it."""
CONFIDENCE = 0.95
MIN_ROUNDS = 6
"""Fewer give no interval at 95 %."""
CONFIRMING_ROUNDS = 10
"""How many a confirming race has at least, however slow the model: one that is disturbed does not decide then."""
LOOKS = (1 / 8, 1 / 4, 1 / 2, 1, 2, 4)
"""After which shares of its rounds, or of its seconds, a confirming race is looked at."""
PROSPECT = 0.25
"""How large a part of its interval's lower half a lead has at least that is timed for longer."""
INDIFFERENCE = 0.005
"""A contestant that is surely faster than the best by less than this share, if at all, is dropped too."""
SURE = 0.999
"""The coverage that dropping a contestant asks for: more than a report, as the question is put after every round."""
HOPELESS = 1.5
HOPELESS_ROUNDS = 3
"""A contestant that takes so many times as long as the best in each of the first rounds is dropped at once."""


class StopReason(enum.Enum):
    """Why a race ended."""

    CLEAR = "the winner is clear"
    ROUNDS = "all rounds are run"
    TIME = "the time is used up"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class Ratio:
    """A speed-up: the baseline's time over a contestant's, paired by round."""

    median: float
    low: float
    high: float
    rounds: int
    coverage: float
    """The probability that the true median lies between ``low`` and ``high``; at least 95 % from six rounds on."""

    @property
    def faster(self) -> bool:
        """Whether the contestant is faster than the baseline beyond doubt: the whole interval says so, at 95 %."""
        return self.coverage >= CONFIDENCE and self.low > 1


@dataclass(frozen=True)
class Race:
    """What a race showed."""

    times: Mapping[str, tuple[float, ...]]
    """Seconds a call, by contestant and round, the baseline first; a contestant that was dropped has fewer rounds."""
    stop: StopReason
    confidence: float = CONFIDENCE
    """The probability with which intervals hold the truth: higher where they were looked at more than once."""
    contention: Contention = NOTHING
    """What there was of the processor's cores meanwhile."""

    @property
    def baseline(self) -> str:
        """The name of the first contestant."""
        return next(iter(self.times))

    @property
    def rounds(self) -> int:
        """How many rounds are complete."""
        return len(self.times[self.baseline])

    def ratio(self, name: str, over: str | None = None) -> Ratio:
        """The speed-up of a contestant over another, by default over the baseline; its own is exactly 1.

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
        """The contestant with the highest median speed-up of those that ran to the end, or the baseline.

        The fastest of several flatters itself: `confirm` it before it is reported.
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
    """Time contestants in interleaved rounds; an interrupt from the keyboard ends the race with what is known.

    Args:
        contestants: what to call, by name, the baseline first.
        device: where they run; ignored if a clock is given.
        rounds: how many rounds there are at most.
        seconds: after how much time, warm-up included, no round begins any more but for the least number.
        clock: the clock of the device if not given.
        seed: of the order within the rounds.
        until_clear: drop contestants that are surely not faster than the best by what matters, though never the
            baseline, and end the race when only the best is left. Otherwise all run to the end, whatever they show.
        least: how many rounds there are however long they take, if that many are allowed.
        settle: called before every turn where contestants have threads of their own, which may still be awake.
        on_round: told about progress.
    """
    if not contestants or rounds < 1:
        raise TasoError("a race needs at least a baseline and one round")
    watch = Watch(device)
    course = _Course(clock or clock_for(device), contestants, random.Random(seed), on_round, settle)
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
    """Time the winner of a race against the baseline afresh, in a race of the two under these names.

    It is looked at several times, at moments that are fixed beforehand, and ends as soon as what it shows is settled:
    large gains in a second, small ones after minutes. Each look may be wrong in an equal part of the doubt
    (Bonferroni; Pocock, Group sequential methods in the design and analysis of clinical trials, Biometrika 1977).

    Args:
        baseline: what the winner is compared with.
        winner: what won.
        device: where they run; ignored if a clock is given.
        rounds: how many rounds there are at most before the look that is due after ``seconds``.
        seconds: how long the race lasts if it is not settled before; where a lead is in doubt, up to four times that.
        clock: the clock of the device if not given.
        seed: of the order within the rounds.
        doubt: the probability with which intervals may miss the truth.
        settle: called before every turn, see :func:`race`.
        on_round: told about progress.
    """
    pair = {"baseline": baseline, "winner": winner}
    watch = Watch(device)
    clock = clock or clock_for(device)

    def told(_: float) -> None:
        if on_round is not None:
            on_round(min(1.0, max(course.rounds / rounds, (clock.now() - begun) / seconds if seconds > 0 else 0.0)))

    course = _Course(clock, pair, random.Random(seed), told, settle)
    begun, found, elapsed = clock.now(), None, 0.0
    for share in LOOKS:
        if found is not None and not _goes_on(found, is_due=elapsed >= 1):
            break
        more = max(min(CONFIRMING_ROUNDS, rounds), round(rounds * share)) - course.rounds
        left = seconds * share - (clock.now() - begun)
        if found is None or (more > 0 and left > 0):
            stop = course.run(CONFIRMING_ROUNDS, more, left, until_clear=False)
            found = Race(course.times(), stop, 1 - doubt / len(LOOKS), watch.contention())
        elapsed = share
    assert found is not None
    return found


def _goes_on(found: Race, *, is_due: bool) -> bool:
    """Whether a confirming race has more to show; once the time is due, only a lead that may become sure has."""
    if found.stop is StopReason.INTERRUPTED:
        return False
    ratio = found.ratio("winner")
    return not _is_settled(ratio) and (not is_due or _may_become_sure(ratio))


def _is_settled(ratio: Ratio) -> bool:
    """Whether a gain is sure and known to within less than itself, or surely there is none."""
    return ratio.coverage >= CONFIDENCE and (ratio.low - 1 > ratio.high - ratio.low or ratio.high <= 1)


def _may_become_sure(ratio: Ratio) -> bool:
    """Whether a lead is not sure, and not so small beside its interval that more rounds have little prospect."""
    return not ratio.faster and ratio.median - 1 > (ratio.median - ratio.low) * PROSPECT


class _Course:
    """A race under way."""

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
        """How many rounds are complete."""
        return len(self._rounds)

    def times(self) -> dict[str, tuple[float, ...]]:
        """Seconds by contestant and round."""
        return {name: tuple(found[name] for found in self._rounds if name in found) for name in self._timers}

    def run(self, least: int, rounds: int, seconds: float, until_clear: bool) -> StopReason:
        """Warm up if that is not done, and run so many rounds more, ``least`` in all; the arguments are `race`'s."""
        try:
            return self._run(least, rounds, seconds, until_clear)
        except KeyboardInterrupt:
            return StopReason.INTERRUPTED

    def _run(self, least: int, rounds: int, seconds: float, until_clear: bool) -> StopReason:
        begun = self._clock.now()
        deadline = begun + seconds
        for name, timer in self._timers.items():
            if name not in self._repeats:
                self._repeats[name] = calibrate(self._clock, timer, deadline=deadline, sample_s=SAMPLE_S)
        for done in range(rounds):
            if len(self._rounds) >= least and self._clock.now() >= deadline:
                return StopReason.TIME
            self._run_round(is_warm=self._settle is not None or max(self._repeats.values()) > 1)
            time_share = (self._clock.now() - begun) / seconds if seconds > 0 else 1.0
            self._on_round(max((done + 1) / rounds, min(time_share, (done + 1) / least)))
            if until_clear and self._drop_hopeless():
                return StopReason.CLEAR
        return StopReason.ROUNDS

    def _run_round(self, *, is_warm: bool) -> None:
        """Time all that are still running once."""
        names = self._order.sample(self._running, len(self._running))
        turns = {name: self._run_turn(self._timers[name], self._repeats[name], is_warm=is_warm) for name in names}
        self._rounds.append(turns)

    def _run_turn(self, timer: Timer, repeats: int, *, is_warm: bool) -> float:
        """Seconds a call."""
        if self._settle is not None:
            self._settle()
        if is_warm:
            timer(repeats)
        return timer(repeats) / repeats

    def _drop_hopeless(self) -> bool:
        """Drop those that have no chance against the best; true if they are all the others."""
        times = self.times()
        best = min(self._running, key=lambda name: median(times[name]))
        hopeless = {name for name in self._running if name != best and _has_no_chance(times[name], times[best])}
        clear = len(hopeless) == len(self._running) - 1
        self._running = [name for name in self._running if name == self._baseline or name not in hopeless]
        return clear and len(self._rounds) >= MIN_ROUNDS


def _has_no_chance(times: Sequence[float], best: Sequence[float]) -> bool:
    ratio = _ratio(times, best, SURE)
    hopeless = ratio.rounds >= HOPELESS_ROUNDS and ratio.low >= HOPELESS
    return hopeless or (ratio.coverage >= SURE and ratio.low > 1 - INDIFFERENCE)


def _ratio(dividends: Sequence[float], divisors: Sequence[float], confidence: float) -> Ratio:
    """The ratios of two contestants' times, as far as both ran."""
    ratios = sorted(mine / max(other, 1e-12) for mine, other in zip(dividends, divisors, strict=False))
    interval = median_interval(ratios, confidence)
    return Ratio(interval.median, interval.low, interval.high, len(ratios), interval.coverage)
