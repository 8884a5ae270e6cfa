"""Headroom: how much faster a model could get at all on this device.

The lower bound of a model adds up the least times of its operators on this device: for each its operations at the
measured peak of matrix products, or the time to read its weights at the measured bandwidth of the memory level that all
of them fit in, whichever is longer. Activations, calls and everything that can be fused cost nothing there. The peak is
that of plain products, so that packed ones get below the bound by some percent; other algorithms may get below it by
more: those with fewer operations than the definitions have (Winograd's convolutions), with fewer bits, or for several
runs at once.

Invariant: the times of a row come from one race, and the ceilings from the same process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from statistics import median
from typing import Any

import torch
from matplotlib.figure import Figure

from experiments.deployed import SESSIONS, session_engine
from experiments.drawing import grouped_bars
from experiments.end_to_end import FULL
from experiments.harness import Experiment, Row, Settings
from experiments.subject import Subject, subject
from experiments.ways import ORIGINAL
from taso_py.backend.plan import NO_PLAN
from taso_py.engines.engine import EngineUnavailableError
from taso_py.engines.table import prepare
from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, is_running
from taso_py.ir.types import DType
from taso_py.judging.timing import race
from taso_py.latency.clock import median_interval
from taso_py.latency.database import LatencyDatabase
from taso_py.latency.idle import wait_until_idle
from taso_py.latency.roofline import Roofline, measure_roofline
from taso_py.ops.contraction import Conv2d
from taso_py.ops.work import value_bytes, work
from taso_py.search.cost import is_stored

QUICK = ("squeezenet1_1",)
KERNELS, COMPILED = "kernels", "compiled"
RUNTIME = "inductor-freezing"
"""The compiler's runtime."""
WAYS = (ORIGINAL, KERNELS, COMPILED, *SESSIONS)


def floor_seconds(graph: Graph, roofline: Roofline) -> tuple[float, float]:
    """Return the lower bound of a graph in seconds, and the part of it in compute-bound nodes."""
    nodes = [node for node in graph.nodes if is_running(node)]
    weights = {node: sum(value_bytes(value) for value in set(node.inputs) if is_stored(value)) for node in nodes}
    bandwidth = roofline.level(sum(weights.values())).bandwidth
    pairs = [(_compute_seconds(node, roofline), read / bandwidth) for node, read in weights.items()]
    return sum(map(max, pairs)), sum(compute for compute, memory in pairs if compute >= memory)


def _roofline(graph: Graph, device: torch.device, database: LatencyDatabase) -> Roofline:
    """Return the ceilings for the types of the nodes that run."""
    nodes = [node for node in graph.nodes if is_running(node) and node.types]
    dtypes, convolved = ({_dtype(node) for node in some} for some in (nodes, filter(_convolves, nodes)))
    return measure_roofline(device, dtypes, database, convolved=convolved)


def _dtype(node: Node) -> DType:
    return node.types[0].dtype


def _convolves(node: Node) -> bool:
    return isinstance(node.op, Conv2d)


def _compute_seconds(node: Node, roofline: Roofline) -> float:
    peak = roofline.peak(_dtype(node), convolves=_convolves(node))
    return (work(node).flops or 0) / peak if peak else 0.0


def _measure(name: str, settings: Settings) -> Sequence[Row]:
    with subject(name, settings) as model:
        graph, device = model.program.graph, model.program.device
        roofline = _roofline(graph, device, model.database)
        seconds = 6.0 if settings.quick else 20.0
        held = race(
            _calls(model),
            device=device,
            seconds=seconds,
            seed=settings.seed,
            until_clear=False,
            settle=wait_until_idle if device.type == "cpu" else None,
        )
    floor, compute = floor_seconds(graph, roofline)
    row: dict[str, Any] = {
        "model": name,
        "gflop": sum(work(node).flops or 0 for node in graph.nodes if is_running(node)) / 1e9,
        "peak_gflop/s": max(*roofline.peaks.values(), roofline.convolution_peak or 0.0, 0.0) / 1e9,
        "floor_ms": floor * 1e3,
        "compute_share": compute / floor,
        "original_ms": median(held.times[ORIGINAL]) * 1e3,
    }
    for way, times in held.times.items():
        row |= _over(floor, way, times)
    return [row]


def _calls(model: Subject) -> Mapping[str, Callable[[], Any]]:
    source, plan = model.source, model.cost.plan(model.program.graph)
    calls = {ORIGINAL: model.call(NO_PLAN), KERNELS: model.call(plan)}
    with suppress(EngineUnavailableError):
        calls[COMPILED] = source.call_of(prepare(source.callable(), RUNTIME, source.args, source.kwargs))
    for engine in map(session_engine, SESSIONS):
        if engine.absence(model.program.device) is None:
            with suppress(EngineUnavailableError):
                calls[engine.name] = source.call_of(engine.build(model.program))
    return calls


def _over(floor: float, way: str, times: Sequence[float]) -> Row:
    """Return a way's time as a multiple of the lower bound, with the interval."""
    found = median_interval(sorted(times))
    return {way: found.median / floor, f"{way}_low": found.low / floor, f"{way}_high": found.high / floor}


def _plot(figure: Figure, rows: Sequence[Row]) -> None:
    grouped_bars(figure, rows, WAYS, "time over the least that the device's ceilings allow (medians, 95% intervals)")


EXPERIMENT = Experiment(
    "headroom",
    "How much faster could models get at all?",
    reading=(
        "each of `original`, `kernels`, `compiled` (Inductor with freezing), `onnxruntime` and `openvino` (the "
        "unchanged graph) is the time of a run over `floor_ms`, what the operations take at the measured peak, or the "
        "weights at the measured bandwidth where that is longer: who computes the same in the same precision gains "
        "hardly more than that factor; `compute_share` is the share of the floor that operations account for"
    ),
    parts=lambda settings: settings.choose(QUICK, FULL),
    measure=_measure,
    plot=_plot,
)
