"""Measurements are believed where the machine was at rest, and made again where it was not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count, repeat

import pytest
import torch

from taso_py.kernels.prepared_call import PreparedCall
from taso_py.latency import measuring
from taso_py.latency.clock import CpuClock, Latency, Timer
from taso_py.latency.measuring import Measuring, Probe
from taso_py.latency.pace import Reference

CPU = torch.device("cpu")
pytestmark = pytest.mark.usefixtures("disturbances_count")
GOOD, WIDE = Latency(1e-3, 1e-3, 1e-3, 9, 0), Latency(2e-3, 1.5e-3, 3e-3, 9, 0)
SLOW = Latency(16e-3, 16e-3, 16e-3, 9, 0)


class Told(Probe):
    """A probe that answers what it is told."""

    def __init__(self, answers: Iterator[bool]) -> None:
        super().__init__()
        self.answers = answers

    def is_calm(self) -> bool:
        return next(self.answers)


def told(
    monkeypatch: pytest.MonkeyPatch, latencies: list[Latency], calm: list[bool], patience_s: float = 0.0
) -> tuple[Latency, bool]:
    """What is answered for latencies and what the probe says after each; all of both are used up."""
    waiting, answers = iter(latencies), iter(calm)
    monkeypatch.setattr(measuring, "measure", lambda *_args, **_keywords: next(waiting))
    monkeypatch.setattr(measuring, "PATIENCE_S", patience_s)
    monkeypatch.setattr(measuring, "PAUSE_S", 0.0)
    answer = Measuring(CPU, Told(answers)).measured(lambda: None, 0.01)
    assert (next(waiting, None), next(answers, None)) == (None, None)
    return answer


@pytest.mark.parametrize("captured", [False, True])
def test_calls_are_captured_where_that_is_asked_for(captured: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def clock(device: torch.device, *, graph: bool) -> CpuClock:
        asked.append(graph)
        return CpuClock()

    monkeypatch.setattr(measuring, "clock_for", clock)
    here = Measuring(CPU, Told(repeat(True)), captured=captured)
    here.measured(lambda: None, 0.01)
    here.measured(lambda: None, 0.01, Reference(lambda: None, 1e-6))
    here.measure_interleaved({"call": lambda: None})
    assert asked == [captured] * 3


def test_the_first_measurement_counts_if_it_is_good(monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(monkeypatch, [GOOD], [True]) == (GOOD, True)


def test_of_poor_ones_the_least_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    few = Latency(5e-3, 5e-3, 5e-3, 1, 0)
    assert told(monkeypatch, [few, few, WIDE], [True, True, True]) == (WIDE, True)
    assert told(monkeypatch, [few, GOOD], [True, True]) == (GOOD, True)


def test_a_disturbed_one_never_counts_beside_a_calm_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(monkeypatch, [GOOD, SLOW], [False, True]) == (SLOW, True)


def test_samples_that_differ_by_factors_are_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    torn = Latency(4e-3, 2e-4, 16e-3, 17, 0)
    assert told(monkeypatch, [torn, GOOD], [True, True]) == (GOOD, True)
    assert told(monkeypatch, [torn] * 3, [True] * 3) == (replace(torn, median_s=2e-4), False)


def test_the_machine_is_waited_for_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(monkeypatch, [SLOW] * 3, [False] * 3) == (SLOW, False)
    calm = [False, False, False, False, True, True]
    assert told(monkeypatch, [SLOW, SLOW, SLOW, GOOD], calm, patience_s=60.0) == (GOOD, True)


def test_measuring_again_and_again_on_a_busy_machine_uses_up_the_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine seems idle whenever it is waited for, and never is while something is measured."""
    seconds, measured = count(), list[bool]()

    class Fickle(Probe):
        def is_calm(self) -> bool:
            return not measured or measured.pop()

    def disturbed(*_args: object, **_keywords: object) -> Latency:
        measured.append(False)
        attempts.append(next(seconds))
        return SLOW

    monkeypatch.setattr(measuring, "measure", disturbed)
    monkeypatch.setattr(measuring, "PATIENCE_S", 8.0)
    monkeypatch.setattr(measuring.time, "perf_counter", lambda: float(next(seconds)))
    here, tried = Measuring(CPU, Fickle()), list[int]()
    for _ in range(3):
        attempts = list[int]()
        assert here.measured(lambda: None, 0.01) == (SLOW, False)
        tried.append(len(attempts))
    assert measuring.ATTEMPTS < tried[0] < measuring.MOST_ATTEMPTS
    assert tried[1:] == [measuring.ATTEMPTS] * 2


def test_past_the_time_to_measure_nothing_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "measure", lambda *_args, **_keywords: WIDE)
    late = Measuring(CPU, Told(iter([False])), is_late=lambda: True)
    assert late.measured(lambda: None, 0.01) == (replace(WIDE, median_s=WIDE.low_s), False)


def test_a_probe_knows_a_call_that_is_slow_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    probe = Probe()
    times = iter([2e-4, 2e-4, 3e-4, 16e-3, 2e-4, 16e-3, 2e-4, 2e-4, 2e-4])
    monkeypatch.setattr(probe, "_timed", lambda: next(times))
    assert [probe.is_calm() for _ in range(3)] == [True, False, True]
    # One that was never at rest does not take the disturbance for the norm.
    probe = Probe()
    monkeypatch.setattr(probe, "_timed", lambda: 16e-3)
    assert not probe.is_calm()


def test_a_gpu_is_probed_by_products_that_it_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = torch.device("meta")  # computes nothing, and is no CPU
    readings = iter([5e-5, 6e-5, 5e-5, 5e-5, 2e-3, 5e-5, 5e-5, 5e-5, 6e-5])
    asked: list[tuple[object, ...]] = []

    class Queue(CpuClock):
        def bind(self, fn: Callable[[], object]) -> Timer:
            def timer(repeats: int) -> float:
                product = fn()
                assert isinstance(product, torch.Tensor)
                asked.append((product.device, repeats))
                return next(readings)

            return timer

    monkeypatch.setattr(measuring, "clock_for", lambda _: Queue())
    here = Measuring(gpu)
    assert [here.is_calm for _ in range(3)] == [True, False, True]
    assert asked == [(gpu, measuring.LAUNCHES)] * 9


def test_in_turns_a_call_that_is_not_prepared_is_called_before_it_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "repeats_for", lambda *_: 1)
    done: list[str] = []
    prepared = PreparedCall(lambda: done.append("prepare"), lambda: done.append("prepared"))
    Measuring(CPU, Told(repeat(True))).measure_interleaved({"prepared": prepared})
    assert done == ["prepare", "prepared"] * measuring.ROUNDS
    done.clear()
    Measuring(CPU, Told(repeat(True))).measure_interleaved({"plain": prepared.call})
    assert done == ["prepared"] * 2 * measuring.ROUNDS


def test_turns_that_take_too_long_are_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "repeats_for", lambda *_: 1)
    monkeypatch.setattr(measuring, "ROUNDS_S", 0.0)
    done: list[str] = []
    calls = {"a": lambda: done.append("a"), "b": lambda: done.append("b")}
    half = measuring.LEAST_ROUNDS // 2
    for calm, believed in ((half + 1, True), (half, False)):
        here = Measuring(CPU, Told(iter([True] * calm + [False] * (measuring.LEAST_ROUNDS - calm))))
        assert here.measure_interleaved(calls)[1] is believed
    assert done.count("a") == done.count("b") == 2 * 2 * measuring.LEAST_ROUNDS
