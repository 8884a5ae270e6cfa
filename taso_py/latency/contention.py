"""Whether a process had its processor cores to itself while it timed something, by what the system counted meanwhile.

Two threads on two cores of which another program holds one take ten times as long as one thread does: a parallel call
ends when its last thread is done. No statistics over such times finds the true one, so the reasons to doubt them are
looked for where the system keeps them: how much processor time other programs had, how long our own threads waited for
a core, what a hypervisor took, and where a limit of the control group was reached. Before anything is timed there may
be nothing to look back on; a spin of known work on each core tells then.

Invariant: everything is read through a `System`, so that tests give their own counters; what a system does not count is
None, which is no reason to doubt anything.
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
"""Counters of processor time go by hundredths of a second; over less time than this they show nothing."""
OTHERS = 0.15
"""Cores that other programs may use beyond those that we leave free: a system at rest uses some hundredths."""
WAITING = 0.05
"""Share of the time that our threads may wait for a core, one after the other."""
STOLEN, THROTTLED = 0.03, 0.01
"""Share of the time that a hypervisor may take from a core, and that a limit may stop us."""
DELAY = 1.5
"""How many times as long as its own processor time a spin takes on a core that another program holds."""
UNEQUAL = 3.0
"""How many times as long as on the fastest core a spin takes where something hidden holds a core: more than cores of
different kinds differ by."""
SPIN_ROUNDS = 20_000
"""About six milliseconds: a scheduler lets a thread that has just begun run for a shorter time undisturbed."""
SPIN_PAUSE_S = 0.25
"""Between two tries: longer than idle threads of a parallel runtime wait actively."""
HEAVY = 0.5
"""Cores that are lost where times are wrong by factors."""
MOST_SPINS = 16
"""How many cores a spin is tried on at most."""
ADVICE = "run it again when the machine is quiet"


@dataclass(frozen=True)
class Spin:
    """A fixed piece of work on one core."""

    wall_s: float
    own_s: float
    """The processor time that it took."""


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError):
        return ""


def _waits() -> Sequence[str]:
    """What Linux tells of the scheduling of each thread of this process: nanoseconds run, nanoseconds waited, turns."""
    with suppress(OSError):
        return [_read(f"/proc/self/task/{thread}/schedstat") for thread in os.listdir("/proc/self/task")]
    return []


def _own_seconds() -> float:
    """Processor time of this process and of its children that have ended."""
    times = os.times()
    return time.process_time() + times.children_user + times.children_system


def _cores() -> frozenset[int]:
    """The cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def _load() -> float | None:
    """How many threads wanted a core in the last minute, on average."""
    with suppress(OSError, AttributeError):
        return os.getloadavg()[0]
    return None


def _spins(cores: Sequence[int]) -> Mapping[int, Spin]:
    """Spins on cores, on all of them at once, each by a thread that ends with it."""
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
    """Where everything is read."""

    read: Callable[[str], str] = _read
    """The text of a file, empty if there is none."""
    waits: Callable[[], Sequence[str]] = _waits
    now: Callable[[], float] = time.perf_counter
    own_s: Callable[[], float] = _own_seconds
    cores: Callable[[], frozenset[int]] = _cores
    load: Callable[[], float | None] = _load
    spins: Callable[[Sequence[int]], Mapping[int, Spin]] = _spins
    threads: Callable[[], int] = torch.get_num_threads
    sleep: Callable[[float], None] = time.sleep

    def counters(self) -> Counters:
        """What has been counted up to now."""
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
            self.now(), self.own_s(), busy, stolen, sum(waits) * 1e-9 if waits else None, self._throttled_s()
        )

    def quota(self) -> float | None:
        """How many cores the control group lets this process use, if it says so."""
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
    """What a system has counted up to a moment, in seconds; None for what it does not count."""

    at_s: float
    own_s: float
    """Processor time of this process."""
    busy_s: float | None
    """Processor time of all programs, on the cores that this process may use."""
    stolen_s: float | None
    """Time for which a hypervisor had these cores run something else."""
    waiting_s: float | None
    """Time that threads of this process wanted a core and had none."""
    throttled_s: float | None
    """Time for which the control group's limit stopped this process."""


@dataclass(frozen=True)
class Contention:
    """What a process had of its cores for a while; None for what is not known."""

    seconds: float = 0.0
    cores: float = 1.0
    """How many there are for this process."""
    threads: int = 1
    """How many threads PyTorch computes with."""
    others: float | None = None
    """How many of the cores other programs kept busy, on average."""
    waiting: float | None = None
    """How many of our threads waited for a core, on average."""
    stolen: float | None = None
    """How many of the cores a hypervisor took, on average."""
    throttled: float | None = None
    """For which share of the time a limit stopped the process."""
    delayed: tuple[int, ...] = ()
    """The cores on which a spin took far longer than it should."""

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why times that were taken meanwhile are doubtful, in words; empty on a quiet machine."""
        return tuple(self._found())

    @property
    def text(self) -> str:
        """The reasons together."""
        *most, last = self.reasons or ("",)
        return f"{', '.join(most)} and {last}" if most else last

    @property
    def is_quiet(self) -> bool:
        """Whether there is no reason to doubt the times."""
        return not self.reasons

    @property
    def is_heavy(self) -> bool:
        """Whether so much was taken that times are wrong by factors."""
        lost = (self.threads + (self.others or 0.0) - max(self.cores, self.threads), self.waiting or 0.0)
        return bool(self.delayed) or max(lost) > HEAVY or (self.stolen or 0.0) > HEAVY * self.cores

    @property
    def advice(self) -> str:
        """What to do for times that can be believed: fewer threads where that helps."""
        free = max(1, int(self.cores - (self.others or 0.0) - (self.stolen or 0.0) + OTHERS))
        if self.is_quiet or free >= self.threads:
            return ADVICE
        return (
            f"{ADVICE}, or let PyTorch use {free} thread{'s' if free > 1 else ''} (OMP_NUM_THREADS={free} in front of "
            f"the command, or torch.set_num_threads({free}))"
        )

    def as_dict(self) -> dict[str, float | int | list[str] | None]:
        """The figures and what they mean, for JSON."""
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
"""Where nothing was looked at."""


HERE = System()
"""This machine."""


class Watch:
    """Tells what a process had of its cores since the watch was made."""

    def __init__(self, device: torch.device | str = "cpu", system: System | None = None) -> None:
        """Begin.

        Args:
            device: where is computed; a GPU needs one thread, which launches its kernels.
            system: where to read, this machine by default.
        """
        self._system = system or HERE
        self._is_parallel = torch.device(device).type == "cpu"
        self._before = self._system.counters()

    def contention(self, *, spins: bool = False) -> Contention:
        """What happened up to now.

        Args:
            spins: whether to try each core too, which takes some milliseconds on a quiet machine.
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
        """The cores that something else holds: those on which spins take too long twice, some time apart."""
        found = _slow(self._system.spins(cores))
        if found:
            self._system.sleep(SPIN_PAUSE_S)  # threads of our own may have been spinning still, waiting for work
            found &= _slow(self._system.spins(cores))
        return tuple(sorted(found))


def _rate(before: float | None, after: float | None, seconds: float, own: float = 0.0) -> float | None:
    """The growth of a counter a second, without our own part; None where there is none to read."""
    return None if before is None or after is None else max(0.0, after - before - own) / seconds


def _slow(spins: Mapping[int, Spin]) -> set[int]:
    """The cores on which a spin took too long."""
    least = min((spin.wall_s for spin in spins.values()), default=0.0)
    return {c for c, spin in spins.items() if spin.wall_s > min(DELAY * spin.own_s, UNEQUAL * least)}
