"""Facts about groups of graph nodes that all kinds of profiles state: types, origin in the source, roofline, notes.

Invariant: nothing here is timed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from taso_py.backend import Program
from taso_py.backend.program import Origin
from taso_py.checking.preserve import preserve_state, repeatable
from taso_py.ir.node import Node, is_running
from taso_py.latency.clock import measure
from taso_py.latency.contention import Contention
from taso_py.latency.roofline import Bound, Roofline
from taso_py.models.source import Source
from taso_py.ops.contraction import Conv2d
from taso_py.report.profile import BEYOND, Duration, ProfiledRegion


def duration_as_given(source: Source, program: Program, seconds: float) -> Duration:
    """Return the duration of a call of a source's module, measured for a number of seconds.

    Args:
        source: the model; what it writes to is as before afterwards.
        program: the model as a program.
        seconds: how long to measure.
    """
    module, arguments = source.without_checks(), (source.args, source.kwargs)
    with preserve_state(program, [module], arguments):
        call = repeatable(source.call_of(module), program, module, arguments)
        found = measure(call, device=program.device, budget_s=seconds, width=0.0)
    return Duration(found.median_s * 1e3, found.low_s * 1e3, found.high_s * 1e3)


def nodes_computed_by(roots: Sequence[Node], called: Collection[Node]) -> list[Node]:
    """Return nodes and those predecessors that no other call computes, in the order of the graph.

    Args:
        roots: nodes that a call is known to compute.
        called: all nodes that calls are known to compute.
    """
    found: dict[Node, None] = {}
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node not in found:
            found[node] = None
            stack += [value.node for value in node.inputs if value.node not in called and is_running(value.node)]
    return list(reversed(found))


def has_convolution(nodes: Sequence[Node]) -> bool:
    """Return whether a convolution is among nodes."""
    return any(isinstance(node.op, Conv2d) for node in nodes)


def types_text(nodes: Sequence[Node]) -> str:
    """Return the types of the operands of a group of nodes, and of the last node's results."""
    inside = set(nodes)
    operands = [value.type.text for node in nodes for value in node.inputs if value.node not in inside]
    return f"{', '.join(operands)} -> {', '.join(type_.text for type_ in nodes[-1].types)}"


def origin_of(program: Program, nodes: Sequence[Node]) -> Origin:
    """Return the place in the model's source of the last node whose origin is known."""
    known = [program.provenance[node.digest] for node in nodes if node.digest in program.provenance]
    return known[-1] if known else Origin("")


def peaks_by_name(roofline: Roofline) -> dict[str, float]:
    """Return the peaks of a roofline by a name for users."""
    peaks = {str(dtype): peak for dtype, peak in roofline.peaks.items()}
    return peaks if roofline.convolution_peak is None else {**peaks, "f32 convolutions": roofline.convolution_peak}


def caveats(regions: Sequence[ProfiledRegion], contention: Contention) -> Iterator[str]:
    """Yield notes on figures of a profile that are unreliable."""
    if any(region.achieved > BEYOND and region.bound != Bound.OVERHEAD.value for region in regions):
        yield (
            "operators marked '?' are faster than the roofline, which was measured on a busier machine; when it is "
            "idle, delete the measurements with 'taso-py latencies clear' and profile again"
        )
    if not contention.is_quiet:
        yield f"{contention.text} while this was timed; {contention.advice}"
