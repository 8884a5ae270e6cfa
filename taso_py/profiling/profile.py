"""The profile of a model: its graph is run unchanged, timed operator by operator, and compared with the roofline.

Invariant: a model is profiled in eager mode, operator by operator; a saved result by its kernels, or by the operators
of its engine. Nothing is rewritten.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path

import torch
from torch import fx

from taso_py.backend import Program, build
from taso_py.backend.plan import NO_PLAN, Format, Plan
from taso_py.backend.schema import stored_bytes
from taso_py.backend.writes import Writes
from taso_py.checking.preserve import counters_of, preserve_state
from taso_py.cost.model import CostModel
from taso_py.engines.session import SessionEngine
from taso_py.engines.table import ENGINES
from taso_py.frontend.hooks import hooks_set_aside
from taso_py.ir.errors import TasoError
from taso_py.ir.node import Node
from taso_py.ir.types import DType, TensorType
from taso_py.kernels.layout import Layouts
from taso_py.kernels.table import PLAIN
from taso_py.kernels.tile import Cover
from taso_py.latency.contention import NOTHING, Contention, Watch
from taso_py.latency.database import LatencyDatabase
from taso_py.latency.environment import Environment
from taso_py.latency.roofline import Roofline, measure_roofline
from taso_py.lock import optimization_lock
from taso_py.models.importing import import_source
from taso_py.models.source import Source
from taso_py.ops.work import Work, region_work, type_bytes
from taso_py.profiling.nodes import (
    caveats,
    duration_as_given,
    has_convolution,
    nodes_computed_by,
    origin_of,
    peaks_by_name,
    types_text,
)
from taso_py.profiling.run import Part, Run, Spread, time_parts
from taso_py.profiling.session import profile_session
from taso_py.profiling.trace import Observed, observe
from taso_py.progress import progress_bar, share_bar
from taso_py.report.profile import Ceilings, Duration, Profile, ProfiledRegion
from taso_py.report.profile_page import profile_page
from taso_py.saving.artifact import check_files
from taso_py.saving.folder import as_json, check_writable, has_keys, write_files
from taso_py.saving.result import SavedResult
from taso_py.unexpected import report_unexpected

PAGE, DATA, TRACE = "profile.html", "profile.json", "trace.json"
"""Files in the output folder; the last is a trace for chrome://tracing or Perfetto."""
_KEYS = ("model", "regions", "ceilings", "environment")
"""Keys by which the data of an earlier profile are known, whose files are replaced."""
KERNEL_S = 5e-7
"""Less than any kernel of a GPU takes; what takes less launches none."""
SPREAD = 1.2
"""Ratio of the quartiles of the latency beyond which the machine counts as busy."""


class ProfileError(TasoError):
    """Raised for a profile that cannot be made as asked."""


@dataclass(frozen=True)
class ProfileOptions:
    """Options of a profile; the defaults are those of the command line."""

    seconds: float = 5.0
    """Seconds of runs with timing marks; the model as given is timed for a third of that."""
    seed: int = 0
    isolates: bool = True
    """True if operators are also measured alone; those whose latency is not known take a few hundredths of a second."""
    progress: bool = False

    def __post_init__(self) -> None:
        if not self.seconds > 0:
            raise ProfileError("profiling needs a time above 0; give --seconds a positive number")


def profile_source(
    source: Source, options: ProfileOptions, output: Path | None = None, saved: SavedResult | None = None
) -> Profile:
    """Profile a model or a saved result, and write the profile to a folder if one is given.

    Args:
        source: the model.
        options: the options of the profile.
        output: the folder for page, data and trace, if any.
        saved: the saved result whose program the model is, to profile its kernels; None for plain operators.

    Raises:
        ProfileError: the result runs in a compiler.
        EngineUnavailableError: this machine does not have the result's engine.
        ArtifactError: the folder cannot be written to, or a file with such a name belongs to the user.
    """
    engine = ENGINES[saved.runtime] if saved is not None else None
    if saved is not None and not (saved.runtime == "eager" or isinstance(engine, SessionEngine)):
        raise ProfileError(
            f"{saved.folder} runs in {saved.runtime}, whose operators cannot be timed one by one; "
            f"profile {saved.program} to see the operators of its graph in eager mode"
        )
    if output is not None:
        files = [PAGE, DATA] if isinstance(engine, SessionEngine) else [PAGE, DATA, TRACE]
        check_writable(output, files, files if has_keys(output / DATA, _KEYS) else ())
    with (
        optimization_lock(),
        report_unexpected(f"profiling {source.name}"),
        torch.no_grad(),
        hooks_set_aside(source.module, source.args, source.kwargs),
    ):
        program = import_source(source)
        if Writes.of(program.graph).inputs:
            source = source.with_own_inputs()
        if saved is not None:
            check_files(saved)
        if saved is not None and isinstance(engine, SessionEngine):
            profile = profile_session(
                source, saved, engine, program, seconds=options.seconds, progress=options.progress
            )
        else:
            plan = NO_PLAN if saved is None else saved.plan_for(program)
            if saved is not None:  # the module as given is the result, not its program
                source = replace(source, module=build(program, plan))
            (profile,) = profile_modules(source, [(program, plan)], options, output)
    if saved is not None and saved.other_threads is not None:
        profile = replace(profile, notes=(*profile.notes, saved.other_threads))
    if output is not None:
        profile = replace(profile, saved=str(output))
        write_files(output, {DATA: as_json(profile.as_dict()), PAGE: profile_page(profile)})
    return profile


def profile_modules(
    source: Source,
    computed: Sequence[tuple[Program, Plan]],
    options: ProfileOptions,
    output: Path | None = None,
) -> list[Profile]:
    """Profile programs with their plans side by side, in the same rounds.

    Args:
        source: the model they were made from, which is also timed as given; its inputs are used.
        computed: programs, each with its plan.
        options: the options of the profile.
        output: an existing folder for the Chrome trace of the last, if any.
    """
    args, kwargs, (first, _) = source.args, source.kwargs, computed[0]
    device = first.device
    modules = [build(program, plan) for program, plan in computed]
    with torch.no_grad(), preserve_state(first, modules, (args, kwargs)):
        restore = counters_of(first, modules, (args, kwargs))
        watch = Watch(device)
        original = duration_as_given(source, first, options.seconds / 3)
        with share_bar("run", shown=options.progress) as on_share:
            runs = time_parts(
                modules, args, kwargs, device=device, seconds=options.seconds, on_round=on_share, restore=restore
            )
        contention = watch.contention()
        jobs = [
            _ProfileBuilder(
                source, options, program=program, plan=plan, module=module, contention=contention, restore=restore
            )
            for (program, plan), module in zip(computed, modules, strict=True)
        ]
        return [job.run(run, original, output) for job, run in zip(jobs, runs, strict=True)]


@dataclass
class _ProfileBuilder:
    """Makes the profile of one program from the times of its runs."""

    source: Source
    options: ProfileOptions
    program: Program
    plan: Plan
    module: fx.GraphModule
    contention: Contention
    """Load of the processor's cores by other programs during the timing."""
    restore: Callable[[], None] = lambda: None
    """Restores what the module counts, before each run."""

    def run(self, run: Run, original: Duration, output: Path | None) -> Profile:
        """Return the profile for the measured runs of the module."""
        source, device = self.source, self.program.device
        names = [self._name(part) for part in run.parts]
        trace = None if output is None else output / TRACE
        seen = observe(
            self.module,
            names,
            args=source.args,
            kwargs=source.kwargs,
            device=device,
            trace=trace,
            restore=self.restore,
        )
        with LatencyDatabase() as database:
            dtypes = {self._dtype(part) for part in run.parts}
            convolved = {self._dtype(part) for part in run.parts if has_convolution(self._nodes(part))}
            progress = self.options.progress
            roofline = measure_roofline(device, dtypes, database, convolved=convolved, progress=progress)
            cost = CostModel(
                device,
                database,
                weight_bytes=stored_bytes(self.program.weights.values()),
                tiles=PLAIN,
                formats=[Format.DENSE],
                progress=progress,
                captured=device.type == "cuda",
            )
            called = roofline
            if device.type == "cuda":  # parts take what their kernels take, without launches
                called = roofline.with_calls(time.median for time in run.times if time.median > KERNEL_S)
            regions = tuple(self._regions(run, seen, called, cost))
        return self._profile(run, original, regions, seen, roofline)

    def _profile(
        self, run: Run, original: Duration, regions: tuple[ProfiledRegion, ...], seen: Observed, roofline: Roofline
    ) -> Profile:
        return Profile(
            model=self.source.name,
            device=str(self.program.device),
            original=original,
            whole=_duration(run.whole),
            input=_duration(run.input),
            output=_duration(run.output),
            regions=regions,
            ceilings=Ceilings(
                peaks=peaks_by_name(roofline),
                levels=tuple((level.size, level.bandwidth) for level in roofline.levels),
                dispatch_ms=roofline.dispatch_s * 1e3,
            ),
            rounds=run.rounds,
            mark_ms=run.mark_s * 1e3,
            busy_ms=None if seen.busy_s is None else seen.busy_s * 1e3,
            peak_bytes=max(seen.live_bytes, default=0),
            weight_bytes=stored_bytes(self.program.weights.values()),
            input_bytes=stored_bytes(self.program.example_inputs),
            environment=Environment.current(self.program.device).as_dict(),
            seed=self.options.seed,
            notes=(*self.source.notes, *_notes(regions, run, self.program.device, seen, self.contention)),
        )

    def _regions(self, run: Run, seen: Observed, roofline: Roofline, cost: CostModel) -> Iterator[ProfiledRegion]:
        layouts = Layouts()
        starts = accumulate((time.median for time in run.times), initial=run.input.median)
        parts = progress_bar(run.parts, desc="measure", unit="op", shown=self.options.progress)
        for part, start, time, live in zip(parts, starts, run.times, seen.live_bytes, strict=False):
            nodes = self._nodes(part)
            work = _work(nodes, layouts) if nodes else _copy_work(part.laid)
            ceiling = roofline.ceiling(work, self._dtype(part), len(part.calls), convolves=has_convolution(nodes))
            origin = origin_of(self.program, nodes)
            alone_s = self._isolated(nodes, cost) if nodes and self.options.isolates else math.nan
            yield ProfiledRegion(
                kind=self._name(part),
                operators=tuple(node.op.text for node in nodes),
                calls=part.calls,
                types=_types(part, nodes),
                line=origin.line,
                module=origin.module,
                start_ms=start * 1e3,
                time=_duration(time),
                isolated_ms=alone_s * 1e3 if math.isfinite(alone_s) else None,
                flops=work.flops,
                moved_bytes=work.moved,
                dtype=str(self._dtype(part)),
                bound=ceiling.bound.value,
                ceiling_ms=ceiling.seconds * 1e3,
                live_bytes=live,
            )

    def _isolated(self, nodes: list[Node], cost: CostModel) -> float:
        """Return the sum of the latencies of nodes, measured alone with the kernels of the module."""
        step = self.plan.step(nodes[-1])
        if step.kernel is None:
            return sum(map(cost.node_cost, nodes))
        assert isinstance(step.kernel, Cover), "kernels are chosen among those that tiles give"
        rest = [node for node in nodes if node not in step.kernel.nodes]
        return cost.cover_seconds(step.kernel, (step.reads, step.gives)) + sum(map(cost.node_cost, rest))

    @cached_property
    def _by_digest(self) -> Mapping[str, Node]:
        return {node.digest: node for node in self.program.graph.nodes}

    @cached_property
    def _called(self) -> frozenset[Node]:
        """Nodes that have calls of their own in the module."""
        digests = {node.meta["digest"] for node in self.module.graph.nodes if "digest" in node.meta}
        return frozenset(node for digest, node in self._by_digest.items() if digest in digests)

    def _nodes(self, part: Part) -> list[Node]:
        """Return the nodes that a part computes: its own, last, and predecessors without calls of their own."""
        root = self._by_digest.get(part.digest or "")
        return [] if root is None else nodes_computed_by([root], self._called)

    def _name(self, part: Part) -> str:
        root = self._by_digest.get(part.digest or "")
        if root is None:
            return part.calls[0]
        return "+".join(str(getattr(node.op, "target", node.op.name)) for node in self._nodes(part))

    def _dtype(self, part: Part) -> DType:
        """Return the element type that a part computes in: that of its first floating-point operand or result."""
        nodes = self._nodes(part)
        types = [*(t for node in nodes for t in (*(value.type for value in node.inputs), *node.types)), *part.laid]
        return next((type_.dtype for type_ in types if type_.dtype.is_floating), DType.I64)


def _notes(
    regions: Sequence[ProfiledRegion], run: Run, device: torch.device, seen: Observed, contention: Contention = NOTHING
) -> Iterator[str]:
    """Yield notes on figures that are unreliable or missing."""
    if seen.is_hidden:
        yield "memory in use is unknown: it can be observed in the main thread only, and not beside another profiler"
    elif device.type == "cuda" and seen.busy_s is None:
        yield "the GPU's driver reported no kernel events (CUPTI), so that the time it was busy is unknown"
    yield from caveats(regions, contention)
    if contention.is_quiet and run.whole.high > SPREAD * run.whole.low:
        yield "the quartiles of the latency are far apart: other programs keep the machine busy"


def _work(nodes: list[Node], layouts: Layouts) -> Work:
    """Return the work of nodes; a view has none, whatever its definition says it reads."""
    if len(nodes) == 1 and layouts.is_view(nodes[0]):
        return Work(0, 0, 0)
    return region_work(nodes, nodes[-1].outputs)


def _copy_work(types: Sequence[TensorType]) -> Work:
    """Return the work of copying values into another memory layout."""
    size = sum(map(type_bytes, types))
    return Work(0, size, size)


def _types(part: Part, nodes: list[Node]) -> str:
    if not nodes:
        return ", ".join(type_.text for type_ in part.laid)
    return types_text(nodes)


def _duration(spread: Spread) -> Duration:
    return Duration(spread.median * 1e3, spread.low * 1e3, spread.high * 1e3)
