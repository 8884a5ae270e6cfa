"""Races between contestants in separate processes, each built several times.

Two sessions of one graph differ by up to a third in one process, depending on where their weights and buffers lie in
memory and on state that other engines left in the process. So each contestant has a process in which nothing else runs,
and is built anew for every heat unless it is far behind. A ratio is that of two contestants in a heat; its interval is
over heats.

Invariant: a contestant's threads are asleep before another one's turn begins.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from statistics import geometric_mean, median
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

import torch

from taso_py.executors import end_with_parent
from taso_py.ir.errors import TasoError
from taso_py.judging.timing import CONFIDENCE, MIN_ROUNDS, Race, RaceStop, race
from taso_py.latency.clock import CpuClock, Timer
from taso_py.latency.idle import wait_until_idle

T = TypeVar("T")
Make: TypeAlias = Callable[[], Callable[[], object]]
"""Builds a callable; it is sent to the process, so that it consists of module-level functions and of plain data."""
HEATS = MIN_ROUNDS
"""Number of builds of each contestant; the interval of a median over so many is their range. Where that does not decide
there are as many again."""
TWICE = 0.98
"""Confidence of intervals over twice as many builds: they miss in 0.6% of all cases, and those over the first in 3.1%,
which are within 5% together."""
PRELOADED = ("experiments.deployed",)
"""Modules that contestants' processes share with the server that they are forked from: importing PyTorch takes as long
as building a model."""
NEAR = 1.25
"""A relative of a contestant is raced if that contestant takes at most this many times as long as the fastest. In 46
rows of ``end_to_end`` on two processors another form of Inductor was at most 1.13 times as fast as ``max-autotune``."""
FAR = 1.4
"""A contestant that takes more than this many times as long as the fastest in the first heat keeps that build: builds
of one contestant differ by up to a third, and those that are far behind are mostly those that take minutes to build."""
SHIFT_BYTES = 1 << 20
"""Memory that is allocated for good before the build of the last heat, proportionally less before earlier ones, so that
each build has other addresses."""


@dataclass
class _Here:
    """State of a contestant's process."""

    timer: Timer | None = None
    shifts: list[bytearray] = field(default_factory=list[bytearray])


_HERE = _Here()


def _begin(threads: int) -> None:
    """Set a process up like the one that started it."""
    end_with_parent()
    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)


def _build(make: Make, heat: int) -> None:
    """Build a contestant in its process after releasing its earlier build, and call it once."""
    _HERE.timer = None
    _HERE.shifts.append(bytearray(SHIFT_BYTES * heat // HEATS))
    call = make()
    call()
    _HERE.timer = CpuClock().bind(call)
    wait_until_idle()


def _time(repeats: int) -> float:
    """Return the seconds of this many calls in a contestant's process; its threads are asleep afterwards."""
    assert _HERE.timer is not None, "built before"
    seconds = _HERE.timer(repeats)
    wait_until_idle()
    return seconds


@dataclass
class ContestantProcess:
    """A process in which one way to compute a model runs; calling it computes the model once."""

    make: Make
    pool: ProcessPoolExecutor

    def build(self, heat: int) -> None:
        """Build the contestant anew.

        Raises:
            TasoError: it cannot be built, or the system ended its process.
        """
        try:
            self.pool.submit(_build, self.make, heat).result()
        except BrokenProcessPool as error:
            raise TasoError("its process was ended from outside, as happens when memory is used up") from error

    def time(self, repeats: int) -> float:
        """Return the seconds that this many calls take there."""
        return self.pool.submit(_time, repeats).result()

    def end(self, *, wait: bool = True) -> None:
        """End the process; without waiting it ends a little later."""
        self.pool.shutdown(wait=wait)

    def __call__(self) -> object:
        """Compute the model once."""
        return self.time(1)


class _ThereClock(CpuClock):
    """Times contestants in their processes."""

    def bind(self, fn: Callable[[], object]) -> Timer:
        assert isinstance(fn, ContestantProcess), "nothing else is raced here"
        return fn.time


@contextmanager
def _started(makes: Mapping[str, Make]) -> Generator[dict[str, ContestantProcess]]:
    """Start contestants, each in a process that ends with the block."""
    with ExitStack() as stack:
        yield {name: ContestantProcess(make, stack.enter_context(_process())) for name, make in makes.items()}


def _process() -> ProcessPoolExecutor:
    """Return a process that is set up like this one; it starts with its first task."""
    context, threads = multiprocessing.get_context("forkserver"), torch.get_num_threads()
    context.set_forkserver_preload(list(PRELOADED))
    return ProcessPoolExecutor(1, context, initializer=_begin, initargs=(threads,))


def in_own_process(function: Callable[..., T], *arguments: Any) -> T:
    """Return what a module-level function returns in a process that ends afterwards, whose memory is free then."""
    with _process() as pool:
        return pool.submit(function, *arguments).result()


@dataclass(frozen=True)
class Contest:
    """The results of all heats."""

    race: Race
    """Its rounds are the heats, each with a contestant's typical time."""
    missing: Mapping[str, str]
    """Reasons why contestants are missing, by name."""
    beside: float
    """Latency of the fastest in a heat over its latency when no other process is left."""


def contest(
    makes: Mapping[str, Make],
    *,
    seconds: float,
    seed: int = 0,
    heats: int = HEATS,
    relatives: Mapping[str, str] = MappingProxyType({}),
    is_decided: Callable[[Race], bool] = lambda _: True,
) -> Contest:
    """Race contestants in heats, for each of which all but those far behind are built anew.

    Args:
        makes: their builders by name, the baseline first.
        seconds: time for so many heats together, without building.
        seed: seed of the order of turns.
        heats: the number of heats, or half of it.
        relatives: contestants that are built only if another one, the value, is within ``NEAR`` of the fastest in a
            heat that does not count, or cannot be built.
        is_decided: returns whether so many heats suffice; otherwise there are as many again.

    Raises:
        TasoError: the baseline cannot be built.
    """
    found: dict[str, list[float]] = {}
    missing: dict[str, str] = {}
    with _started(makes) as running:
        if relatives:
            missing |= _leave_out_relatives(running, relatives, seconds / heats, seed)
        far: set[str] = set()
        heat, planned = 0, heats
        while heat < planned:
            missing |= _build_all(running, heat, but=far)
            middles = _heat(running, seconds / heats, seed + heat)
            for name, middle in middles.items():
                found.setdefault(name, []).append(middle)
            if heat == 0:
                far = {name for name, middle in middles.items() if middle > FAR * min(middles.values())}
            heat += 1
            if heat == heats and not is_decided(_raced(found, running)):
                planned *= 2
        held = _raced(found, running, CONFIDENCE if planned == heats else TWICE)
        times = held.times
        fastest = min(times, key=lambda name: times[name][-1])
        others = [contestant for name, contestant in running.items() if name != fastest]
        for wait in (False, True):  # all end at once, and have ended before the fastest is timed alone
            for contestant in others:
                contestant.end(wait=wait)
        alone = _heat({fastest: running[fastest]}, seconds / heats, seed)[fastest]
    return Contest(held, missing, times[fastest][-1] / alone)


def _raced(found: Mapping[str, Sequence[float]], running: Collection[str], confidence: float = CONFIDENCE) -> Race:
    """Return the heats so far as a race of those that are still running."""
    return Race({name: tuple(found[name]) for name in running}, RaceStop.ROUNDS, confidence)


def _build_all(running: dict[str, ContestantProcess], heat: int, but: Collection[str] = frozenset()) -> dict[str, str]:
    """Build contestants anew, but for some; those that cannot be built are removed, and their reasons returned.

    Raises:
        TasoError: the first, which is the baseline, cannot be built.
    """
    missing: dict[str, str] = {}
    baseline = next(iter(running))
    for name, contestant in [item for item in running.items() if item[0] not in but]:
        try:
            contestant.build(heat)
        except TasoError as error:
            if name == baseline:
                raise
            missing[name] = str(error)
            running.pop(name).end()
    return missing


def _leave_out_relatives(
    running: dict[str, ContestantProcess], relatives: Mapping[str, str], seconds: float, seed: int
) -> Mapping[str, str]:
    """Remove contestants whose relative is far behind, and those that cannot be built; return the reasons."""
    missing = _build_all(running, 0, but=relatives)
    times = _heat({name: running[name] for name in running if name not in relatives}, seconds, seed)
    fastest = min(times.values())
    for name, relative in relatives.items():
        if relative in times and times[relative] > NEAR * fastest:
            behind = times[relative] / fastest
            missing[name] = f"not built, since {relative} takes {behind:.2f} times as long as the fastest"
            running.pop(name).end()
    return missing


def _heat(running: Mapping[str, ContestantProcess], seconds: float, seed: int) -> Mapping[str, float]:
    """Return each contestant's typical time in a heat, such that ratios between any two of them are paired by round."""
    clock = _ThereClock()
    held = race(
        running,
        device="cpu",
        seconds=seconds,
        clock=clock,
        seed=seed,
        until_clear=False,
        least=3,
        settle=wait_until_idle,
    )
    if held.stop is RaceStop.INTERRUPTED:
        raise KeyboardInterrupt
    paces = [geometric_mean(round_) for round_ in zip(*held.times.values(), strict=True)]
    pace = median(paces)
    return {
        name: pace * median(seconds / beside for seconds, beside in zip(times, paces, strict=True))
        for name, times in held.times.items()
    }
