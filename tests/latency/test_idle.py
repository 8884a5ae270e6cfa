"""Waiting until the threads of this process are asleep, with clocks that are set by hand."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from taso_py.latency import idle


class Clocks:
    """Time that passes by sleeping, and what the process uses of it."""

    def __init__(self, spins_until: float, share: float = 1.0) -> None:
        self.now, self.used, self.spins_until, self.share = 0.0, 0.0, spins_until, share

    def sleep(self, seconds: float) -> None:
        awake = min(seconds, max(0.0, self.spins_until - self.now))
        self.now += seconds
        self.used += awake * self.share


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> Callable[[Clocks], float]:
    """How long it is waited beside threads."""

    def wait(clocks: Clocks) -> float:
        fake = SimpleNamespace(perf_counter=lambda: clocks.now, process_time=lambda: clocks.used, sleep=clocks.sleep)
        monkeypatch.setattr(idle, "time", fake)
        idle.wait_until_idle()
        return clocks.now

    return wait


def test_a_process_that_sleeps_is_looked_at_once(waited: Callable[[Clocks], float]) -> None:
    assert waited(Clocks(0.0)) == idle.STEP_S


@pytest.mark.parametrize("seconds", [0.009, 0.012, 0.05])
def test_it_is_waited_until_threads_stop_to_spin(waited: Callable[[Clocks], float], seconds: float) -> None:
    assert seconds < waited(Clocks(seconds)) <= seconds + 2.5 * idle.STEP_S


def test_it_is_not_waited_for_ever(waited: Callable[[Clocks], float]) -> None:
    assert waited(Clocks(1e9)) == pytest.approx(idle.MOST_S, abs=1.5 * idle.STEP_S)


@pytest.mark.parametrize(("share", "is_idle"), [(idle.SHARE / 2, True), (idle.SHARE * 2, False)])
def test_a_process_that_uses_a_little_sleeps(waited: Callable[[Clocks], float], share: float, is_idle: bool) -> None:
    assert (waited(Clocks(1e9, share)) == idle.STEP_S) is is_idle
