"""Timing of the parts of a built module within real runs of the whole module.

The module's graph is copied with a mark after every part; a part is the consecutive calls that compute one node of the
graph. A mark reads the clock (on a GPU it records an event), so that the times of all parts add up to the whole run,
with the caches and the dispatch overhead of a real run. The cost of the marks is measured by alternating with runs of
the unmarked module, and is subtracted.

On a GPU the marked run is launched while the GPU is held up, so that no kernel waits to be launched: parts take what
their kernels take, and the unmarked run shows what launching adds.

Invariant: calls, operands and order are those of the module; only marks are added.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import fx
from torch._ops import OpOverload

from taso_py.backend.guard import CHECKS
from taso_py.backend.overwrite import TYPE
from taso_py.backend.schema import target_of
from taso_py.collector import collector_paused
from taso_py.ir.types import TensorType

WARM_UP = 3
MIN_ROUNDS, MAX_ROUNDS = 5, 200
COSTED_MARKS = 1000
HELD, LONGEST_HELD_S = 4.0, 0.05
"""Time for which a GPU is held up, relative to the module's, and the longest."""
CYCLES_PER_S = 2e9
"""Clock rate of a GPU, about."""
QUARTILES = (25.0, 50.0, 75.0)


@dataclass(frozen=True)
class Spread:
    """A median with its quartiles, in seconds."""

    low: float
    median: float
    high: float


@dataclass(frozen=True)
class Part:
    """Consecutive calls of a module that compute one node of the graph."""

    digest: str | None
    """Digest of the node; None for calls that copy values into another memory layout."""
    calls: tuple[str, ...]
    """Names of the called operators."""
    laid: tuple[TensorType, ...] = ()
    """Types of the values that are copied, if no node is computed."""


@dataclass(frozen=True)
class Run:
    """Times of many runs of a module, the cost of the marks subtracted."""

    parts: tuple[Part, ...]
    """The parts in the order of the run."""
    input: Spread
    """Time of unpacking and checking the arguments."""
    times: tuple[Spread, ...]
    """Time of each part; on a GPU that of its kernels."""
    output: Spread
    """Time of packing the results."""
    whole: Spread
    """Time of the module without marks."""
    mark_s: float
    """Cost of one mark."""
    rounds: int


@dataclass(frozen=True)
class PartSpan:
    """The first and last fx node of a part."""

    part: Part
    first: fx.Node
    last: fx.Node


def copy_with_spans(module: fx.GraphModule) -> tuple[fx.Graph, list[PartSpan]]:
    """Return a copy of a module's graph for inserting calls, and the spans of its parts."""
    graph = fx.Graph()
    results = graph.graph_copy(module.graph, {})
    graph.output(results)
    graph.set_codegen(copy.copy(module.graph._codegen))  # pyright: ignore[reportPrivateUsage]
    return graph, _part_spans(graph)


def _part_spans(graph: fx.Graph) -> list[PartSpan]:
    found: list[PartSpan] = []
    for node in graph.nodes:
        if node.op in ("placeholder", "get_attr", "output") or node.target in CHECKS:
            continue
        digest = node.meta.get("digest")
        target = target_of(node)
        call = str(target) if isinstance(target, OpOverload) else getattr(target, "__name__", "call")
        laid = (node.meta[TYPE],) if digest is None and TYPE in node.meta else ()
        if found and found[-1].part.digest == digest:
            part, first = found[-1].part, found[-1].first
            found[-1] = PartSpan(Part(digest, (*part.calls, call), (*part.laid, *laid)), first, node)
        else:
            found.append(PartSpan(Part(digest, (call,), laid), node, node))
    return found


def end_of_inputs(graph: fx.Graph) -> fx.Node:
    """Return the last node that takes or checks an argument; the graph's first node if there is none."""
    taken = [node for node in graph.nodes if node.op == "placeholder" or node.target in CHECKS]
    return taken[-1] if taken else next(iter(graph.nodes))


@dataclass
class _Marks:
    """Takes timestamps on a device."""

    device: torch.device
    taken: list[Any] = field(default_factory=list[Any])

    def take(self) -> None:
        """Take a timestamp."""
        if self.device.type == "cpu":
            self.taken.append(time.perf_counter_ns())
        else:
            event = torch.cuda.Event(enable_timing=True)
            event.record(torch.cuda.current_stream(self.device))
            self.taken.append(event)

    def hold_up(self, seconds: float) -> None:
        """Keep a GPU from beginning for about this long with what is launched meanwhile; a processor is not held up."""
        if self.device.type == "cuda":
            with torch.cuda.device(self.device):
                sleep: Any = torch.cuda._sleep  # pyright: ignore[reportPrivateUsage] -- PyTorch's tests do so too
                sleep(int(min(seconds, LONGEST_HELD_S) * CYCLES_PER_S))

    def seconds(self) -> list[float]:
        """Return the intervals between the timestamps taken since the last call."""
        taken, self.taken[:] = list(self.taken), []
        if self.device.type == "cpu":
            return [(after - before) * 1e-9 for before, after in pairwise(taken)]
        taken[-1].synchronize()
        return [before.elapsed_time(after) * 1e-3 for before, after in pairwise(taken)]


def time_parts(
    modules: Sequence[fx.GraphModule],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    device: torch.device,
    seconds: float,
    on_round: Callable[[float], None] | None = None,
    restore: Callable[[], None] = lambda: None,
) -> list[Run]:
    """Run modules with and without marks, interleaved, so that they are comparable if the machine's speed drifts.

    Args:
        modules: made by :func:`taso_py.backend.build`.
        args: positional arguments.
        kwargs: keyword arguments.
        device: where they run.
        seconds: time after which no round begins, once there are `MIN_ROUNDS`.
        on_round: called with the share of the time that is used.
        restore: called before each run.
    """
    marks = _Marks(device)
    courses = [_TimedModule(module, *_with_marks(module, marks)) for module in modules]
    timed = [module for course in courses for module in (course.module, course.marked)]
    with collector_paused():
        start = time.perf_counter()
        for done in range(WARM_UP):
            if done and time.perf_counter() - start > seconds:
                break
            for module in timed:
                restore()
                module(*args, **kwargs)
        marks.taken.clear()
        start = time.perf_counter()
        for done in range(MAX_ROUNDS):
            share = (time.perf_counter() - start) / seconds
            if share >= 1 and done >= MIN_ROUNDS:
                break
            for course in courses:
                restore()
                course.plain_times += _time_run(course.module, args, kwargs, marks)
                restore()
                marks.hold_up(HELD * course.plain_times[-1])
                course.marked_times.append(_time_run(course.marked, args, kwargs, marks))
            if on_round:
                on_round(min(share, 1.0))
    least, most = _mark_costs(marks)
    return [
        _summary(course.parts, course.plain_times, np.array(course.marked_times), least=least, most=most)
        for course in courses
    ]


@dataclass
class _TimedModule:
    """A module, its copy with marks, and the measured times of both."""

    module: fx.GraphModule
    marked: fx.GraphModule
    parts: Sequence[Part]
    plain_times: list[float] = field(default_factory=list[float])
    marked_times: list[list[float]] = field(default_factory=list[list[float]])


def _with_marks(module: fx.GraphModule, marks: _Marks) -> tuple[fx.GraphModule, list[Part]]:
    """Return a copy of the module with a mark after its inputs and after every part, and its parts."""

    def mark() -> None:  # what an fx graph calls must have a name
        marks.take()

    graph, places = copy_with_spans(module)
    for node in [end_of_inputs(graph), *(place.last for place in places)]:
        with graph.inserting_after(node):
            graph.call_function(mark)
    return fx.GraphModule(module, graph), [place.part for place in places]


def _time_run(runner: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], marks: _Marks) -> list[float]:
    marks.take()
    runner(*args, **kwargs)
    marks.take()
    return marks.seconds()


def _mark_costs(marks: _Marks) -> tuple[float, float]:
    """Return bounds on the seconds that a mark takes: of a GPU's queue, or of the processor at most."""
    marks.hold_up(LONGEST_HELD_S)
    start = time.perf_counter()
    for _ in range(COSTED_MARKS):
        marks.take()
    spent = time.perf_counter() - start
    queued = median(marks.seconds())
    return (0.0, spent / COSTED_MARKS) if marks.device.type == "cpu" else (queued, queued)


def _summary(
    parts: Sequence[Part], plain: Sequence[float], marked: NDArray[np.float64], *, least: float, most: float
) -> Run:
    """Return the times less the cost of marks, which is between ``least`` and ``most``."""
    count = len(parts) + 1
    mark = min(max(least, median(marked.sum(axis=1) - np.array(plain)) / count), most)
    # The cost of a mark is part of the interval before it; the last interval has no mark of its own.
    own = np.maximum(marked - mark * (np.arange(count + 1) < count), 0.0)
    first, *times, last = (_spread(column) for column in own.T)
    return Run(
        parts=tuple(parts),
        input=first,
        times=tuple(times),
        output=last,
        whole=_spread(plain),
        mark_s=mark,
        rounds=len(plain),
    )


def _spread(times: Sequence[float] | NDArray[np.float64]) -> Spread:
    low, middle, high = np.percentile(times, QUARTILES)
    return Spread(float(low), float(middle), float(high))
