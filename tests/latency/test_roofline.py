"""The roofline: what bounds a call, and ceilings that are measured once and kept."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from taso_py.ir.types import DType
from taso_py.latency import measuring, roofline
from taso_py.latency.clock import Latency, TimingError
from taso_py.latency.database import LatencyDatabase
from taso_py.latency.environment import Environment, float32_precision
from taso_py.latency.roofline import Bound, MemoryLevel, Roofline, _found, _Probe, measure_roofline
from taso_py.latency.schema import LatencyKind
from taso_py.ops.work import Work

ROOF = Roofline({DType.F32: 1e11}, (MemoryLevel(2**20, 1e11), MemoryLevel(2**30, 1e10)), 2e-6)


@pytest.mark.parametrize(
    ("work", "dtype", "bound", "seconds"),
    [
        (Work(10**9, 2**20, 0), DType.F32, Bound.COMPUTE, 1e-2),
        (Work(10**9, 2**28, 0), DType.F32, Bound.MEMORY, 2**28 / 1e10),
        # In the cache a mebibyte takes longer than half a million operations, but less long than from memory.
        (Work(5 * 10**5, 2**19, 2**19), DType.F32, Bound.MEMORY, 2**20 / 1e11),
        (Work(100, 400, 400), DType.F32, Bound.OVERHEAD, 2e-6),
        (Work(0, 0, 0), DType.F32, Bound.OVERHEAD, 2e-6),
        # Without a peak, or without a known number of operations, bytes and overhead decide.
        (Work(10**12, 2**28, 0), DType.I64, Bound.MEMORY, 2**28 / 1e10),
        (Work(None, 2**28, 0), DType.F32, Bound.MEMORY, 2**28 / 1e10),
    ],
)
def test_the_slowest_ceiling_bounds(work: Work, dtype: DType, bound: Bound, seconds: float) -> None:
    ceiling = ROOF.ceiling(work, dtype)
    assert ceiling.bound is bound
    assert ceiling.seconds == pytest.approx(seconds)


def test_convolutions_have_a_peak_of_their_own_where_they_may_be_less_precise() -> None:
    work = Work(10**9, 2**20, 0)
    roof = dataclasses.replace(ROOF, convolution_peak=2e11)
    assert roof.ceiling(work, DType.F32, convolves=True).seconds == pytest.approx(5e-3)
    assert roof.ceiling(work, DType.F32) == ROOF.ceiling(work, DType.F32, convolves=True)


def test_the_peak_of_convolutions_is_measured_in_their_precision() -> None:
    with LatencyDatabase(":memory:") as database, float32_precision("bf16", torch.device("cpu"), "conv"):
        assert measure_roofline(torch.device("cpu"), [DType.F32], database).convolution_peak is None
        found = measure_roofline(torch.device("cpu"), [DType.F32], database, convolved=[DType.F32])
        (plain, special) = sorted(row.signature for row in database.rows() if row.kernel == "matmul")
    assert special == f"{plain} in bf16"
    assert found.convolution_peak is not None


def test_data_counts_in_the_level_that_it_fits_in() -> None:
    assert [ROOF.level(size).bandwidth for size in (1, 2**20, 2**20 + 1, 2**40)] == [1e11, 1e11, 1e10, 1e10]
    assert ROOF.bandwidth == 1e10


def test_ceilings_are_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with LatencyDatabase(":memory:") as database:
        first = measure_roofline(torch.device("cpu"), [DType.F32, DType.I64], database)
        assert {row.kind for row in database.rows()} == {LatencyKind.CEILING}
        kernels = sorted({row.kernel for row in database.rows()})
        assert kernels == ["convolution", "copy", "dispatch", "matmul", "read", "triad"]
        monkeypatch.setattr(roofline, "Measuring", lambda device: None)  # a second measurement would fail
        assert measure_roofline(torch.device("cpu"), [DType.F32], database) == first
    assert set(first.peaks) == {DType.F32}
    assert [level.size for level in first.levels] == [2**14, 2**20]
    assert first.levels[0].bandwidth >= first.levels[1].bandwidth > 0
    assert first.dispatch_s > 0


def test_disturbed_ceilings_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    never_at_rest = measuring.Probe(most=0.0)
    monkeypatch.setattr(roofline, "Measuring", lambda device, **_: measuring.Measuring(device, never_at_rest))
    with LatencyDatabase(":memory:") as database:
        assert measure_roofline(torch.device("cpu"), [DType.F32], database).bandwidth > 0
        assert list(database.rows()) == []


@pytest.mark.parametrize("fails", [False, True])
def test_what_cannot_be_captured_is_measured_as_it_is_launched_and_not_kept(
    fails: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Gpu:
        """Takes a second where calls are captured, and three where they are launched."""

        def __init__(self, _: torch.device, *, captured: bool = False) -> None:
            self.captured = captured

        def measured(self, call: object, budget_s: float) -> tuple[Latency, bool]:
            if self.captured and fails:
                raise TimingError("this cannot be captured in a CUDA graph")
            seconds = 1.0 if self.captured else 3.0
            return Latency(seconds, seconds, seconds, 1, 0), True

    monkeypatch.setattr(roofline, "Measuring", Gpu)
    kinds = {"copy": False, "dispatch": True}
    probes = [_Probe(name, "", 1.0, lambda: lambda: None, is_launching) for name, is_launching in kinds.items()]
    with LatencyDatabase(":memory:") as database:
        found = _found(probes, torch.device("cuda"), Environment.current("cpu"), database)
        kept = [row.kernel for row in database.rows()]
    assert [found[probe].median_s for probe in probes] == [3.0 if fails else 1.0, 3.0]
    assert kept == (["dispatch"] if fails else ["copy", "dispatch"])
    assert ("copy on  is measured with its launch: this cannot be captured" in caplog.text) == fails


def test_figures_are_amounts_over_latencies() -> None:
    environment = Environment.current("cpu")
    size = 1024 if environment.threads <= 4 else 2048 if environment.threads <= 32 else 4096
    stored = {
        ("matmul", f"f64[{size},{size}]"): 2 * size**3 / 5e10,
        ("copy", "16384 bytes"): 16384 / 1e9,
        ("triad", "16384 bytes"): 16380 / 3e9,
        ("read", "16384 bytes"): 16384 / 2e9,
        ("read", "1048576 bytes"): 1048576 / 1e9,
        ("copy", "1048576 bytes"): 1048576 / 4e9,
        ("triad", "1048576 bytes"): 1048572 / 2e9,
        ("dispatch", "add of one element"): 3e-6,
    }
    with LatencyDatabase(":memory:") as database:
        for key, seconds in stored.items():
            database.put(environment, *key, Latency(seconds, seconds, seconds, 1, 0), LatencyKind.CEILING)
        found = measure_roofline(torch.device("cpu"), [DType.F64], database)
    assert found.peaks == {DType.F64: pytest.approx(5e10)}
    # The smaller set was disturbed: what the larger one reached stands for it too.
    assert [level.bandwidth for level in found.levels] == [pytest.approx(4e9), pytest.approx(4e9)]
    assert found.dispatch_s == 3e-6
