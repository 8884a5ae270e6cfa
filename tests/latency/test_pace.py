"""Latencies are those at the usual pace, however fast the machine is when they are measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, repeat

import pytest
import torch

from taso_py.ir.errors import TasoError
from taso_py.latency import contention
from taso_py.latency.clock import Latency, Timer, measure
from taso_py.latency.contention import Spin
from taso_py.latency.database import LatencyDatabase
from taso_py.latency.environment import Environment
from taso_py.latency.pace import (
    MOMENTS,
    READINGS,
    PacedClock,
    Pacer,
    Reference,
    RelativeClock,
    usual_pace,
)
from taso_py.latency.schema import LatencyKind
from taso_py.latency.usual import KEYS, Pace, pace_among

CPU = torch.device("cpu")
USUAL = Pace(product_s=200e-6, call_s=1e-6)


class Told(Pacer):
    """Reads the paces that it is told."""

    def __init__(self, paces: Iterator[Pace]) -> None:
        self._paces = paces

    def read(self, products: int = 1) -> Pace:
        return next(self._paces)


@dataclass
class Machine:
    """A clock by which every call takes so long."""

    call_s: float
    min_sample_s: float = 1e-3
    _now: float = 0.0

    def now(self) -> float:
        return self._now

    def bind(self, fn: Callable[[], object]) -> Timer:
        def timer(repeats: int) -> float:
            self._now += repeats * self.call_s
            return repeats * self.call_s

        return timer


def slower(product: float, call: float) -> Pace:
    return Pace(product * USUAL.product_s, call * USUAL.call_s)


@pytest.mark.parametrize("seconds", [0.0, 1e-7, 1e-6, 5e-6, 1e-3, 1.0])
def test_the_usual_pace_changes_nothing(seconds: float) -> None:
    assert USUAL.slowness(USUAL, seconds) == pytest.approx(1.0)


def test_a_small_call_is_slow_as_small_calls_are_and_a_long_one_as_products_are() -> None:
    pace = slower(product=2.0, call=1.5)
    assert pace.slowness(USUAL, 1e-6) == pytest.approx(1.5)
    assert pace.slowness(USUAL, 1.0) == pytest.approx(2.0, rel=1e-4)
    assert 1.5 < pace.slowness(USUAL, 6e-6) < 2.0


def test_what_takes_twice_as_long_on_a_machine_half_as_fast_has_the_same_latency() -> None:
    clocks = [PacedClock(Machine(n * 4e-3), Told(repeat(slower(n, n))), USUAL) for n in (1, 2)]
    fast, slow = [measure(lambda: None, device=CPU, clock=clock).median_s for clock in clocks]
    assert fast == pytest.approx(4e-3)
    assert slow == pytest.approx(4e-3)
    assert measure(lambda: None, device=CPU, clock=Machine(8e-3)).median_s == pytest.approx(8e-3)


def test_one_reading_that_was_interrupted_says_nothing() -> None:
    paces = iter([slower(80.0, 80.0) if n % 4 == 2 else USUAL for n in range(100)])
    timer = PacedClock(Machine(4e-3), Told(paces), USUAL).bind(lambda: None)
    assert [timer(1) for _ in range(12)] == pytest.approx([4e-3] * 12)


def test_beside_a_reference_a_call_takes_what_it_takes_longer_however_fast_the_machine() -> None:
    class Drifting(Machine):
        """A clock by which calls take what they answer, all twice as long after each sample of the first."""

        def bind(self, fn: Callable[[], object]) -> Timer:
            def timer(repeats: int) -> float:
                seconds = fn()
                assert isinstance(seconds, float)
                self.call_s *= 2.0 if seconds == fused_s else 1.0
                self._now += self.call_s
                return repeats * seconds * self.call_s

            return timer

    fused_s, plain_s = 1.1, 1.0
    clock = RelativeClock(Drifting(1e-4), Reference(lambda: plain_s, 5e-3))
    latency = measure(lambda: fused_s, device=CPU, budget_s=10.0, clock=clock)
    assert (latency.low_s, latency.median_s, latency.high_s) == pytest.approx((5.5e-3, 5.5e-3, 5.5e-3))


def test_the_first_pace_of_an_environment_stays_its_usual_one() -> None:
    here = Environment.current(CPU)
    moments = READINGS * MOMENTS
    paces = chain(repeat(slower(1.5, 1.0), moments), repeat(slower(3.0, 1.0), moments))
    with LatencyDatabase(":memory:") as database:
        pacer = Told(paces)
        first = usual_pace(pacer, here, database)
        assert first == (slower(1.5, 1.0), True)
        assert usual_pace(pacer, here, database) == first
        assert {(row.kernel, row.signature) for row in database.rows()} == set(KEYS)
        assert usual_pace(pacer, replace(here, threads=here.threads + 1), database) == (slower(3.0, 1.0), True)


def test_who_begins_at_the_same_time_goes_by_the_pace_that_is_kept_first() -> None:
    here = Environment.current(CPU)

    with LatencyDatabase(":memory:") as database:

        class Meanwhile(Told):
            """While it is read, another process keeps its pace."""

            def sustained(self) -> Pace:
                usual_pace(Told(repeat(USUAL)), here, database)
                return super().sustained()

        assert usual_pace(Meanwhile(repeat(slower(3.0, 2.0))), here, database) == (USUAL, True)
        assert usual_pace(Told(repeat(slower(3.0, 2.0))), here, database) == (USUAL, True)


def test_moments_at_which_others_hold_the_processor_are_not_the_usual_ones() -> None:
    paces = chain(repeat(slower(80.0, 9.0), READINGS * (MOMENTS - 1)), repeat(USUAL, READINGS))
    with LatencyDatabase(":memory:") as database:
        assert usual_pace(Told(paces), Environment.current(CPU), database) == (USUAL, True)


def test_a_pace_that_is_read_while_a_core_is_missing_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    held = {0: Spin(0.006, 0.006), 1: Spin(0.060, 0.006)}
    busy = replace(contention.HERE, threads=lambda: 2, spins=lambda _: held, sleep=lambda _: None)
    here = Environment.current(CPU)
    with LatencyDatabase(":memory:") as database:
        with monkeypatch.context() as patch:
            patch.setattr(contention, "HERE", busy)
            assert usual_pace(Told(repeat(slower(3.0, 1.0))), here, database) == (slower(3.0, 1.0), False)
        assert database.rows() == []
        assert usual_pace(Told(repeat(USUAL)), here, database) == (USUAL, True)


def test_latencies_from_elsewhere_are_brought_to_the_usual_pace_here() -> None:
    """A machine like this was busy when it was first used: small calls took twice as long there, products thrice."""
    here, short, long, own = Environment.current(CPU), ("relu", "f32[8]"), ("matmul", "f32[8,8]"), ("add", "f32[8]")
    there, ceiling = slower(product=3.0, call=2.0), ("copy", "8 bytes")
    with LatencyDatabase(":memory:") as ours, LatencyDatabase(":memory:") as theirs:
        for database, pace in ((ours, USUAL), (theirs, there)):
            usual_pace(Told(repeat(pace)), here, database)
        ours.put(here, *own, Latency(2.0, 1.0, 3.0, 9, 0))
        theirs.put(here, *short, Latency(2e-6, 1e-6, 4e-6, 9, 0))
        theirs.put(here, *long, Latency(3.0, 3.0, 3.0, 9, 0))
        theirs.put(here, *ceiling, Latency(3.0, 3.0, 3.0, 9, 0), LatencyKind.CEILING)
        assert ours.merge(theirs.export()) == 3
        found = ours.get_many(here, [short, long, own])
        assert pace_among(ours.get_many(here, KEYS, LatencyKind.PACE)) == USUAL
        assert ours.get(here, *ceiling, LatencyKind.CEILING) == Latency(3.0, 3.0, 3.0, 9, 0), (
            "it was measured at no pace"
        )
    assert found[own] == Latency(2.0, 1.0, 3.0, 9, 0)
    assert found[short] == Latency(1e-6, 0.5e-6, 2e-6, 9, 0)
    assert found[long].median_s == pytest.approx(1.0, rel=1e-4)


def test_where_no_pace_is_usual_that_of_an_import_is() -> None:
    here, key = Environment.current(CPU), ("relu", "f32[8]")
    with LatencyDatabase(":memory:") as ours, LatencyDatabase(":memory:") as theirs:
        usual_pace(Told(repeat(USUAL)), here, theirs)
        theirs.put(here, *key, Latency(2.0, 1.0, 3.0, 9, 0))
        assert ours.merge(theirs.export()) == 3
        assert ours.rows() == theirs.rows()
        assert ours.merge(theirs.export()) == 1
        assert ours.rows() == theirs.rows()


def test_an_import_with_a_pace_that_cannot_be_is_refused() -> None:
    here, zero = Environment.current(CPU), Latency(0.0, 0.0, 0.0, 1, 0)
    with LatencyDatabase(":memory:") as ours, LatencyDatabase(":memory:") as theirs:
        theirs.put_first(here, dict.fromkeys(KEYS, zero), LatencyKind.PACE)
        with pytest.raises(TasoError, match="no export of latencies"):
            ours.merge(theirs.export())


def test_a_real_pacer_reads_what_can_be_divided_by() -> None:
    pace = Pacer().read()
    assert pace.product_s > 0
    assert pace.call_s > 0
