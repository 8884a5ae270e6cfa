"""Whether a measured speed-up can be: beside what the latencies of single calls and the roofline allow.

A race pairs times within rounds, which takes a drift of the machine off, but not what hits one contestant harder than
the other: where a core is missing, each parallel call loses milliseconds, and what makes fewer of them seems hundreds
of times as fast. So a ratio is set beside the most that the original can take and the least that the result can.

Invariant: a ratio beyond that is not told; why is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from torch import nn

from taso_py.cost.model import CostModel
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
"""How many times the ratio that latencies allow a measured one may be, on a quiet machine and on a busy one."""
PYTHON_S = 30e-6
"""More than Python and PyTorch's dispatcher take around a call of an operator or of a module."""
DISPATCH_S = 2e-6
"""Less than they take around the run of a result."""
WINOGRAD = 4
"""How many times fewer multiplications than by its definition a convolution may need (Lavin and Gray, CVPR 2016)."""
BEYOND = 1.1
"""How far beyond the roofline a time may be, whose ceilings are measured too."""
ESTIMATE_OFF = 3.0
"""How many times what was timed may be of what was estimated, or the reverse, without a word."""


@dataclass(frozen=True)
class Bounds:
    """Between what the times of an original and of a result can be, in seconds."""

    original_s: float
    """The most that the original takes on a quiet machine; infinite where that is not known."""
    result_s: float
    """The least that the result takes."""
    roof_s: float = 0.0
    """The least that the roofline allows the result; 0 where it was never measured."""


def bounds(
    original: Graph, result: Graph, module: object, cost: CostModel, result_s: float | None, roofline: Roofline | None
) -> Bounds:
    """What latencies say of an original and a result.

    Args:
        original: the graph of the original.
        result: that of the result.
        module: the original, whose modules call each other in Python.
        cost: the latencies.
        result_s: those of the result's kernels together; None where a compiler makes kernels of its own, which are
            products and convolutions of the same libraries all the same.
        roofline: the ceilings of the device, if they are known.
    """
    plain = cost.with_tiles(PLAIN)
    running = list(filter(is_running, original.nodes))
    # An operator that cannot be measured alone counts as free, so that nothing is known of the whole.
    most = math.inf if any(isinstance(node.op, Opaque) for node in running) else sum(map(plain.node_cost, running))
    calls = len(running) + (sum(1 for _ in module.modules()) if isinstance(module, nn.Module) else 0)
    if result_s is None:
        result_s = products_seconds(result, cost)
    least = result_s if math.isfinite(result_s) else 0.0
    return Bounds(most + calls * PYTHON_S, least + DISPATCH_S, 0.0 if roofline is None else _roof_s(result, roofline))


def products_seconds(graph: Graph, cost: CostModel) -> float:
    """Return the seconds that the products and convolutions of a graph take, each by its best kernel."""
    products = [n for n in graph.nodes if n.op.is_contraction and is_running(n)]
    return sum(map(cost.node_cost, products))


def _roof_s(graph: Graph, roofline: Roofline) -> float:
    """The least time for a graph's products and convolutions, and for reading and writing what has to be."""
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
    """The operations that a product or convolution needs at least."""
    return (work(node).flops or 0) / (WINOGRAD if isinstance(node.op, Conv2d) else 1)


def why_withheld(
    baseline: Sequence[float], winner: Sequence[float], ratio: float, bounds: Bounds, contention: Contention
) -> str | None:
    """Why a ratio is not told, in a line; None if it can be.

    Args:
        baseline: seconds of the original, by round.
        winner: those of the result.
        ratio: of the two, paired.
        bounds: what can be.
        contention: what there was of the machine meanwhile.
    """
    if ratio <= 1.0:
        return None
    quiet, before, after = contention.is_quiet, median(baseline), median(winner)
    said = "" if quiet else f"; {contention.text} meanwhile"
    if after * BEYOND < bounds.roof_s:
        return (
            f"the result seemed to take {_ms(after)}, but the fastest that was ever measured on this device is "
            f"{_ms(bounds.roof_s)} for such work{said}"
        )
    slack = SLACK if quiet else CONTENDED_SLACK
    if ratio * bounds.result_s > slack * bounds.original_s:  # of a result that may take no time nothing is known
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
    """What to say where a result takes far longer, or far less, than its latencies together; None where it is alike.

    Args:
        estimated_s: the sum of latencies.
        timed_s: what was timed.
        calls: how many calls Python makes.
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
        f"the estimate is far off: the result took {off}; latencies were measured at another speed of this machine "
        "('taso-py latencies clear' forgets them), or something disturbed the timing"
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3f} ms"
