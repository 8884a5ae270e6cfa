"""Observations by torch.profiler: the Chrome trace, memory in use, and the busy time of a GPU.

Invariant: a recorded range has the part's name in the profile, so that trace and tables can be read side by side.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_right
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch._C._autograd import DeviceType, _profiler_enabled  # pyright: ignore[reportPrivateUsage]
from torch.profiler import ProfilerActivity, profile

from taso_py.backend.tracing import tracing_lock
from taso_py.profiling.run import copy_with_spans

MEMORY = "[memory]"
"""Name of events in which memory is allocated or freed."""
_PREFIX = "part "
LOG_LEVEL = "KINETO_LOG_LEVEL"
"""Environment variable for the log level of the profiler's library."""


@dataclass(frozen=True)
class Observed:
    """Observations of one run."""

    live_bytes: tuple[int, ...]
    """Peak memory in use during each part, beyond the memory in use before the run."""
    busy_s: float | None
    """Seconds in which a GPU ran kernels; None on a CPU, and if its driver reported none."""
    is_hidden: bool = False
    """True if nothing could be observed, see :func:`_is_unusable`."""


def _is_unusable() -> bool:
    """Return whether PyTorch's profiler must not be started.

    It would stop a profiler that the caller has running, and outside of the main thread it writes an error to standard
    error (PyTorch 2.13).
    """
    return _profiler_enabled() or threading.current_thread() is not threading.main_thread()


@contextmanager
def _silenced() -> Generator[None]:
    """Keep the profiler's library from writing messages to standard error.

    It reads its log level from the environment when it is first used.
    """
    if LOG_LEVEL in os.environ:
        yield
        return
    with tracing_lock():
        os.environ[LOG_LEVEL] = "99"
        try:
            yield
        finally:
            os.environ.pop(LOG_LEVEL, None)


def _profiler(device: torch.device, *, record_shapes: bool = False) -> profile:
    """Return a profiler of calls and memory, and of a GPU's kernels."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    # With a GPU, PyTorch 2.11 warns unless it is told to keep the events of all cycles; there is one.
    return profile(activities=activities, profile_memory=True, record_shapes=record_shapes, acc_events=True)


def observe(
    module: fx.GraphModule,
    names: Sequence[str],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    device: torch.device,
    trace: Path | None = None,
    restore: Callable[[], None] = lambda: None,
) -> Observed:
    """Run a module once under torch.profiler.

    Args:
        module: made by :func:`taso_py.backend.build`.
        names: names of its parts, in order.
        args: positional arguments.
        kwargs: keyword arguments.
        device: where it runs.
        trace: a file to write the Chrome trace to, if any.
        restore: called before each run.
    """
    if _is_unusable():
        return Observed((0,) * len(names), None, is_hidden=True)
    recorded = _with_recorded_ranges(module, names)
    restore()
    recorded(*args, **kwargs)
    restore()
    with _silenced(), _profiler(device, record_shapes=True) as profiler:
        recorded(*args, **kwargs)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    if trace is not None:
        profiler.export_chrome_trace(str(trace))
    results = profiler.profiler.kineto_results if profiler.profiler else None
    events = results.events() if results else []
    return Observed(_live(events, len(names), device), _busy(events) if device.type == "cuda" else None)


def peak_bytes(run: Callable[[], object], device: torch.device) -> int | None:
    """Return the peak memory during a call beyond the memory in use before; None if it cannot be observed.

    Args:
        run: the call, which must have been made before.
        device: the device whose memory to observe.
    """
    if _is_unusable():
        return None
    try:
        with _silenced(), torch.no_grad(), _profiler(device) as profiler:
            kept = run()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
        del kept
    except RuntimeError:  # another one was started meanwhile
        return None
    results = profiler.profiler.kineto_results if profiler.profiler else None
    live = accumulate(change for _, change in _changes(results.events() if results else [], device))
    return max(live, default=0)


def _with_recorded_ranges(module: fx.GraphModule, names: Sequence[str]) -> fx.GraphModule:
    graph, places = copy_with_spans(module)
    for number, (place, name) in enumerate(zip(places, names, strict=True)):
        with graph.inserting_before(place.first):
            opened = graph.call_function(
                torch.ops.profiler._record_function_enter_new.default, (f"{_PREFIX}{number}: {name}",)
            )
        with graph.inserting_after(place.last):
            graph.call_function(torch.ops.profiler._record_function_exit._RecordFunction, (opened,))
    return fx.GraphModule(module, graph)


def _live(events: Sequence[Any], count: int, device: torch.device) -> tuple[int, ...]:
    """Return the most bytes in use in each part; memory that a part leaves allocated counts for later ones."""
    # On a GPU each range occurs a second time, from its first kernel to its last, since kernels run asynchronously.
    begun = (event for event in events if event.name().startswith(_PREFIX) and event.device_type() == DeviceType.CPU)
    starts = sorted(event.start_ns() for event in begun)
    most, live, part = [0] * count, 0, -1
    for when, change in _changes(events, device):
        now = bisect_right(starts, when) - 1
        for passed in range(max(part, 0), min(now, count - 1) + 1):
            most[passed] = max(most[passed], live)
        part, live = max(part, now), live + change
        if 0 <= part < count:
            most[part] = max(most[part], live)
    for rest in range(max(part, 0), count):
        most[rest] = max(most[rest], live)
    return tuple(most)


def _changes(events: Sequence[Any], device: torch.device) -> list[tuple[int, int]]:
    """Return the times of allocations and deallocations on a device with their numbers of bytes, in order."""
    kind = DeviceType.CPU if device.type == "cpu" else DeviceType.CUDA
    changes = [(e.start_ns(), e.nbytes()) for e in events if e.name() == MEMORY and e.device_type() == kind]
    return sorted(changes, key=lambda pair: pair[0])


def _busy(events: Sequence[Any]) -> float | None:
    """Return the seconds in which kernels ran, overlaps counted once; None if there are no kernels.

    The events also include the recorded ranges, gaps between kernels included, and changes of memory, which occur even
    if the driver reports no kernels.
    """
    ran = [event for event in events if event.device_type() == DeviceType.CUDA and event.name() != MEMORY]
    spans = sorted((e.start_ns(), e.start_ns() + e.duration_ns()) for e in ran if not e.is_user_annotation())
    if not spans:
        return None
    total, reached = 0, 0
    for start, end in spans:
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total * 1e-9
