"""What torch.profiler sees of one run: the Chrome trace, the memory that is in use, how long a GPU is busy.

Invariant: a recorded range bears the name that the profile gives the part, so that trace and tables can be read side by
side.
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
from taso_py.profiling.run import copy_of

MEMORY = "[memory]"
"""The name of events in which memory is taken or given back."""
_PREFIX = "part "
LOG_LEVEL = "KINETO_LOG_LEVEL"
"""What the profiler's library is told how much to say by."""


@dataclass(frozen=True)
class Observed:
    """What one run showed."""

    live_bytes: tuple[int, ...]
    """For each part, the most memory in use during it beyond what was in use before the run."""
    busy_s: float | None
    """Seconds in which a GPU ran kernels; None on a CPU, and where its driver told of none."""
    is_hidden: bool = False
    """Whether nothing was seen, as :func:`_sees_nothing` says."""


def _sees_nothing() -> bool:
    """Whether PyTorch's profiler had better not be started.

    It would end one that the caller has running, and in other threads than the main one it writes an error to standard
    error (PyTorch 2.13).
    """
    return _profiler_enabled() or threading.current_thread() is not threading.main_thread()


@contextmanager
def _unannounced() -> Generator[None]:
    """Keeps the profiler's library from announcing itself on standard error, where only progress and mistakes belong.

    It reads its level from the environment when it is used for the first time.
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


def observe(
    module: fx.GraphModule,
    names: Sequence[str],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    device: torch.device,
    trace: Path | None = None,
) -> Observed:
    """Runs a module once under torch.profiler.

    Args:
        module: made by :func:`taso_py.backend.build`.
        names: what to call its parts, in order.
        args: positional arguments.
        kwargs: keyword arguments.
        device: where it runs.
        trace: a file to write the Chrome trace to, if any.
    """
    if _sees_nothing():
        return Observed((0,) * len(names), None, is_hidden=True)
    recorded = _recorded(module, names)
    recorded(*args, **kwargs)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    with _unannounced(), profile(activities=activities, profile_memory=True, record_shapes=True) as profiler:
        recorded(*args, **kwargs)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    if trace is not None:
        profiler.export_chrome_trace(str(trace))
    results = profiler.profiler.kineto_results if profiler.profiler else None
    events = results.events() if results else []
    return Observed(_live(events, len(names), device), _busy(events) if device.type == "cuda" else None)


def peak_bytes(run: Callable[[], object], device: torch.device) -> int | None:
    """The most memory in use during a call beyond what was in use before; None where that cannot be seen.

    Args:
        run: the call, which was made before.
        device: whose memory.
    """
    if _sees_nothing():
        return None
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    try:
        with _unannounced(), torch.no_grad(), profile(activities=activities, profile_memory=True) as profiler:
            kept = run()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
        del kept
    except RuntimeError:  # another one was started meanwhile
        return None
    results = profiler.profiler.kineto_results if profiler.profiler else None
    live = accumulate(change for _, change in _changes(results.events() if results else [], device))
    return max(live, default=0)


def _recorded(module: fx.GraphModule, names: Sequence[str]) -> fx.GraphModule:
    graph, places = copy_of(module)
    for number, (place, name) in enumerate(zip(places, names, strict=True)):
        with graph.inserting_before(place.first):
            opened = graph.call_function(
                torch.ops.profiler._record_function_enter_new.default, (f"{_PREFIX}{number}: {name}",)
            )
        with graph.inserting_after(place.last):
            graph.call_function(torch.ops.profiler._record_function_exit._RecordFunction, (opened,))
    return fx.GraphModule(module, graph)


def _live(events: Sequence[Any], count: int, device: torch.device) -> tuple[int, ...]:
    """The most bytes in use in each part: what a part leaves, later ones find."""
    # On a GPU each range is there once more, from the first of its kernels to the last: they run behind the processor.
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
    """When memory of a device is taken or given back, and how many bytes, in order."""
    kind = DeviceType.CPU if device.type == "cpu" else DeviceType.CUDA
    changes = [(e.start_ns(), e.nbytes()) for e in events if e.name() == MEMORY and e.device_type() == kind]
    return sorted(changes, key=lambda pair: pair[0])


def _busy(events: Sequence[Any]) -> float | None:
    """Seconds in which kernels ran, overlaps counted once; None where there are none.

    A recorded range is there too, with the gaps in between; and what memory is taken and given back, whether or not the
    driver tells of anything.
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
