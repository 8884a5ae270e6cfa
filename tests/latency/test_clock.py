"""Measuring: decisions with an invented clock, and the real clocks' mechanics without looking at their figures."""

import gc
import inspect
import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch

from taso_py.kernels.prepared_call import PreparedCall
from taso_py.latency import clock as clock_module
from taso_py.latency.clock import (
    MAX_SAMPLES,
    MIN_SAMPLES,
    CpuClock,
    CudaClock,
    Interval,
    Latency,
    Timer,
    TimingError,
    calibrate,
    clock_for,
    measure,
    median_interval,
    repeats_for,
)
from taso_py.latency.environment import DeviceError


@dataclass
class FakeClock:
    """A clock on which a call takes what ``noise`` says; time passes only by calls."""

    seconds: float
    noise: Callable[[], float] = lambda: 1.0
    min_sample_s: float = 200e-6
    time: float = 0.0
    batches: list[int] = field(default_factory=list[int])

    def now(self) -> float:
        return self.time

    def bind(self, fn: Callable[[], object]) -> Timer:
        def timer(repeats: int) -> float:
            fn()
            self.batches.append(repeats)
            spent = self.seconds * repeats * self.noise()
            self.time += spent
            return spent

        return timer


def nothing() -> None:
    """Do what a fake clock needs."""


def test_a_quiet_machine_needs_the_fewest_samples() -> None:
    clock = FakeClock(1e-3)
    latency = measure(nothing, device="cpu", clock=clock)
    assert latency.median_s == latency.low_s == latency.high_s == pytest.approx(1e-3)
    assert (latency.samples, latency.outliers) == (MIN_SAMPLES, 0)


def test_short_calls_are_repeated_until_a_sample_is_long_enough() -> None:
    clock = FakeClock(1e-7)
    assert measure(nothing, device="cpu", clock=clock).median_s == pytest.approx(1e-7)
    assert clock.batches[0] == 1
    assert clock.batches[-1] * 1e-7 >= clock.min_sample_s


def test_one_interruption_does_not_spoil_the_calibration() -> None:
    readings = iter([1.0, 5e3, 1.0])
    clock = FakeClock(1e-6, noise=lambda: next(readings, 1.0))
    assert calibrate(clock, clock.bind(nothing)) * 1e-6 >= clock.min_sample_s


def test_noise_is_sampled_until_the_interval_is_narrow() -> None:
    rng = random.Random(0)
    clock = FakeClock(1e-3, noise=lambda: rng.lognormvariate(0, 0.1))
    latency = measure(nothing, device="cpu", budget_s=10, width=0.02, clock=clock)
    assert MIN_SAMPLES < latency.samples < MAX_SAMPLES
    assert latency.high_s - latency.low_s <= 0.02 * latency.median_s
    assert latency.low_s <= 1e-3 <= latency.high_s


def test_outliers_are_counted_and_do_not_move_the_median() -> None:
    rng = random.Random(0)
    clock = FakeClock(1e-3, noise=lambda: rng.uniform(0.98, 1.02) * (30 if rng.random() < 0.1 else 1))
    latency = measure(nothing, device="cpu", budget_s=10, width=0.005, clock=clock)
    assert latency.median_s == pytest.approx(1e-3, rel=0.01)
    assert 0.02 * latency.samples < latency.outliers < 0.2 * latency.samples


def test_the_budget_ends_a_measurement() -> None:
    rng = random.Random(0)
    clock = FakeClock(1e-3, noise=lambda: rng.uniform(0.5, 1.5))
    latency = measure(nothing, device="cpu", budget_s=0.1, width=1e-6, clock=clock)
    assert 50 < latency.samples < MAX_SAMPLES
    assert 0.1 <= clock.time < 0.102


def test_a_call_longer_than_the_budget_is_still_timed_once_warm() -> None:
    readings = iter([9.0])
    clock = FakeClock(10.0, noise=lambda: next(readings, 1.0))
    assert measure(nothing, device="cpu", budget_s=1, clock=clock) == Latency(10.0, 10.0, 10.0, 1, 0)
    assert clock.batches == [1, 1]


def test_the_interval_is_that_of_the_binomial_distribution() -> None:
    assert median_interval(range(1, 7)) == Interval(1, 3.5, 6, 1 - 2 / 2**6)
    assert median_interval(range(1, 10)) == Interval(2, 5, 8, 1 - 2 * (1 + 9) / 2**9)
    assert median_interval([3.0]) == Interval(3.0, 3.0, 3.0, 0.0)
    assert median_interval(range(5)).coverage < 0.95


def test_the_interval_covers_the_median_as_often_as_it_says() -> None:
    rng = random.Random(1)
    trials = 2000
    found = [median_interval(sorted(rng.expovariate(1.0) for _ in range(15)), 0.9) for _ in range(trials)]
    held = sum(interval.low <= math.log(2) <= interval.high for interval in found)
    assert found[0].coverage >= 0.9
    assert held / trials == pytest.approx(found[0].coverage, abs=0.02)


@pytest.mark.parametrize(
    "figures", [(2.0, 1.0, 1.5, 9, 0), (-1.0, -1.0, 1.0, 9, 0), (1.0, 1.0, float("inf"), 9, 0), (1.0, 1.0, 1.0, 0, 0)]
)
def test_figures_that_contradict_each_other_are_no_latency(figures: tuple[float, float, float, int, int]) -> None:
    with pytest.raises(TimingError, match="is no latency"):
        Latency(*figures)


def test_the_cpu_clock_calls_as_often_as_asked_with_collection_paused() -> None:
    seen: list[bool] = []
    assert CpuClock().bind(lambda: seen.append(gc.isenabled()))(7) > 0
    assert seen == [False] * 7
    assert gc.isenabled()


def test_the_cpu_clock_takes_samples_at_many_depths_of_the_stack() -> None:
    depths: list[int] = []
    timer = CpuClock().bind(lambda: depths.append(len(inspect.stack(0))))
    for _ in range(50):
        timer(2)
    assert len(set(depths)) > 20
    assert depths[::2] == depths[1::2], "a sample is at one depth"


def test_collection_stays_off_where_it_was_off_and_comes_back_after_an_error() -> None:
    timer = CpuClock().bind(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        timer(1)
    assert gc.isenabled()
    gc.disable()
    try:
        CpuClock().bind(nothing)(1)
        assert not gc.isenabled()
    finally:
        gc.enable()


@dataclass
class FakeEvent:
    """A mark in a queue that takes 2 ms for each call."""

    log: list[str]
    place: int = -1

    def record(self) -> None:
        self.place = self.log.count("call")
        self.log.append("record")

    def synchronize(self) -> None:
        self.log.append("wait")

    def elapsed_time(self, end_event: "FakeEvent") -> float:
        return 2.0 * (end_event.place - self.place)


def test_the_cuda_clock_marks_waits_and_converts_to_seconds() -> None:
    log: list[str] = []
    timer = CudaClock(event=lambda: FakeEvent(log)).bind(lambda: log.append("call"))
    assert timer(3) == pytest.approx(6e-3)
    assert log == ["record", "call", "call", "call", "record", "wait"]


def test_calls_are_captured_once_and_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    captured: list[int] = []

    def capture(fn: Callable[[], object], repeats: int) -> Callable[[], object]:
        captured.append(repeats)
        return lambda: [fn() for _ in range(repeats)]

    monkeypatch.setattr(clock_module, "_capture", capture)
    clock = CudaClock(graph=True, event=lambda: FakeEvent(log))
    clock.bind(lambda: log.append("call"))
    assert captured == [round(clock_module.CAPTURED_S / 2e-3)]
    monkeypatch.setattr(clock_module, "CAPTURED_S", 10e-3)
    timer = clock.bind(lambda: log.append("call"))
    for repeats in (1, 5, 7, 100):
        before = log.count("call")
        assert timer(repeats) == pytest.approx(repeats * 2e-3)
        assert log.count("call") - before == 5 * -(-repeats // 5)
    assert captured[1:] == [5]


def test_the_device_decides_the_clock() -> None:
    assert isinstance(clock_for("cpu"), CpuClock)
    with pytest.raises(DeviceError):
        clock_for("mps")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("graph", [False, True])
def test_a_gpu_is_timed(graph: bool) -> None:
    x = torch.ones(64, 64, device="cuda")
    latency = measure(lambda: x @ x, device="cuda", clock=clock_for("cuda", graph=graph))
    assert latency.median_s > 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_what_waits_for_the_gpu_cannot_be_captured() -> None:
    x = torch.ones(4, device="cuda")
    with pytest.raises(TimingError, match="cannot be captured"):
        clock_for("cuda", graph=True).bind(lambda: x.sum().item())(1)
    assert clock_for("cuda").bind(lambda: x.sum().item())(1) > 0


def test_what_prepares_a_call_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    passed = [0]

    def takes(nanoseconds: int) -> Callable[[], None]:
        def call() -> None:
            passed[0] += nanoseconds

        return call

    monkeypatch.setattr(time, "perf_counter_ns", lambda: passed[0])
    call = PreparedCall(takes(1000), takes(10))
    assert CpuClock().bind(call)(2) == pytest.approx(20e-9)
    assert CpuClock().bind(lambda: call())(2) == pytest.approx(2020e-9)


def test_a_prepared_call_is_a_sample_by_itself() -> None:
    clock = CpuClock()
    call = PreparedCall(lambda: None, lambda: None)
    assert repeats_for(clock, call, clock.bind(call)) == 1
    assert repeats_for(clock, call.call, clock.bind(call.call)) > 1
