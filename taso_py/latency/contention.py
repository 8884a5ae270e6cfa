"""Contention for processor cores during a measurement, from the system's counters.

Two threads on two cores of which another program holds one take ten times as long as one thread does: a parallel call
ends when its last thread is done. No statistics over such times finds the true one, so reasons to doubt them are taken
from the system's counters: how much processor time other programs had, how long our own threads waited for a core, how
much a hypervisor took, and whether a limit of the control group was reached. Before anything is timed there may be no
history; then a spin of known work on each core is tried.

Invariant: everything is read through a `System`, so that tests give their own counters; counters that a system does not
have are None, which is no reason to doubt anything.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch

SHORTEST_S = 0.25
"""The shortest useful interval: counters of processor time advance by hundredths of a second."""
OTHERS = 0.15
"""Cores that other programs may use in addition to those we leave free: an idle system uses some hundredths."""
WAITING = 0.05
"""The share of time that our threads may wait for a core, summed over threads."""
STOLEN, THROTTLED = 0.03, 0.01
"""The share of time that a hypervisor may take from a core, and that a cgroup limit may stop us."""
DELAY = 1.5
"""A spin's wall-clock time over its processor time, beyond which another program holds the core."""
UNEQUAL = 3.0
"""A spin's time relative to the fastest core, beyond which something hidden holds the core: more than cores of
different kinds differ by."""
SPIN_ROUNDS = 20_000
"""Rounds of a spin, about six milliseconds: schedulers let a new thread run undisturbed for a shorter time."""
SPIN_PAUSE_S = 0.25
"""The pause between two spins: longer than idle threads of a parallel runtime spin."""
HEAVY = 0.5
"""The number of lost cores from which on times are wrong by factors."""
MOST_SPINS = 16
"""The most cores that are tried with a spin."""
ADVICE = "run it again when the machine is quiet"


@dataclass(frozen=True)
class Spin:
    """A fixed piece of work on one core."""

    wall_s: float
    own_s: float
    """Its processor time."""


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError):
        return ""


def _waits() -> Sequence[str]:
    """Return Linux's scheduling statistics of this process's threads: nanoseconds run, nanoseconds waited, turns."""
    with suppress(OSError):
        return [_read(f"/proc/self/task/{thread}/schedstat") for thread in os.listdir("/proc/self/task")]
    return []


def _own_seconds() -> float:
    """Return the processor time of this process and of its children that have ended."""
    times = os.times()
    return time.process_time() + times.children_user + times.children_system


def _cores() -> frozenset[int]:
    """Return the cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def _load() -> float | None:
    """Return the average number of threads that wanted a core in the last minute."""
    with suppress(OSError, AttributeError):
        return os.getloadavg()[0]
    return None


def _spins(cores: Sequence[int]) -> Mapping[int, Spin]:
    """Spin on several cores at once, each in a thread of its own."""
    found: dict[int, Spin] = {}

    def spin(core: int) -> None:
        with suppress(OSError, AttributeError):
            os.sched_setaffinity(0, {core})  # that of this thread alone
            wall, own = time.perf_counter(), time.thread_time()
            hashlib.pbkdf2_hmac("sha256", b"spin", b"", SPIN_ROUNDS)  # lets go of the interpreter's lock
            found[core] = Spin(time.perf_counter() - wall, time.thread_time() - own)

    threads = [threading.Thread(target=spin, args=(core,), daemon=True) for core in cores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@dataclass(frozen=True)
class System:
    """The functions through which the system is read."""

    read: Callable[[str], str] = _read
    """Returns the text of a file, empty if there is none."""
    waits: Callable[[], Sequence[str]] = _waits
    now: Callable[[], float] = time.perf_counter
    own_s: Callable[[], float] = _own_seconds
    cores: Callable[[], frozenset[int]] = _cores
    load: Callable[[], float | None] = _load
    spins: Callable[[Sequence[int]], Mapping[int, Spin]] = _spins
    threads: Callable[[], int] = torch.get_num_threads
    sleep: Callable[[float], None] = time.sleep

    def counters(self) -> Counters:
        """Return the present state of the system's counters."""
        cores = self.cores()
        lines = [line.split() for line in self.read("/proc/stat").splitlines()]
        ours = [list(map(int, line[1:9])) for line in lines if line and line[0] in {f"cpu{core}" for core in cores}]
        busy, stolen = None, None
        if ours and all(len(ticks) == 8 for ticks in ours):
            # user, nice, system, idle, iowait, irq, softirq, steal: proc_stat(5)
            busy = sum(sum(ticks[:3]) + sum(ticks[5:7]) for ticks in ours) * TICK_S
            stolen = sum(ticks[7] for ticks in ours) * TICK_S
        waits = [int(text.split()[1]) for text in self.waits() if len(text.split()) == 3]
        return Counters(
            self.now(),
            self.own_s(),
            busy,
            stolen_s=stolen,
            waiting_s=sum(waits) * 1e-9 if waits else None,
            throttled_s=self._throttled_s(),
        )

    def quota(self) -> float | None:
        """Return the number of cores that the control group allows this process, None if there is no limit."""
        two = self.read("/sys/fs/cgroup/cpu.max").split()
        one = [self.read(f"/sys/fs/cgroup/cpu/cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
        for quota, period in (two, one) if len(two) == 2 else (one,):
            if quota.isdecimal() and period.isdecimal() and int(period):
                return int(quota) / int(period)
        return None

    def _throttled_s(self) -> float | None:
        for path, name, unit_s in (("cpu.stat", "throttled_usec", 1e-6), ("cpu/cpu.stat", "throttled_time", 1e-9)):
            for line in self.read(f"/sys/fs/cgroup/{path}").splitlines():
                if line.startswith(f"{name} "):
                    return int(line.split()[1]) * unit_s
        return None


TICK_S = 1 / os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 0.01
"""The unit of the kernel's counters."""


@dataclass(frozen=True)
class Counters:
    """The state of a system's counters at a moment, in seconds; None for those that the system does not have."""

    at_s: float
    own_s: float
    """Processor time of this process."""
    busy_s: float | None
    """Processor time of all programs, on the cores that this process may use."""
    stolen_s: float | None
    """Time during which a hypervisor ran something else on these cores."""
    waiting_s: float | None
    """Time that threads of this process waited for a core."""
    throttled_s: float | None
    """Time during which the control group's limit stopped this process."""


@dataclass(frozen=True)
class Contention:
    """The contention for a process's cores during some time; None for unknown figures."""

    seconds: float = 0.0
    cores: float = 1.0
    """The number of cores available to this process."""
    threads: int = 1
    """The number of threads that PyTorch computes with."""
    others: float | None = None
    """The average number of cores that other programs kept busy."""
    waiting: float | None = None
    """The average number of our threads that waited for a core."""
    stolen: float | None = None
    """The average number of cores that a hypervisor took."""
    throttled: float | None = None
    """The share of time that a limit stopped the process."""
    delayed: tuple[int, ...] = ()
    """The cores on which a spin took far longer than it should."""

    @property
    def reasons(self) -> tuple[str, ...]:
        """The reasons to doubt times measured meanwhile, in words; empty on a quiet machine."""
        return tuple(self._found())

    @property
    def text(self) -> str:
        """The reasons as one text."""
        *most, last = self.reasons or ("",)
        return f"{', '.join(most)} and {last}" if most else last

    @property
    def is_quiet(self) -> bool:
        """True if there is no reason to doubt the times."""
        return not self.reasons

    @property
    def is_heavy(self) -> bool:
        """True if so much was taken that times are wrong by factors."""
        lost = (self.threads + (self.others or 0.0) - max(self.cores, self.threads), self.waiting or 0.0)
        return bool(self.delayed) or max(lost) > HEAVY or (self.stolen or 0.0) > HEAVY * self.cores

    @property
    def advice(self) -> str:
        """Advice on how to get reliable times: with fewer threads if that helps."""
        free = max(1, int(self.cores - (self.others or 0.0) - (self.stolen or 0.0) + OTHERS))
        if self.is_quiet or free >= self.threads:
            return ADVICE
        return (
            f"{ADVICE}, or let PyTorch use {free} thread{'s' if free > 1 else ''} (OMP_NUM_THREADS={free} in front of "
            f"the command, or torch.set_num_threads({free}))"
        )

    def as_dict(self) -> dict[str, float | int | list[str] | None]:
        """Return the figures and the reasons, for JSON."""
        return {
            "seconds": self.seconds,
            "cores": self.cores,
            "threads": self.threads,
            "others": self.others,
            "waiting": self.waiting,
            "stolen": self.stolen,
            "throttled": self.throttled,
            "reasons": list(self.reasons),
        }

    def _found(self) -> Iterator[str]:
        cores = f"{self.cores:g} core{'' if self.cores == 1 else 's'}"
        spare = max(0.0, self.cores - self.threads)
        if self.threads > self.cores + OTHERS:
            yield f"PyTorch computes with {self.threads} threads on {cores}"
        if self.others is not None and self.others > spare + OTHERS:
            yield f"other programs kept {self.others:.1f} of {cores} busy"
        if self.stolen is not None and self.stolen > STOLEN * self.cores:
            yield f"the host of this virtual machine took {self.stolen / self.cores:.0%} of its cores' time"
        if self.throttled is not None and self.throttled > THROTTLED:
            yield f"the limit of this container stopped the process for {self.throttled:.0%} of the time"
        if self.delayed:
            listed = ", ".join(map(str, self.delayed))
            yield f"something else runs on core{'s' if len(self.delayed) > 1 else ''} {listed}"
        if self.waiting is not None and self.waiting > WAITING:
            yield f"{self.waiting:.1f} threads of this process waited for a core on average"


NOTHING = Contention()
"""No information about contention."""


HERE = System()
"""This machine."""


class Watch:
    """Observer of the contention for this process's cores, from its creation on."""

    def __init__(self, device: torch.device | str = "cpu", system: System | None = None) -> None:
        """Begin to observe.

        Args:
            device: the device that computes; a GPU needs one thread, which launches its kernels.
            system: the system to read, by default this machine.
        """
        self._system = system or HERE
        self._is_parallel = torch.device(device).type == "cpu"
        self._before = self._system.counters()

    def contention(self, *, spins: bool = False) -> Contention:
        """Return the contention from the beginning until now.

        Args:
            spins: true to try each core with a spin too, which takes some milliseconds on a quiet machine.
        """
        system, before, after = self._system, self._before, self._system.counters()
        seconds, own = after.at_s - before.at_s, after.own_s - before.own_s
        cores, quota = sorted(system.cores()), system.quota()
        threads = system.threads() if self._is_parallel else 1
        delayed = self._delayed(cores[:MOST_SPINS]) if spins and threads > 1 else ()
        known = Contention(
            seconds=seconds,
            cores=len(cores) if quota is None else min(len(cores), quota),
            threads=threads,
            delayed=delayed,
        )
        if seconds < SHORTEST_S:
            return known
        others = _rate(before.busy_s, after.busy_s, seconds, own)
        if others is None and (load := system.load()) is not None:
            others = max(0.0, load - own / seconds)
        return replace(
            known,
            others=others,
            waiting=_rate(before.waiting_s, after.waiting_s, seconds),
            stolen=_rate(before.stolen_s, after.stolen_s, seconds),
            throttled=_rate(before.throttled_s, after.throttled_s, seconds),
        )

    def _delayed(self, cores: Sequence[int]) -> tuple[int, ...]:
        """Return the cores on which spins take too long twice, some time apart, because something else holds them."""
        found = _slow(self._system.spins(cores))
        if found:
            self._system.sleep(SPIN_PAUSE_S)  # threads of our own may have been spinning still, waiting for work
            found &= _slow(self._system.spins(cores))
        return tuple(sorted(found))


def _rate(before: float | None, after: float | None, seconds: float, own: float = 0.0) -> float | None:
    """Return the growth of a counter per second, minus our own part; None if it cannot be read."""
    return None if before is None or after is None else max(0.0, after - before - own) / seconds


def _slow(spins: Mapping[int, Spin]) -> set[int]:
    """Return the cores on which a spin took too long."""
    least = min((spin.wall_s for spin in spins.values()), default=0.0)
    return {c for c, spin in spins.items() if spin.wall_s > min(DELAY * spin.own_s, UNEQUAL * least)}
