"""Races on an invented machine whose speed drifts."""

import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pytest

from taso_py.ir.errors import TasoError
from taso_py.judging.timing import LOOKS, Race, RaceStop, confirm, race
from taso_py.latency.clock import Timer


@dataclass
class Machine:
    """Runs contestants, which are functions that answer their seconds, at a speed that wanders by a factor of two."""

    noise: float = 0.02
    min_sample_s: float = 0.0
    time: float = 0.0
    rng: random.Random = field(default_factory=lambda: random.Random(7))
    order: list[float] = field(default_factory=list[float])

    def now(self) -> float:
        return self.time

    def bind(self, fn: Callable[[], object]) -> Timer:
        def timer(repeats: int) -> float:
            seconds = fn()
            assert isinstance(seconds, float)
            self.order.append(seconds)
            drift = 1.5 + 0.5 * ((self.time * 0.3) % 1.0)
            spent = seconds * repeats * drift * self.rng.lognormvariate(0, self.noise)
            self.time += spent
            return spent

        return timer


def runners(**seconds: float) -> Mapping[str, Callable[[], object]]:
    def runner(duration: float) -> Callable[[], object]:
        return lambda: duration

    return {name: runner(duration) for name, duration in seconds.items()}


def test_the_faster_wins_and_its_ratio_is_the_speed_up() -> None:
    result = race(runners(original=0.012, a=0.010, b=0.0125), device="cpu", seconds=1e9, clock=Machine())
    assert result.best() == "a"
    assert result.stop is RaceStop.CLEAR
    ratio = result.ratio("a")
    assert ratio.faster
    assert ratio.low <= ratio.median <= ratio.high
    assert ratio.median == pytest.approx(1.2, rel=0.05)
    assert ratio.rounds == result.rounds >= 6


def test_the_interval_narrows_and_covers_the_truth() -> None:
    covered = 0
    for seed in range(40):
        machine = Machine(noise=0.05, rng=random.Random(seed))
        pair = runners(original=0.011, a=0.010).values()
        ratio = confirm(*pair, device="cpu", rounds=30, seconds=1e9, clock=machine).ratio("winner")
        assert ratio.high - ratio.low < 0.15
        covered += ratio.low <= 1.1 <= ratio.high
    assert covered >= 35


def test_short_turns_begin_with_calls_that_are_not_timed() -> None:
    """A contestant is slow in its first calls after another one ran."""

    class Displacing(Machine):
        def bind(self, fn: Callable[[], object]) -> Timer:
            timer = super().bind(fn)

            def displaced(repeats: int) -> float:
                is_first = not self.order or self.order[-1] != fn()
                cold = min(repeats, 5) * 0.004 if is_first else 0.0
                self.time += cold
                return timer(repeats) + cold

            return displaced

    pair = runners(original=0.0011, a=0.0010).values()
    race_of_short = confirm(*pair, device="cpu", rounds=20, seconds=1e9, clock=Displacing(min_sample_s=0.01))
    assert max(map(max, race_of_short.times.values())) < 0.0024
    assert race_of_short.ratio("winner").median == pytest.approx(1.1, rel=0.03)
    # A call that is as long as a turn is timed as it comes.
    pair = runners(original=0.11, a=0.10).values()
    machine = Displacing(min_sample_s=0.01)
    confirm(*pair, device="cpu", rounds=20, seconds=1e9, clock=machine)
    assert machine.order[-40:].count(0.10) == 20


def test_threads_that_slept_compute_for_a_while_before_a_turn_is_timed() -> None:
    """A call takes twice as long in the first 50 ms after a wait, as if two threads had been woken on one core."""

    class Waking(Machine):
        awake_at: float = 0.0

        def wait(self) -> None:
            self.time += 0.01
            self.awake_at = self.time + 0.05

        def bind(self, fn: Callable[[], object]) -> Timer:
            timer = super().bind(fn)
            return lambda repeats: sum(self._call(timer) for _ in range(repeats))

        def _call(self, timer: Timer) -> float:
            is_asleep, spent = self.time < self.awake_at, timer(1)
            self.time += spent if is_asleep else 0.0
            return 2 * spent if is_asleep else spent

    for original in (0.001, 0.013):
        machine = Waking()
        pair = runners(original=original, a=0.9 * original)
        found = race(pair, device="cpu", rounds=20, seconds=1e9, clock=machine, until_clear=False, settle=machine.wait)
        assert max(found.times["original"]) < 2.1 * original  # the machine's own drift is a factor of two
        assert found.ratio("a").median == pytest.approx(1 / 0.9, rel=0.03)


def test_contestants_on_both_sides_of_a_turns_length_are_timed_alike() -> None:
    """One whose turn is several calls was timed with warm caches, one that takes a little longer with cold ones."""

    class Displacing(Machine):
        def bind(self, fn: Callable[[], object]) -> Timer:
            timer = super().bind(fn)

            def displaced(repeats: int) -> float:
                cold = 0.0 if self.order and self.order[-1] == fn() else 0.0012
                self.time += cold
                return timer(repeats) + cold

            return displaced

    wrong = 0
    for seed in range(20):
        machine = Displacing(noise=0.015, rng=random.Random(seed))
        # At this machine's pace they take from ten to twenty milliseconds.
        pair = runners(baseline=0.00666, winner=0.00667).values()
        wrong += confirm(*pair, device="cpu", rounds=40, seconds=1e9, clock=machine, seed=seed).ratio("winner").faster
    assert wrong <= 3


def test_a_tie_is_not_clear_in_noise() -> None:
    machine = Machine(noise=0.1)
    result = race(runners(original=0.01, twin=0.01), device="cpu", rounds=25, seconds=1e9, clock=machine)
    assert result.stop is RaceStop.ROUNDS
    assert result.rounds == 25
    assert not result.ratio("twin").faster


def test_slow_contestants_are_dropped_but_never_the_baseline() -> None:
    contestants = runners(original=0.03, hopeless=0.05, a=0.0100, slower=0.0115, b=0.0100)
    result = race(contestants, device="cpu", rounds=40, seconds=1e9, clock=Machine(noise=0.06))
    rounds = {name: len(times) for name, times in result.times.items()}
    assert rounds["hopeless"] == 3
    assert 3 < rounds["slower"] < 40
    assert rounds["original"] == rounds["a"] == rounds["b"] == 40
    assert result.best() in {"a", "b"}


def test_dropped_contestants_are_paired_with_the_rounds_they_ran() -> None:
    result = Race({"original": (2.0, 4.0, 8.0), "dropped": (4.0, 8.0)}, RaceStop.ROUNDS)
    assert result.ratio("dropped").median == 0.5
    assert result.ratio("dropped").rounds == 2
    assert result.best() == "original"


def test_pairing_within_rounds_cancels_drift() -> None:
    speeds = (1.0, 3.0, 2.0, 5.0, 1.0, 4.0)
    result = Race({"original": tuple(2 * speed for speed in speeds), "a": speeds}, RaceStop.ROUNDS)
    ratio = result.ratio("a")
    assert (ratio.low, ratio.median, ratio.high) == (2.0, 2.0, 2.0)
    assert ratio.coverage == pytest.approx(1 - 2 / 2**6)


def test_too_few_rounds_prove_nothing() -> None:
    result = Race({"original": (2.0,) * 5, "a": (1.0,) * 5}, RaceStop.TIME)
    assert result.ratio("a").low == 2.0
    assert not result.ratio("a").faster


def test_the_baseline_is_its_own_measure() -> None:
    result = race(runners(original=0.01, a=0.02), device="cpu", seconds=1e9, clock=Machine())
    assert result.best() == result.baseline == "original"
    assert result.ratio("original").median == 1.0
    assert result.rounds == 6


def test_the_order_changes_by_round_and_repeats_by_seed() -> None:
    def order(seed: int) -> list[float]:
        machine = Machine()
        contestants = runners(a=0.010, b=0.011, c=0.012)
        race(contestants, device="cpu", rounds=8, seconds=1e9, clock=machine, seed=seed, until_clear=False)
        return machine.order[9:]

    first = order(0)
    rounds = [tuple(first[i : i + 3]) for i in range(0, len(first), 3)]
    assert all(sorted(one) == [0.010, 0.011, 0.012] for one in rounds)
    assert len(set(rounds)) > 1
    assert first == order(0) != order(1)


def test_time_ends_a_race_after_a_whole_round() -> None:
    result = race(runners(original=1.0, a=1.0), device="cpu", seconds=30, clock=Machine())
    assert result.stop is RaceStop.TIME
    assert 1 < result.rounds < 15
    late = race(runners(original=1.0, a=0.5), device="cpu", seconds=0, clock=Machine())
    assert late.rounds == 1
    assert len(late.times["a"]) == 1


@pytest.mark.parametrize(("lead", "fewest", "most"), [(3.0, 12, 12), (1.03, 13, 400), (0.5, 12, 12)])
def test_a_race_that_confirms_ends_at_the_look_that_settles_it(lead: float, fewest: int, most: int) -> None:
    """A large gain, or a loss, is settled at once; a small one is not known to within less than itself then."""
    seen: list[float] = []
    pair = runners(original=0.01 * lead, a=0.01).values()
    result = confirm(*pair, device="cpu", rounds=100, seconds=1e9, clock=Machine(), on_round=seen.append)
    assert fewest <= result.rounds <= most
    assert result.ratio("winner").faster == (lead > 1)
    assert result.confidence == 1 - 0.05 / len(LOOKS)
    assert len(seen) == result.rounds


def test_what_is_surely_no_better_than_the_best_is_dropped() -> None:
    """Contestants are compared to within a percent, after which which one wins is nobody's concern."""
    machine = Machine(noise=0.002)
    result = race(runners(original=0.03, a=0.01, b=0.01), device="cpu", rounds=100, seconds=1e9, clock=machine)
    assert result.stop is RaceStop.CLEAR
    assert result.rounds < 40


@pytest.mark.parametrize(("noise", "most_lost"), [(0.01, 0.002), (0.03, 0.004)])
def test_a_race_that_ends_early_decides_as_one_that_runs_on(noise: float, most_lost: float) -> None:
    def raced(seed: int, *, until_clear: bool) -> tuple[float, int]:
        draw = random.Random(seed)
        seconds = {f"c{number}": 0.0035 * draw.lognormvariate(0, 0.02) for number in range(5)}
        machine = Machine(noise=noise, rng=random.Random(seed))
        contestants = runners(original=0.012, **seconds)
        found = race(
            contestants, device="cpu", rounds=60, seconds=1e9, clock=machine, seed=seed, until_clear=until_clear
        )
        winner = max(seconds, key=lambda name: found.ratio(name).median)
        return seconds[winner] / min(seconds.values()) - 1, sum(map(len, found.times.values()))

    early, whole = ([raced(seed, until_clear=clear) for seed in range(30)] for clear in (True, False))
    lost, lost_by_whole = (sum(loss for loss, _ in races) / len(races) for races in (early, whole))
    assert lost <= lost_by_whole + most_lost
    turns, turns_of_whole = (sum(count for _, count in races) for races in (early, whole))
    assert turns < 0.7 * turns_of_whole


def test_less_doubt_makes_intervals_wider() -> None:
    def low(**doubt: float) -> float:
        machine = Machine(noise=0.008, rng=random.Random(0))
        pair = runners(original=0.0102, a=0.01).values()
        return confirm(*pair, device="cpu", rounds=40, seconds=1e9, clock=machine, **doubt).ratio("winner").low

    assert low(doubt=0.001) < low() < low(doubt=0.5)


def test_a_slow_model_is_confirmed_by_enough_rounds_though_they_take_longer() -> None:
    pair = runners(original=3.0, a=2.0).values()
    result = confirm(*pair, device="cpu", seconds=5.0, clock=Machine())
    assert (result.stop, result.rounds) == (RaceStop.TIME, 10)
    assert result.ratio("winner").faster
    assert confirm(*pair, device="cpu", rounds=8, seconds=5.0, clock=Machine()).rounds == 8


def test_a_large_lead_in_doubt_gets_as_many_rounds_again_however_slow_the_model() -> None:
    """Noise hides a lead of a fifth in ten rounds; it does not pay to look for one of a hundredth."""

    def confirmed(lead: float) -> list[tuple[int, bool]]:
        pair = runners(original=2.0 * lead, a=2.0).values()
        machines = [Machine(noise=0.15, rng=random.Random(seed)) for seed in range(60)]
        races = [confirm(*pair, device="cpu", seconds=5.0, clock=machine) for machine in machines]
        return [(race.rounds, race.ratio("winner").faster) for race in races]

    led, tied = Counter(confirmed(1.25)), Counter(confirmed(1.0))
    assert {rounds for rounds, _ in led} == {10, 20}
    assert led[20, True] > 3 * led[10, True]
    assert tied[10, True] + tied[20, True] <= 3


def test_a_lead_in_doubt_is_timed_for_longer() -> None:
    """Ten rounds show little of half a percent, and forty much; a tie is mostly given up at once, and never sure."""

    def confirmed(lead: float) -> list[tuple[int, bool]]:
        pair = runners(original=0.01 * lead, a=0.01).values()
        machines = [Machine(noise=0.008, rng=random.Random(seed)) for seed in range(100)]
        races = [confirm(*pair, device="cpu", rounds=10, seconds=1e9, clock=machine) for machine in machines]
        assert all(race.ratio("winner").coverage > 0.98 for race in races)
        return [(race.rounds, race.ratio("winner").faster) for race in races]

    led, tied = Counter(confirmed(1.005)), Counter(confirmed(1.0))
    assert {rounds for rounds, _ in led} == {10, 20, 40}
    assert led[20, True] + led[40, True] > 4 * led[10, True] > 0
    assert tied[10, False] > 70
    assert tied[10, True] + tied[20, True] + tied[40, True] <= 5


def test_an_interrupt_returns_the_whole_rounds() -> None:
    calls = 0

    def interrupted() -> float:
        nonlocal calls
        calls += 1
        if calls == 10:
            raise KeyboardInterrupt
        return 0.01

    contestants = {**runners(original=0.01), "a": interrupted}
    result = race(contestants, device="cpu", seconds=1e9, clock=Machine())
    assert result.stop is RaceStop.INTERRUPTED
    assert len(result.times["a"]) == len(result.times["original"]) == result.rounds == 10 - 1 - 3


def test_an_interrupt_before_anything_is_known_leaves_the_baseline() -> None:
    def interrupted() -> float:
        raise KeyboardInterrupt

    contestants = {**runners(original=0.01), "a": interrupted}
    result = race(contestants, device="cpu", clock=Machine())
    assert (result.stop, result.rounds, result.best()) == (RaceStop.INTERRUPTED, 0, "original")
    assert result.ratio(result.best()).rounds == 0
    with pytest.raises(TasoError, match="let it run longer"):
        result.ratio("a")


def test_a_race_needs_contestants_and_rounds() -> None:
    with pytest.raises(TasoError, match="at least a baseline"):
        race({}, device="cpu", clock=Machine())
    with pytest.raises(TasoError, match="one round"):
        race(runners(original=0.01), device="cpu", rounds=0, clock=Machine())


def test_functions_race_on_the_real_clock() -> None:
    result = race({"few": lambda: sum(range(10)), "many": lambda: sum(range(1000))}, device="cpu", rounds=3)
    assert result.rounds == 3
    assert all(seconds > 0 for times in result.times.values() for seconds in times)


def test_a_lead_is_sure_only_with_the_coverage_that_was_asked_for() -> None:
    """Ten rounds that all lead have a coverage of 99.8 %."""
    times = {"baseline": (2.0,) * 10, "winner": (1.0,) * 10}
    assert [Race(times, RaceStop.TIME, confidence).ratio("winner").faster for confidence in (0.95, 0.998, 0.999)] == [
        True,
        True,
        False,
    ]
