"""Contention is told from what a system counts; every machine here is invented."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest

from taso_py.latency.contention import ADVICE, Contention, Spin, System, Watch

CALM, TORN = Spin(0.006, 0.006), Spin(0.060, 0.006)


@dataclass
class Machine:
    """Two cores of a machine that has four, whose counters go as they are told."""

    others: float = 0.0
    own: float = 0.0
    stolen: float = 0.0
    waiting: float = 0.0
    throttled: float = 0.0
    threads: int = 2
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    spins: Sequence[Mapping[int, Spin]] = ()
    time: float = 100.0
    slept: float = 0.0

    def read(self, path: str) -> str:
        if path == "/proc/stat":
            busy = 50.0 + (self.others + self.own) * (self.time - 100)
            one = [busy / 2 * 100, 0, 0, 7000, 9, 0, 0, 3 + self.stolen / 2 * (self.time - 100) * 100, 0, 0]
            ticks = " ".join(str(round(tick)) for tick in one)
            return f"cpu 1 2 3\ncpu0 {ticks}\ncpu1 {ticks}\ncpu2 9{ticks}\nintr 1 2\n"
        if path == "/sys/fs/cgroup/cpu.stat":
            return f"usage_usec 7\nthrottled_usec {round(self.throttled * (self.time - 100) * 1e6)}\n"
        return self.files.get(path, "")

    def tries(self, cores: Sequence[int]) -> Mapping[int, Spin]:
        found, *rest = self.spins
        self.spins = rest
        return {core: found[core] for core in cores}

    def system(self) -> System:
        return System(
            read=self.read,
            waits=lambda: [f"5 {round(self.waiting * (self.time - 100) * 1e9)} 3\n", "not counted"],
            now=lambda: self.time,
            own_s=lambda: 7.0 + self.own * (self.time - 100),
            cores=lambda: frozenset({0, 1}),
            load=lambda: None,
            spins=self.tries,
            threads=lambda: self.threads,
            sleep=self.sleep,
        )

    def sleep(self, seconds: float) -> None:
        self.slept += seconds

    def after(self, seconds: float = 10.0, *, spins: bool = False, device: str = "cpu") -> Contention:
        watch = Watch(device, self.system())
        self.time += seconds
        return watch.contention(spins=spins)


def test_a_quiet_machine_gives_no_reason() -> None:
    """Neither does one whose cores we keep busy ourselves, nor one where others use what we leave free."""
    for machine in (Machine(), Machine(own=2.0, others=0.05), Machine(own=1.0, others=0.9, threads=1)):
        found = machine.after()
        assert found.reasons == ()
        assert found.is_quiet
        assert not found.is_heavy
        assert found.advice == ADVICE
    assert Machine(others=2.0, own=0.1).after(device="cuda").reasons, "one core has to be free that launches"
    assert Machine(others=0.9).after(device="cuda").is_quiet


@pytest.mark.parametrize(
    ("machine", "reason", "threads"),
    [
        (Machine(others=1.0, own=1.0), "other programs kept 1.0 of 2 cores busy", 1),
        (Machine(others=0.3), "other programs kept 0.3 of 2 cores busy", 1),
        (Machine(others=1.9, threads=1), "other programs kept 1.9 of 2 cores busy", None),
        (Machine(stolen=0.5), "the host of this virtual machine took 25% of its cores' time", 1),
        (Machine(throttled=0.2), "the limit of this container stopped the process for 20% of the time", None),
        (Machine(waiting=0.8), "0.8 threads of this process waited for a core on average", None),
        (Machine(threads=8), "PyTorch computes with 8 threads on 2 cores", 2),
    ],
)
def test_what_takes_cores_is_a_reason_and_fewer_threads_are_proposed(
    machine: Machine, reason: str, threads: int | None
) -> None:
    found = machine.after()
    assert found.reasons == (reason,)
    assert not found.is_quiet
    assert found.advice.startswith(ADVICE)
    assert ("torch.set_num_threads" in found.advice) == (threads is not None)
    assert threads is None or f"torch.set_num_threads({threads})" in found.advice
    assert found.as_dict()["reasons"] == [reason]


def test_what_takes_much_makes_times_wrong_by_factors() -> None:
    assert Machine(others=1.0).after().is_heavy
    assert Machine(waiting=0.8).after().is_heavy
    assert not Machine(others=0.3).after().is_heavy
    assert not Machine(others=1.0, threads=1).after().is_heavy


def test_a_limit_of_the_container_is_fewer_cores() -> None:
    for files in (
        {"/sys/fs/cgroup/cpu.max": "100000 100000\n"},
        {"/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "50000\n", "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "50000\n"},
    ):
        assert Machine(files=files).after().reasons == ("PyTorch computes with 2 threads on 1 core",)
    for files in (
        {"/sys/fs/cgroup/cpu.max": "max 100000\n"},
        {"/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n", "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"},
    ):
        assert Machine(files=files).after().is_quiet


def test_over_a_short_time_counters_show_nothing() -> None:
    found = Machine(others=2.0, waiting=1.0, stolen=1.0).after(0.1)
    assert (found.others, found.waiting, found.stolen) == (None, None, None)
    assert found.is_quiet


def test_what_is_not_counted_is_no_reason() -> None:
    machine = Machine()
    unknown = replace(machine.system(), read=lambda _: "", waits=lambda: ())
    watch = Watch("cpu", unknown)
    machine.time += 10
    assert watch.contention() == Contention(seconds=10.0, cores=2, threads=2)
    loaded = Watch("cpu", replace(unknown, load=lambda: 1.5))
    machine.time += 10
    assert loaded.contention().others == 1.5


def test_a_spin_tells_at_once() -> None:
    quiet, torn = {0: CALM, 1: CALM}, {0: CALM, 1: TORN}
    found = Machine(spins=[torn, torn]).after(0.0, spins=True)
    assert found.reasons == ("something else runs on core 1",)
    assert found.is_heavy
    hidden = {0: CALM, 1: Spin(0.060, 0.060)}
    assert Machine(spins=[hidden, hidden]).after(0.0, spins=True).delayed == (1,), "a hypervisor does not show"
    # A core that was held at one moment only, a slower kind of core, and a machine at rest, of which nobody waits.
    passing, slower = Machine(spins=[torn, quiet]), Machine(spins=[{0: CALM, 1: Spin(0.012, 0.012)}])
    assert passing.after(0.0, spins=True).is_quiet
    assert slower.after(0.0, spins=True).is_quiet
    calm = Machine(spins=[quiet])
    assert calm.after(0.0, spins=True).is_quiet
    assert calm.slept == slower.slept == 0.0 < passing.slept
    # One thread needs one core, whatever the others do.
    assert Machine(threads=1).after(0.0, spins=True).is_quiet


def test_this_machine_can_be_read() -> None:
    watch = Watch("cpu", System())
    found = watch.contention(spins=True)
    assert found.cores > 0
    assert found.threads >= 1
    assert found.others is None, "the time was short"
