"""The roofline of a device: upper bounds on its performance, measured rather than taken from a data sheet.

Three ceilings bound the time of a call from below: its operations over the device's peak (the best large matrix
product), its bytes over the bandwidth of the memory that its data fits in (copy, sum and triad, after STREAM: McCalpin
1995), and the cost of a call that does next to nothing. The first two are the roofline of Williams, Waterman and
Patterson (CACM 2009), with a roof per level of memory (Ilic, Pratas and Sousa 2014).

Invariant: ceilings are stored in the latency database, under the environment in which they were measured, and are
measured once, on an idle machine; the same inputs always give the same keys.
"""

from __future__ import annotations

import enum
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from pathlib import Path

import torch
from torch import Tensor

from taso_py.backend.random_tensors import uniform
from taso_py.backend.tensors import TORCH_DTYPES
from taso_py.ir.errors import first_line
from taso_py.ir.types import DType
from taso_py.latency.clock import Latency, TimingError
from taso_py.latency.database import LatencyDatabase
from taso_py.latency.environment import Environment, float32_precision, resolve_device
from taso_py.latency.measuring import Measuring
from taso_py.latency.schema import LatencyKind
from taso_py.ops.work import Work
from taso_py.progress import progress_bar

PEAK_DTYPES = (DType.F16, DType.BF16, DType.F32, DType.F64)
"""The element types in which matrix products are measured."""
MIB = 2**20
CPU_SETS = (MIB // 4, 2 * MIB, 16 * MIB, 128 * MIB)
"""Bytes of the working sets for a processor's cache levels; memory itself comes after these."""
GPU_SETS = (16 * MIB,)
BEYOND = 4
"""The working set that shows the bandwidth of memory, as a multiple of the largest cache."""
LEAST_BEYOND, MOST_BEYOND = 256 * MIB, 1024 * MIB
MEMORY_SHARE = 8
"""The largest working set, as one part in so many of the machine's memory."""
BUDGET_S = 0.15
"""The longest time for one attempt at a measurement, unless four calls take longer."""

_log = logging.getLogger(__name__)


class Bound(enum.Enum):
    """The resource that limits a call."""

    COMPUTE = "compute"
    MEMORY = "memory"
    OVERHEAD = "overhead"


@dataclass(frozen=True)
class MemoryLevel:
    """A level of the memory hierarchy."""

    size: int
    """The largest working set in bytes that fits in it."""
    bandwidth: float
    """Bytes per second, read and written."""


@dataclass(frozen=True)
class Ceiling:
    """A lower bound on the time of some work, and the resource that sets it."""

    bound: Bound
    seconds: float


@dataclass(frozen=True)
class Roofline:
    """The roofline of a device."""

    peaks: Mapping[DType, float]
    """Operations per second by element type, a fused multiply-add being two."""
    levels: tuple[MemoryLevel, ...]
    """The levels from the smallest and fastest to memory itself; at least one."""
    dispatch_s: float
    """The seconds of a call that computes one element."""
    convolution_peak: float | None = None
    """The peak of convolutions in single precision, if there are any and settings give them another precision than
    products."""

    def peak(self, dtype: DType, *, convolves: bool) -> float | None:
        """Return the peak operations per second of products or convolutions; None if it was not measured."""
        return (self.convolution_peak if convolves and dtype is DType.F32 else None) or self.peaks.get(dtype)

    @property
    def bandwidth(self) -> float:
        """Bytes per second from and to memory itself."""
        return self.levels[-1].bandwidth

    def level(self, size: int) -> MemoryLevel:
        """Return the level that so many bytes fit in; memory itself for more."""
        return next((level for level in self.levels if size <= level.size), self.levels[-1])

    def with_calls(self, seconds: Iterable[float]) -> Roofline:
        """Return the roofline with a cost per call that is at most the time of the shortest of calls that ran."""
        return replace(self, dispatch_s=min([self.dispatch_s, *seconds]))

    def ceiling(self, work: Work, dtype: DType, calls: int = 1, *, convolves: bool = False) -> Ceiling:
        """Return the least time of so many calls with this work and element type, and the resource that limits them."""
        peak = self.peak(dtype, convolves=convolves)
        times = {
            Bound.OVERHEAD: self.dispatch_s * calls,
            Bound.MEMORY: work.moved / self.level(work.moved).bandwidth,
            Bound.COMPUTE: (work.flops or 0) / peak if peak else 0.0,
        }
        bound = max(times, key=lambda which: times[which])
        return Ceiling(bound, times[bound])


@dataclass(frozen=True)
class _Probe:
    """One measurement: its key in the database, and how to make the measured call."""

    kernel: str
    signature: str
    amount: float
    """Operations, or bytes, of one call."""
    make: Callable[[], Callable[[], object]]
    is_launching: bool = False
    """True if it measures how fast kernels are launched; on a GPU that would hide the caches."""


def measure_roofline(
    device: torch.device,
    dtypes: Iterable[DType],
    database: LatencyDatabase,
    *,
    convolved: Iterable[DType] = (),
    progress: bool = False,
) -> Roofline:
    """Return the roofline of a device; ceilings that are not in the database are measured, within seconds.

    Args:
        device: the device.
        dtypes: the element types that matter; a peak is measured for those among `PEAK_DTYPES`.
        database: the store of latencies.
        convolved: the element types in which there are convolutions.
        progress: true to show a progress bar.
    """
    environment = Environment.current(resolve_device(device))
    probes = _Probes(device, environment, set(dtypes), convolved=set(convolved))
    bar = progress_bar(probes.all, desc="roofline", unit="ceiling", shown=progress)
    return probes.roofline(_found(bar, device, environment, database))


def known_roofline(device: torch.device, dtypes: Iterable[DType], database: LatencyDatabase) -> Roofline | None:
    """Return the roofline of a device if all of it was measured before, else None."""
    environment = Environment.current(resolve_device(device))
    probes = _Probes(device, environment, set(dtypes), convolved=set())
    known = database.get_many(
        environment, [(probe.kernel, probe.signature) for probe in probes.all], LatencyKind.CEILING
    )
    if len(known) < len(probes.all):
        return None
    return probes.roofline({probe: known[probe.kernel, probe.signature] for probe in probes.all})


class _Probes:
    """The measurements that a roofline needs."""

    def __init__(
        self, device: torch.device, environment: Environment, dtypes: Set[DType], convolved: Set[DType]
    ) -> None:
        wanted = [dtype for dtype in PEAK_DTYPES if dtype in dtypes]
        self._peaks = {dtype: _products(device, environment, dtype, environment.matmul_precision) for dtype in wanted}
        precision = environment.convolution_precision
        is_apart = DType.F32 in convolved and precision != environment.matmul_precision
        self._convolution = _products(device, environment, DType.F32, precision) if is_apart else []
        self._streams = {
            size: [_copy(device, size), _triad(device, size), _read(device, size)] for size in _sets(device)
        }
        self._dispatch = _Probe(
            "dispatch", "add of one element", 1.0, make=lambda: _dispatch(device), is_launching=True
        )
        self.all = [*chain(*self._peaks.values(), self._convolution, *self._streams.values()), self._dispatch]

    def roofline(self, found: Mapping[_Probe, Latency]) -> Roofline:
        """Return the roofline, given the latency of each probe."""

        def rate(probe: _Probe) -> float:
            return probe.amount / max(found[probe].median_s, 1e-12)

        # A smaller set reaches at least the rate of a larger one: if it was measured slower, it was disturbed.
        rates = list(accumulate((max(map(rate, kinds)) for kinds in reversed(self._streams.values())), max))
        levels = tuple(MemoryLevel(size, reached) for size, reached in zip(self._streams, reversed(rates), strict=True))
        rates_of = {dtype: max(map(rate, products)) for dtype, products in self._peaks.items()}
        convolution = max(map(rate, self._convolution), default=None)
        return Roofline(rates_of, levels, found[self._dispatch].median_s, convolution_peak=convolution)


def _found(
    probes: Iterable[_Probe], device: torch.device, environment: Environment, database: LatencyDatabase
) -> Mapping[_Probe, Latency]:
    """Return the latencies of probes; on a GPU they are captured in CUDA graphs, except those of the launch speed."""
    plain = Measuring(device)
    captured = Measuring(device, captured=True) if device.type == "cuda" else plain
    found: dict[_Probe, Latency] = {}
    for probe in probes:
        known = database.get(environment, probe.kernel, probe.signature, LatencyKind.CEILING)
        if known is None:
            known, is_good = _measured(probe, plain, captured)
            if is_good:
                database.put(environment, probe.kernel, probe.signature, known, LatencyKind.CEILING)
        found[probe] = known
    return found


@torch.inference_mode()
def _measured(probe: _Probe, plain: Measuring, captured: Measuring) -> tuple[Latency, bool]:
    """Measure a probe; return whether to store it, which is not so if it should have been captured and could not be."""
    call = probe.make()
    if not probe.is_launching:
        try:
            return captured.measured(call, BUDGET_S)
        except TimingError as error:
            _log.warning("%s on %s is measured with its launch: %s", probe.kernel, probe.signature, first_line(error))
    latency, is_calm = plain.measured(call, BUDGET_S)
    return latency, is_calm and probe.is_launching


def _products(device: torch.device, environment: Environment, dtype: DType, precision: str) -> list[_Probe]:
    """Return the probes of an element type's peak: of several libraries, one may be far from it.

    On AMD's processors MKL multiplies matrices at half the pace of oneDNN's convolutions.

    Args:
        device: the device.
        environment: its environment.
        dtype: the element type.
        precision: the precision of single-precision products.
    """
    place = f" in {precision}" if dtype is DType.F32 and precision != environment.matmul_precision else ""
    found = [_matmul(device, environment, dtype, precision=precision, place=place)]
    if device.type == "cpu" and dtype is not DType.F64:
        found.append(_convolution(device, dtype, precision, place))
    return found


def _matmul(device: torch.device, environment: Environment, dtype: DType, precision: str, place: str) -> _Probe:
    """Return a product of square matrices, large enough for the device's peak and small enough for a slow one."""
    if device.type == "cpu":
        size = 1024 if environment.threads <= 4 else 2048 if environment.threads <= 32 else 4096
    else:
        size = 4096 if dtype is DType.F64 else 8192

    def make() -> Callable[[], object]:
        left, right = (_random((size, size), dtype, device) for _ in range(2))
        out = torch.empty_like(left)

        def product() -> object:
            with float32_precision(precision, device):
                return torch.mm(left, right, out=out)

        return product

    return _Probe("matmul", f"{dtype}[{size},{size}]{place}", 2.0 * size**3, make=make)


def _convolution(device: torch.device, dtype: DType, precision: str, place: str) -> _Probe:
    """Return a convolution of many channels with themselves, channels last."""
    channels, side = 256, 32

    def make() -> Callable[[], object]:
        shapes = (1, channels, side, side), (channels, channels, 3, 3)
        operands = [_random(shape, dtype, device) for shape in shapes]
        image, kernel = (operand.to(memory_format=torch.channels_last) for operand in operands)

        def convolution() -> object:
            with float32_precision(precision, device, "conv"):
                return torch.conv2d(image, kernel, padding=1)

        return convolution

    flops = 2.0 * (channels * (3 * side - 2)) ** 2
    return _Probe("convolution", f"{dtype}[{channels},{side},{side}]{place}", flops, make=make)


def _random(shape: Sequence[int], dtype: DType, device: torch.device) -> Tensor:
    return uniform(shape, torch.Generator(device), torch.float32).to(TORCH_DTYPES[dtype])


def _copy(device: torch.device, size: int) -> _Probe:
    def make() -> Callable[[], object]:
        source, target = _vectors(device, size, 2)
        return lambda: target.copy_(source)

    return _Probe("copy", f"{size} bytes", _touched(size, 2), make=make)


def _triad(device: torch.device, size: int) -> _Probe:
    def make() -> Callable[[], object]:
        left, right, target = _vectors(device, size, 3)
        return lambda: torch.add(left, right, alpha=3.0, out=target)

    return _Probe("triad", f"{size} bytes", _touched(size, 3), make=make)


def _read(device: torch.device, size: int) -> _Probe:
    """Return a reduction: like a matrix-vector product it reads and hardly writes, and is faster than any copy."""

    def make() -> Callable[[], object]:
        (source,) = _vectors(device, size, 1)
        return lambda: source.sum()

    return _Probe("read", f"{size} bytes", _touched(size, 1), make=make)


def _vectors(device: torch.device, size: int, count: int) -> Iterator[Tensor]:
    """Return vectors of single precision that together take so many bytes."""
    return (torch.ones(size // (4 * count), dtype=torch.float32, device=device) for _ in range(count))


def _touched(size: int, count: int) -> float:
    return float(size // (4 * count) * 4 * count)


def _dispatch(device: torch.device) -> Callable[[], object]:
    one = torch.ones(1, dtype=torch.float32, device=device)
    return lambda: torch.ops.aten.add.Tensor(one, one)


def _sets(device: torch.device) -> list[int]:
    """Return the working sets in bytes, ascending; the last is well beyond the caches."""
    if device.type == "cpu":
        sets, cache, memory = CPU_SETS, _largest_cache(), _memory()
    else:
        properties = torch.cuda.get_device_properties(device)
        sets, cache, memory = GPU_SETS, int(getattr(properties, "L2_cache_size", 0)), int(properties.total_memory)
    beyond = min(max(BEYOND * cache, LEAST_BEYOND), MOST_BEYOND, memory // MEMORY_SHARE)
    return [*(size for size in sets if size < beyond), beyond]


def _largest_cache() -> int:
    """Return the bytes of the largest cache, 0 if Linux does not tell."""
    sizes = [0]
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        with suppress(OSError, ValueError):
            match = re.fullmatch(r"(\d+)([KM]?)", path.read_text().strip())
            if match:
                sizes.append(int(match[1]) * {"": 1, "K": 2**10, "M": 2**20}[match[2]])
    return max(sizes)


def _memory() -> int:
    """Return the bytes of the machine's memory; if the system does not tell, enough for any copy."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return MOST_BEYOND * MEMORY_SHARE
