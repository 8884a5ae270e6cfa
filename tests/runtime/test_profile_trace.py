"""What is read from the events of a profile of a GPU, where each range is there twice."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch._C._autograd import DeviceType

from taso_py.runtime.profile_trace import _PREFIX, _busy, _live

CUDA = torch.device("cuda")


@dataclass(frozen=True)
class Event:
    """Stands in for an event of the profiler, which has methods for these."""

    named: str
    start: int
    duration: int = 0
    kind: DeviceType = DeviceType.CUDA
    annotation: bool = False
    changed: int = 0

    def name(self) -> str:
        return self.named

    def start_ns(self) -> int:
        return self.start

    def duration_ns(self) -> int:
        return self.duration

    def device_type(self) -> DeviceType:
        return self.kind

    def is_user_annotation(self) -> bool:
        return self.annotation

    def nbytes(self) -> int:
        return self.changed


def part(number: int, start: int, kind: DeviceType, duration: int = 10) -> Event:
    return Event(f"{_PREFIX}{number}: linear", start, duration, kind, annotation=True)


EVENTS = [
    part(0, 0, DeviceType.CPU),
    Event("[memory]", 5, changed=100),
    part(1, 10, DeviceType.CPU),
    Event("[memory]", 15, changed=50),
    part(2, 20, DeviceType.CPU),
    Event("[memory]", 25, changed=-150),
    # The kernels of the first part begin when the processor is at the second.
    part(0, 12, DeviceType.CUDA, duration=30),
    Event("gemm", 12, 8),
    Event("gemm", 34, 8),
    part(1, 50, DeviceType.CUDA, duration=7),
    Event("relu", 50, 4),
    Event("relu", 53, 4),
]


def test_what_is_in_use_belongs_to_the_part_that_the_processor_was_at() -> None:
    assert _live(EVENTS, 3, CUDA) == (100, 150, 150)


def test_a_device_is_busy_while_kernels_run_and_not_between_them() -> None:
    assert _busy(EVENTS) == pytest.approx(23e-9)
