"""The profile of a saved result in an engine for whole graphs, from the engine's own profiler.

An engine replaces our operators by its own. Each of these is matched by name with nodes of our graph, which give its
operations and its origin in the source; the engine reports the bytes that it reads and writes.

Invariant: the engine's saved file is profiled.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

from torch import nn

from taso_py.backend import Program
from taso_py.backend.schema import stored_bytes
from taso_py.engines.session import NodeTime, SessionEngine, model_inputs
from taso_py.ir.node import Node
from taso_py.ir.types import DType
from taso_py.latency.contention import Contention, Watch
from taso_py.latency.database import LatencyDatabase
from taso_py.latency.environment import Environment
from taso_py.latency.idle import wait_until_idle
from taso_py.latency.roofline import Roofline, measure_roofline
from taso_py.models.source import Source
from taso_py.ops.work import Work, region_work
from taso_py.profiling.nodes import (
    caveats,
    duration_as_given,
    has_convolution,
    nodes_computed_by,
    origin_of,
    peaks_by_name,
    types_text,
)
from taso_py.report.profile import Ceilings, Duration, Profile, ProfiledRegion
from taso_py.saving.result import SavedResult

LEAST_RUNS, MOST_RUNS = 8, 128
LEAST_S = 1e-7
"""Time of an operator that the profiler, which reports microseconds, rounds to zero."""
DIGITS = 16
"""Number of digits of a node's digest in the names of the engine's operators."""
_OUR_NODE = re.compile(rf"\.([0-9a-f]{{{DIGITS}}})\.\d+")
_OUR_OUTPUT = re.compile(r"^output_(\d+)(?!\d)")
NOTHING = Duration(0.0, 0.0, 0.0)


def profile_session(
    source: Source, saved: SavedResult, engine: SessionEngine, program: Program, *, seconds: float, progress: bool
) -> Profile:
    """Return the profile of a saved result in its engine.

    Args:
        source: the saved program, and its inputs.
        saved: the saved result.
        engine: the engine that the result runs in.
        program: the saved program, imported.
        seconds: time of runs with the profiler on; whole runs without it take another third of that.
        progress: whether to show a bar while the roofline is measured.

    Raises:
        EngineUnavailableError: this machine does not have the engine, or it cannot read the saved file.
    """
    module: nn.Module = engine.restore(program, saved.folder)
    model = engine.saved_model(program, saved.folder / engine.file)
    wait_until_idle()
    watch = Watch(program.device)
    original = duration_as_given(replace(source, module=module), program, seconds / 3)
    runs = max(LEAST_RUNS, min(MOST_RUNS, int(seconds / (original.ms * 1e-3))))
    times = engine.profile(model, model_inputs(program), runs)
    session = _SessionProfile(program, engine, times)
    with LatencyDatabase() as database:
        roofline = measure_roofline(
            program.device, session.dtypes, database, convolved=session.convolved, progress=progress
        )
    return session.profile(
        source, original, runs, roofline.with_calls(max(time.seconds, LEAST_S) for time in times), watch.contention()
    )


@dataclass(frozen=True)
class _SessionProfile:
    """Times from an engine's profiler, matched with the nodes of a program."""

    program: Program
    engine: SessionEngine
    times: Sequence[NodeTime]

    @cached_property
    def nodes(self) -> Sequence[Sequence[Node]]:
        """The graph's nodes that each operator of the engine computes, as far as its names show."""
        roots = [self._named(time) for time in self.times]
        called = {node for found in roots for node in found}
        claimed: set[Node] = set()
        nodes: list[Sequence[Node]] = []
        for found in roots:
            computed = [node for node in nodes_computed_by(found, called) if node not in claimed]
            claimed.update(computed)
            nodes.append(computed)
        return nodes

    def _named(self, time: NodeTime) -> Sequence[Node]:
        """Return the nodes that occur in an operator's names."""
        if time.reorders:
            return []
        found = [self._by_name.get(digest) for name in time.names for digest in _OUR_NODE.findall(name)]
        outputs = [match for name in time.names if (match := _OUR_OUTPUT.match(name))]
        found += [self.program.graph.outputs[int(match[1])].node for match in outputs]
        return [node for node in dict.fromkeys(found) if node is not None]

    @cached_property
    def _by_name(self) -> Mapping[str, Node]:
        return {node.digest[:DIGITS]: node for node in self.program.graph.nodes}

    @property
    def dtypes(self) -> set[DType]:
        """The element types of the computations."""
        return set(map(_dtype, self.nodes))

    @property
    def convolved(self) -> set[DType]:
        """The element types of the convolutions."""
        return {_dtype(nodes) for nodes in self.nodes if has_convolution(nodes)}

    def regions(self, roofline: Roofline) -> Iterator[ProfiledRegion]:
        """Yield the operators of the engine in the order of a run."""
        durations = [_duration(time) for time in self.times]
        starts = accumulate((duration.ms for duration in durations), initial=0.0)
        for time, nodes, start, duration in zip(self.times, self.nodes, starts, durations, strict=False):
            known = region_work(nodes, nodes[-1].outputs) if nodes else Work(None, 0, 0)
            work = Work(known.flops, time.moved_bytes or known.moved, 0)
            ceiling = roofline.ceiling(work, _dtype(nodes), convolves=has_convolution(nodes))
            origin = origin_of(self.program, nodes)
            yield ProfiledRegion(
                kind=time.kind,
                operators=tuple(node.op.text for node in nodes),
                calls=(time.name,),
                types=types_text(nodes) if nodes else "",
                line=origin.line,
                module=origin.module,
                start_ms=start,
                time=duration,
                isolated_ms=None,
                flops=work.flops,
                moved_bytes=work.moved,
                dtype=str(_dtype(nodes)),
                bound=ceiling.bound.value,
                ceiling_ms=ceiling.seconds * 1e3,
                live_bytes=0,
            )

    def profile(
        self, source: Source, original: Duration, runs: int, roofline: Roofline, contention: Contention
    ) -> Profile:
        """Return the profile."""
        regions = tuple(self.regions(roofline))
        times = [region.time for region in regions]
        return Profile(
            model=source.name,
            device=str(self.program.device),
            original=original,
            whole=Duration(sum(t.ms for t in times), sum(t.low_ms for t in times), sum(t.high_ms for t in times)),
            input=NOTHING,
            output=NOTHING,
            regions=regions,
            ceilings=Ceilings(
                peaks=peaks_by_name(roofline),
                levels=tuple((level.size, level.bandwidth) for level in roofline.levels),
                dispatch_ms=roofline.dispatch_s * 1e3,
            ),
            rounds=runs,
            mark_ms=0.0,
            busy_ms=None,
            peak_bytes=0,
            weight_bytes=stored_bytes(self.program.weights.values()),
            input_bytes=stored_bytes(self.program.example_inputs),
            environment=Environment.current(self.program.device).for_engine(self.engine.version).as_dict(),
            notes=(*source.notes, *caveats(regions, contention)),
            engine=self.engine.name,
        )


def _duration(time: NodeTime) -> Duration:
    low, high = time.quartiles
    return Duration(*(max(seconds, LEAST_S) * 1e3 for seconds in (time.seconds, low, high)))


def _dtype(nodes: Sequence[Node]) -> DType:
    """Return the element type that nodes compute in: that of a floating-point value of theirs, else f32."""
    types = [type_ for node in nodes for type_ in (*(value.type for value in node.inputs), *node.types)]
    return next((type_.dtype for type_ in types if type_.dtype.is_floating), DType.F32)
