"""Timing a built module from inside: which part of a real run takes how long.

The module's code is written again with a mark after every part, a part being the consecutive calls that belong to one
node of the graph. A mark reads the clock (on a GPU it puts an event into the queue), so that the times of all parts add
up to the whole run, in the caches and with the dispatch that operators really meet. What the marks themselves cost is
seen by running the module without them in turn, and taken off.

Invariant: the calls, their operands and their order are those of the module; marks are all that is added.
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

from taso_py.backend.guard import check_fixed, check_tensor
from taso_py.backend.overwrite import TYPE
from taso_py.backend.schema import target_of
from taso_py.collector import collector_paused
from taso_py.ir.types import TensorType

WARM_UP = 3
MIN_ROUNDS, MAX_ROUNDS = 7, 200
COSTED_MARKS = 1000
QUARTILES = (25.0, 50.0, 75.0)


@dataclass(frozen=True)
class Spread:
    """A median with its quartiles, in seconds."""

    low: float
    median: float
    high: float


@dataclass(frozen=True)
class Part:
    """Consecutive calls of a module that belong together."""

    digest: str | None
    """The node of the graph that they compute; None for what lays values out anew in between."""
    calls: tuple[str, ...]
    """What is called, as PyTorch names it."""
    laid: tuple[TensorType, ...] = ()
    """What is laid out anew, if it computes no node."""


@dataclass(frozen=True)
class Run:
    """What many runs of a module showed; without what the marks cost."""

    parts: tuple[Part, ...]
    """In the order of the run."""
    input: Spread
    """Unpacking and checking the arguments."""
    times: tuple[Spread, ...]
    """A part each."""
    output: Spread
    """Packing the results."""
    whole: Spread
    """The module, run without marks."""
    mark_s: float
    """What a mark cost."""
    rounds: int


@dataclass(frozen=True)
class Place:
    """A part in an fx graph."""

    part: Part
    first: fx.Node
    last: fx.Node


def copy_of(module: fx.GraphModule) -> tuple[fx.Graph, list[Place]]:
    """A copy of a module's graph to put calls into, and its parts."""
    graph = fx.Graph()
    results = graph.graph_copy(module.graph, {})
    graph.output(results)
    graph.set_codegen(copy.copy(module.graph._codegen))  # pyright: ignore[reportPrivateUsage]
    return graph, _places(graph)


def _places(graph: fx.Graph) -> list[Place]:
    found: list[Place] = []
    for node in graph.nodes:
        if node.op in ("placeholder", "get_attr", "output") or node.target in (check_tensor, check_fixed):
            continue
        digest = node.meta.get("digest")
        target = target_of(node)
        call = str(target) if isinstance(target, OpOverload) else getattr(target, "__name__", "call")
        laid = (node.meta[TYPE],) if digest is None and TYPE in node.meta else ()
        if found and found[-1].part.digest == digest:
            part, first = found[-1].part, found[-1].first
            found[-1] = Place(Part(digest, (*part.calls, call), (*part.laid, *laid)), first, node)
        else:
            found.append(Place(Part(digest, (call,), laid), node, node))
    return found


def end_of_inputs(graph: fx.Graph) -> fx.Node:
    """The last node that takes an argument or checks one; the graph's first node where there are none."""
    taken = [node for node in graph.nodes if node.op == "placeholder" or node.target in (check_tensor, check_fixed)]
    return taken[-1] if taken else next(iter(graph.nodes))


@dataclass
class _Marks:
    """Moments on a device."""

    device: torch.device
    taken: list[Any] = field(default_factory=list[Any])

    def take(self) -> None:
        """Takes one."""
        if self.device.type == "cpu":
            self.taken.append(time.perf_counter_ns())
        else:
            event = torch.cuda.Event(enable_timing=True)
            event.record(torch.cuda.current_stream(self.device))
            self.taken.append(event)

    def seconds(self) -> list[float]:
        """What passed between the moments taken since this was last asked."""
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
) -> list[Run]:
    """Runs modules with and without marks, all in turn, so that they can be compared on a machine whose speed drifts.

    Args:
        modules: made by :func:`taso_py.backend.build`.
        args: positional arguments.
        kwargs: keyword arguments.
        device: where they run.
        seconds: after how much time no round begins any more, once there are `MIN_ROUNDS`.
        on_round: told which share of the time is used.
    """
    marks = _Marks(device)
    courses = [_Course(module, *_marked(module, marks)) for module in modules]
    with collector_paused():
        for course in courses * WARM_UP:
            course.module(*args, **kwargs)
            course.marked(*args, **kwargs)
        marks.taken.clear()
        start = time.perf_counter()
        for done in range(MAX_ROUNDS):
            share = (time.perf_counter() - start) / seconds
            if share >= 1 and done >= MIN_ROUNDS:
                break
            for course in courses:
                course.plain_times += _timed(course.module, args, kwargs, marks)
                course.marked_times.append(_timed(course.marked, args, kwargs, marks))
            if on_round:
                on_round(min(share, 1.0))
    most = _cost_of(marks)
    return [_summary(course.parts, course.plain_times, np.array(course.marked_times), most) for course in courses]


@dataclass
class _Course:
    """A module, its copy with marks, and what was seen of both."""

    module: fx.GraphModule
    marked: fx.GraphModule
    parts: Sequence[Part]
    plain_times: list[float] = field(default_factory=list[float])
    marked_times: list[list[float]] = field(default_factory=list[list[float]])


def _marked(module: fx.GraphModule, marks: _Marks) -> tuple[fx.GraphModule, list[Part]]:
    """The module with a mark after its inputs and after every part."""

    def mark() -> None:  # what an fx graph calls must have a name
        marks.take()

    graph, places = copy_of(module)
    for node in [end_of_inputs(graph), *(place.last for place in places)]:
        with graph.inserting_after(node):
            graph.call_function(mark)
    return fx.GraphModule(module, graph), [place.part for place in places]


def _timed(runner: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], marks: _Marks) -> list[float]:
    marks.take()
    runner(*args, **kwargs)
    marks.take()
    return marks.seconds()


def _cost_of(marks: _Marks) -> float:
    """Seconds that a mark keeps the processor busy, the most that it can lengthen a run by."""
    start = time.perf_counter()
    for _ in range(COSTED_MARKS):
        marks.take()
    spent = time.perf_counter() - start
    marks.taken.clear()
    return spent / COSTED_MARKS


def _summary(parts: Sequence[Part], plain: Sequence[float], marked: NDArray[np.float64], most: float) -> Run:
    """The run; a GPU that is behind the processor does not wait for marks, so that they may cost less than ``most``."""
    count = len(parts) + 1
    mark = min(max(0.0, median(marked.sum(axis=1) - np.array(plain)) / count), most)
    # A mark is read at its end, so that it falls into the part before it; the last part has none.
    own = np.maximum(marked - mark * (np.arange(count + 1) < count), 0.0)
    first, *times, last = (_spread(column) for column in own.T)
    return Run(tuple(parts), first, tuple(times), last, _spread(plain), mark, len(plain))


def _spread(times: Sequence[float] | NDArray[np.float64]) -> Spread:
    low, middle, high = np.percentile(times, QUARTILES)
    return Spread(float(low), float(middle), float(high))
