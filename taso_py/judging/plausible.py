"""Plausibility of a measured speed-up, by bounds from the latencies of single calls and from the roofline.

A race pairs times within rounds, which cancels a drift of the machine's speed, but not a disturbance that hits one
contestant harder than the other: if another program occupies a core, each parallel call loses milliseconds, and a
module with fewer such calls seems hundreds of times as fast. So a ratio is compared with an upper bound on the
original's time and a lower bound on the result's.

Invariant: a ratio beyond these bounds is not reported; the reason is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from torch import nn

from taso_py.cost.model import CostModel
from taso_py.engines.fusing import is_library_call
from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, is_running
from taso_py.ir.types import DType
from taso_py.kernels.table import PLAIN
from taso_py.latency.contention import Contention
from taso_py.latency.roofline import Roofline
from taso_py.ops.contraction import Conv2d
from taso_py.ops.opaque import Opaque
from taso_py.ops.work import value_bytes, work

SLACK, CONTENDED_SLACK = 3.0, 1.5
"""Factor by which a measured ratio may exceed the bound from latencies, on a quiet machine and on a busy one."""
PYTHON_S = 30e-6
"""Upper bound on the overhead of Python and PyTorch's dispatcher for the call of an operator or a module."""
DISPATCH_S = 2e-6
"""Lower bound on this overhead for a whole run of a result."""
WINOGRAD = 4
"""Factor by which a convolution may need fewer multiplications than its definition (Lavin and Gray, CVPR 2016)."""
BEYOND = 1.1
"""Factor by which a time may beat the roofline, whose ceilings are measurements too."""
ESTIMATE_OFF = 3.0
"""Factor between estimated and measured time beyond which a note tells the user."""


@dataclass(frozen=True)
class Bounds:
    """Bounds on the times of an original and of a result, in seconds."""

    original_s: float
    """The longest time that the original takes on a quiet machine; infinite if unknown."""
    result_s: float
    """The shortest time that the result can take."""
    roof_s: float = 0.0
    """The shortest time that the roofline allows for the result; 0 if the roofline was never measured."""


def bounds(
    original: Graph, result: Graph, module: object, cost: CostModel, result_s: float | None, roofline: Roofline | None
) -> Bounds:
    """Return bounds on the times of an original and of a result.

    Args:
        original: the graph of the original.
        result: the graph of the result.
        module: the original module; calls of its submodules add overhead.
        cost: the latencies.
        result_s: the sum of the latencies of the result's kernels; None if a compiler generates them, which then count
            as its matrix products, convolutions and attention alone, since it calls the same libraries for those.
        roofline: the ceilings of the device, if they are known.
    """
    plain = cost.with_tiles(PLAIN)
    running = list(filter(is_running, original.nodes))
    # An opaque operator has no latency of its own, so that there is no upper bound for the whole.
    most = math.inf if any(isinstance(node.op, Opaque) for node in running) else sum(map(plain.node_cost, running))
    calls = len(running) + (sum(1 for _ in module.modules()) if isinstance(module, nn.Module) else 0)
    if result_s is None:
        result_s = library_seconds(result, cost)
    least = result_s if math.isfinite(result_s) else 0.0
    return Bounds(most + calls * PYTHON_S, least + DISPATCH_S, 0.0 if roofline is None else _roof_s(result, roofline))


def library_seconds(graph: Graph, cost: CostModel) -> float:
    """Return the sum of the latencies of a graph's products, convolutions and attention, each by its best kernel."""
    return sum(cost.node_cost(node) for node in graph.nodes if is_library_call(node) and is_running(node))


def _roof_s(graph: Graph, roofline: Roofline) -> float:
    """Return the least time for a graph's products and convolutions, and for writing its outputs."""
    nodes = list(filter(is_running, graph.nodes))
    if not nodes or any(isinstance(node.op, Opaque) for node in nodes):
        return 0.0
    computing = sum(_flops(node) / peak for node in nodes if (peak := _peak(node, roofline)))
    written = sum(map(value_bytes, set(graph.outputs)))
    return max(computing, written / max(level.bandwidth for level in roofline.levels))


def _peak(node: Node, roofline: Roofline) -> float | None:
    if not node.op.is_contraction or node.types[0].dtype is not DType.F32:
        return None
    peaks = [roofline.peak(DType.F32, convolves=convolves) for convolves in (False, True)]
    return max((peak for peak in peaks if peak), default=None)


def _flops(node: Node) -> float:
    """Return a lower bound on the operations of a product or convolution."""
    return (work(node).flops or 0) / (WINOGRAD if isinstance(node.op, Conv2d) else 1)


def why_withheld(
    baseline: Sequence[float], winner: Sequence[float], ratio: float, bounds: Bounds, contention: Contention
) -> str | None:
    """Return why a measured ratio must not be reported, in one line; None if it may be.

    Args:
        baseline: seconds of the original, by round.
        winner: seconds of the result, by round.
        ratio: the median of the paired ratios.
        bounds: bounds on the two times.
        contention: load of the machine by other programs during the race.
    """
    if ratio <= 1.0:
        return None
    quiet, before, after = contention.is_quiet, median(baseline), median(winner)
    said = "" if quiet else f"; {contention.text} meanwhile"
    if after * BEYOND < bounds.roof_s:
        return (
            f"the result seemed to take {_ms(after)}, but at the highest rates ever measured on this device its work "
            f"takes {_ms(bounds.roof_s)}{said}"
        )
    slack = SLACK if quiet else CONTENDED_SLACK
    if ratio * bounds.result_s > slack * bounds.original_s:  # False where the lower bound is 0
        allowed = slack * bounds.original_s / bounds.result_s
        return (
            f"{_ms(before)} against {_ms(after)} is more than {allowed:.1f} times, the most that the operators' own "
            f"latencies allow{said}"
        )
    fastest = min(baseline) / min(winner)
    if not quiet and ratio > CONTENDED_SLACK * fastest:
        return f"the fastest rounds, which were disturbed least, show {fastest:.2f}x, far from the median of all{said}"
    return None


def estimate_note(estimated_s: float, timed_s: float, calls: int) -> str | None:
    """Return a note if a result's time is far from the sum of its latencies; None if they agree.

    Args:
        estimated_s: the sum of latencies.
        timed_s: the measured time.
        calls: the number of calls from Python.
    """
    if not (math.isfinite(estimated_s) and estimated_s > 0):
        return None
    if timed_s > ESTIMATE_OFF * (estimated_s + calls * PYTHON_S):
        off = f"{timed_s / estimated_s:.0f} times as long"
    elif timed_s * ESTIMATE_OFF < estimated_s:
        off = f"{estimated_s / timed_s:.0f} times less"
    else:
        return None
    return (
        f"the estimate is far off: the result took {off}; either latencies were measured at another speed of this "
        "machine ('taso-py latencies clear' deletes them), or something disturbed the timing"
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3f} ms"
