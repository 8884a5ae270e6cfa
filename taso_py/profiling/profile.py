"""The profile of a model: its graph is run as it is, timed from inside, and set beside the device's roofline.

Invariant: what is profiled is the model in eager mode, operator by operator as PyTorch computes it or, if it is a saved
result, kernel by kernel as that does, or operator by operator as its engine does; nothing is rewritten.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path

import torch
from torch import fx

from taso_py.backend import Program, build
from taso_py.backend.plan import NO_PLAN, Format, Plan
from taso_py.backend.schema import stored_bytes
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
from taso_py.models.importing import import_source
from taso_py.models.source import Source
from taso_py.ops.work import Work, region_work, type_bytes
from taso_py.profiling.nodes import (
    computed_with,
    doubts,
    duration_as_given,
    has_convolution,
    origin_of,
    peaks_by_name,
    types_text,
)
from taso_py.profiling.run import Part, Run, Spread, time_parts
from taso_py.profiling.session import profile_session
from taso_py.profiling.trace import Observed, observe
from taso_py.progress import progress_bar, share_bar
from taso_py.report.profile import Ceilings, Duration, Profile, Region
from taso_py.report.profile_page import profile_page
from taso_py.saving.artifact import SavedResult
from taso_py.saving.folder import as_json, check_writable, write_files
from taso_py.turn import in_turn
from taso_py.unexpected import reported

PAGE, DATA, TRACE = "profile.html", "profile.json", "trace.json"
"""What the output folder gets; the last is a trace for chrome://tracing or Perfetto."""
SPREAD = 1.2
"""How far apart quartiles are on a machine that does something else."""


class ProfileError(TasoError):
    """A profile that cannot be made as asked."""


@dataclass(frozen=True)
class ProfileOptions:
    """How to profile; the defaults are those of the command line."""

    seconds: float = 5.0
    """Of runs that are timed from inside; the model as given is timed for a third of that."""
    seed: int = 0
    progress: bool = False

    def __post_init__(self) -> None:
        if not self.seconds > 0:
            raise ProfileError("profiling needs a time above 0; give --seconds a few")


def profile_source(
    source: Source, options: ProfileOptions, output: Path | None = None, saved: SavedResult | None = None
) -> Profile:
    """Profiles what MODEL names.

    Args:
        source: the model.
        options: how to profile.
        output: the folder for page, data and trace, if any.
        saved: the result that the model is the program of, computed by its kernels; None for plain operators.

    Raises:
        ProfileError: the result runs in a compiler.
        EngineUnavailableError: this machine does not have the engine that it runs in.
    """
    engine = ENGINES[saved.runtime] if saved is not None else None
    if saved is not None and not (saved.runtime == "eager" or isinstance(engine, SessionEngine)):
        raise ProfileError(
            f"{saved.folder} runs in {saved.runtime}, where nothing can be timed between two operators; "
            f"profile {saved.program} for its operators one by one"
        )
    if output is not None:
        check_writable(output)
    with (
        in_turn(),
        reported(f"profiling {source.name}"),
        torch.no_grad(),
        hooks_set_aside(source.module, source.args, source.kwargs),
    ):
        program = import_source(source)
        if saved is not None:
            saved.check()
        if saved is not None and isinstance(engine, SessionEngine):
            profile = profile_session(
                source, saved, engine, program, seconds=options.seconds, progress=options.progress
            )
        else:
            plan = NO_PLAN if saved is None else saved.plan_for(program)
            if saved is not None:  # what is given is not the program, but what runs it
                source = replace(source, module=build(program, plan))
            (profile,) = profile_modules(source, [(program, plan)], options, output)
    if saved is not None and saved.other_threads is not None:
        profile = replace(profile, notes=(*profile.notes, saved.other_threads))
    if output is not None:
        profile = replace(profile, saved=str(output))
        write_files(output, {DATA: as_json(profile.as_dict()), PAGE: profile_page(profile).encode()})
    return profile


def profile_modules(
    source: Source,
    computed: Sequence[tuple[Program, Plan]],
    options: ProfileOptions,
    output: Path | None = None,
) -> list[Profile]:
    """Profiles programs, each computed by whichever kernels, side by side in the same rounds.

    Args:
        source: what they were made from; its inputs are taken, and it is timed as given.
        computed: programs, and how each is computed.
        options: how to profile.
        output: an existing folder for the Chrome trace of the last, if any.
    """
    args, kwargs, device = source.args, source.kwargs, computed[0][0].device
    with torch.no_grad():
        modules = [build(program, plan) for program, plan in computed]
        watch = Watch(device)
        original = duration_as_given(source, device, options.seconds / 3)
        with share_bar("run", shown=options.progress) as on_share:
            runs = time_parts(modules, args, kwargs, device, options.seconds, on_share)
        contention = watch.contention()
        jobs = [
            _Job(source, options, program, plan, module, contention)
            for (program, plan), module in zip(computed, modules, strict=True)
        ]
        return [job.run(run, original, output) for job, run in zip(jobs, runs, strict=True)]


@dataclass
class _Job:
    """One profile under way."""

    source: Source
    options: ProfileOptions
    program: Program
    plan: Plan
    module: fx.GraphModule
    contention: Contention
    """What other programs left of the cores while it was timed."""

    def run(self, run: Run, original: Duration, output: Path | None) -> Profile:
        """The profile that a run of the module gives."""
        source, device = self.source, self.program.device
        names = [self._name(part) for part in run.parts]
        trace = None if output is None else output / TRACE
        seen = observe(self.module, names, source.args, source.kwargs, device, trace)
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
            )
            regions = tuple(self._regions(run, seen, roofline, cost))
        return self._profile(run, original, regions, seen, roofline)

    def _profile(
        self, run: Run, original: Duration, regions: tuple[Region, ...], seen: Observed, roofline: Roofline
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

    def _regions(self, run: Run, seen: Observed, roofline: Roofline, cost: CostModel) -> Iterator[Region]:
        layouts = Layouts()
        starts = accumulate((time.median for time in run.times), initial=run.input.median)
        parts = progress_bar(run.parts, desc="measure", unit="op", shown=self.options.progress)
        for part, start, time, live in zip(parts, starts, run.times, seen.live_bytes, strict=False):
            nodes = self._nodes(part)
            work = _work(nodes, layouts) if nodes else _copying(part.laid)
            ceiling = roofline.ceiling(work, self._dtype(part), len(part.calls), convolves=has_convolution(nodes))
            origin = origin_of(self.program, nodes)
            yield Region(
                kind=self._name(part),
                operators=tuple(node.op.text for node in nodes),
                calls=part.calls,
                types=_types(part, nodes),
                line=origin.line,
                module=origin.module,
                start_ms=start * 1e3,
                time=_duration(time),
                isolated_ms=self._isolated(nodes, cost) * 1e3 if nodes else None,
                flops=work.flops,
                moved_bytes=work.moved,
                dtype=str(self._dtype(part)),
                bound=ceiling.bound.value,
                ceiling_ms=ceiling.seconds * 1e3,
                live_bytes=live,
            )

    def _isolated(self, nodes: list[Node], cost: CostModel) -> float:
        """Seconds that nodes take when measured alone, computed as they are in the module."""
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
        """The nodes that have calls of their own."""
        digests = {node.meta["digest"] for node in self.module.graph.nodes if "digest" in node.meta}
        return frozenset(node for digest, node in self._by_digest.items() if digest in digests)

    def _nodes(self, part: Part) -> list[Node]:
        """The nodes that a part computes: that of its calls last, and those before it that have no calls."""
        root = self._by_digest.get(part.digest or "")
        return [] if root is None else computed_with([root], self._called)

    def _name(self, part: Part) -> str:
        root = self._by_digest.get(part.digest or "")
        if root is None:
            return part.calls[0]
        return "+".join(str(getattr(node.op, "target", node.op.name)) for node in self._nodes(part))

    def _dtype(self, part: Part) -> DType:
        """The element type that a part computes in: that of its first floating-point operand, else of its result."""
        nodes = self._nodes(part)
        types = [*(t for node in nodes for t in (*(value.type for value in node.inputs), *node.types)), *part.laid]
        return next((type_.dtype for type_ in types if type_.dtype.is_floating), DType.I64)


def _notes(
    regions: Sequence[Region], run: Run, device: torch.device, seen: Observed, contention: Contention = NOTHING
) -> Iterator[str]:
    """What makes the figures doubtful, and which are missing."""
    if seen.is_hidden:
        yield "what memory is in use is not known: that is seen in the main thread only, beside no other profiler"
    elif device.type == "cuda" and seen.busy_s is None:
        yield "the GPU's driver gave no events of kernels (CUPTI), so that how long it was busy is not known"
    yield from doubts(regions, contention)
    if contention.is_quiet and run.whole.high > SPREAD * run.whole.low:
        yield "the quartiles of the latency are far apart: the machine is busy with something else"


def _work(nodes: list[Node], layouts: Layouts) -> Work:
    """What the nodes have to do; a view has nothing to do, whatever its definition says is read."""
    if len(nodes) == 1 and layouts.is_view(nodes[0]):
        return Work(0, 0, 0)
    return region_work(nodes, nodes[-1].outputs)


def _copying(types: Sequence[TensorType]) -> Work:
    """What laying values out anew has to do."""
    size = sum(map(type_bytes, types))
    return Work(0, size, size)


def _types(part: Part, nodes: list[Node]) -> str:
    if not nodes:
        return ", ".join(type_.text for type_ in part.laid)
    return types_text(nodes)


def _duration(spread: Spread) -> Duration:
    return Duration(spread.median * 1e3, spread.low * 1e3, spread.high * 1e3)
