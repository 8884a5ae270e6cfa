"""What is read from the events of a profile of a GPU, where each range is there twice."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import dataclass, replace

import pytest
import torch
from rich.console import Console
from torch import nn
from torch._C._autograd import DeviceType

from taso_py.backend import build
from taso_py.frontend import import_module
from taso_py.profiling.profile import _notes
from taso_py.profiling.run import Run, Spread
from taso_py.profiling.trace import _PREFIX, Observed, _busy, _live, observe, peak_bytes
from taso_py.report.profile_page import profile_page
from tests.report.pages import text_of
from tests.report.test_profile_page import PROFILE

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


def test_a_driver_that_tells_of_no_kernels_does_not_say_that_a_device_is_idle() -> None:
    assert _busy([event for event in EVENTS if event.name() not in ("gemm", "relu")]) is None


@pytest.mark.parametrize(
    ("device", "busy_s", "said"), [("cuda", None, True), ("cuda", 1e-3, False), ("cpu", None, False)]
)
def test_where_the_driver_tells_of_no_kernels_a_note_says_so(device: str, busy_s: float | None, said: bool) -> None:
    still = Spread(1.0, 1.0, 1.0)
    run = Run((), still, (), still, still, 0.0, 9)
    notes = list(_notes((), run, torch.device(device), Observed((), busy_s)))
    assert [note.startswith("the GPU's driver reported no kernel events") for note in notes] == [True] * said
    profile = replace(PROFILE, device=device, busy_ms=None if busy_s is None else 1e3 * busy_s, notes=tuple(notes))
    console = Console(width=200, force_terminal=False)
    with console.capture() as captured:
        console.print(profile)
    for text in (captured.get(), json.dumps(profile.as_dict()), text_of(profile_page(profile))):
        assert ("the GPU's driver reported no kernel events" in text) == said
    assert ("busy for" in captured.get()) == (busy_s is not None)


def test_a_profiler_of_the_caller_goes_on() -> None:
    x, still = torch.ones(8), Spread(1.0, 1.0, 1.0)
    module = build(import_module(nn.ReLU(), (x,)))
    with torch.profiler.profile(acc_events=True) as profiler:  # PyTorch 2.11 warns without
        x.sin()
        assert peak_bytes(lambda: x + 1, torch.device("cpu")) is None
        seen = observe(module, ["relu"], (x,), {}, torch.device("cpu"))
        x.cos()
    assert {"aten::sin", "aten::cos"} <= {event.key for event in profiler.key_averages()}
    assert seen.live_bytes == (0,)
    (note,) = _notes((), Run((), still, (), still, still, 0.0, 9), torch.device("cpu"), seen)
    assert note.startswith("memory in use is unknown")


def test_in_other_threads_nothing_is_seen() -> None:
    seen: list[int | None] = []
    thread = threading.Thread(target=lambda: seen.append(peak_bytes(lambda: torch.ones(9), torch.device("cpu"))))
    thread.start()
    thread.join()
    assert seen == [None]


def test_the_peak_is_the_most_that_is_in_use_at_once() -> None:
    x = torch.ones(1000, dtype=torch.float32)

    def run() -> torch.Tensor:
        y = x + 1.0
        y = y * 2.0  # both are there for a moment
        return y.sum()

    before = dict(os.environ)
    peak = peak_bytes(run, torch.device("cpu"))
    assert peak is not None
    assert 8000 <= peak < 9000
    assert dict(os.environ) == before
    assert peak_bytes(lambda: None, torch.device("cpu")) == 0
