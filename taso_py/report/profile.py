"""The profile of one model: data, JSON, and summary for the terminal.

Invariant: the JSON document holds finite numbers, strings, lists and objects only; all times are milliseconds and come
from real runs of the whole model, except for those named isolated.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from taso_py.report.plain import plain

TOP = 10
"""Number of bottlenecks in the summary."""
BEYOND = 1.1
"""Share of the roofline beyond which a measurement is implausible; the ceilings are measurements too."""
SMALL = 2**20 // 10
"""Bytes below a tenth of a mebibyte."""
PROFILER_COST = "which itself costs some microseconds an operator"
"""Remark on an engine's profiler for readers of its times."""
NAME_WIDTH = 18
"""Width of the column of operators in a terminal; a longer name has a line of its own."""


@dataclass(frozen=True)
class Duration:
    """A median with its quartiles, in milliseconds."""

    ms: float
    low_ms: float
    high_ms: float

    @property
    def text(self) -> str:
        """The median and the quartiles as text."""
        return f"{self.ms:.3f} ms ({self.low_ms:.3f} to {self.high_ms:.3f})"


@dataclass(frozen=True)
class ProfiledRegion:
    """An operator, or several that one kernel computes, in a run of the model."""

    kind: str
    """The operator's name; for several, all names joined by a plus."""
    operators: tuple[str, ...]
    """The operators with their attributes."""
    calls: tuple[str, ...]
    """Names of the called PyTorch operators."""
    types: str
    """Types of operands and result."""
    line: str
    """Line of the model's source that it comes from."""
    module: str
    start_ms: float
    """Start after the beginning of the run."""
    time: Duration
    isolated_ms: float | None
    """Time when measured alone; None if that is not possible."""
    flops: int | None
    moved_bytes: int
    dtype: str
    bound: str
    """``compute``, ``memory`` or ``overhead``."""
    ceiling_ms: float
    """The least time that the roofline allows."""
    live_bytes: int
    """Peak memory in use during it, beyond weights and inputs."""

    @property
    def kin(self) -> tuple[str, ...]:
        """Key of regions that share a row: operator and source line or, if that is unknown, types."""
        return (self.kind, self.line, _pattern(self.module)) if _is_placed(self.line) else (self.kind, self.types)

    @property
    def achieved(self) -> float:
        """The least time that the roofline allows relative to the time taken; 1 is the device's limit."""
        return self.ceiling_ms / self.time.ms if self.time.ms > 0 else 1.0

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return (self.flops or 0) / self.moved_bytes if self.moved_bytes else 0.0

    @property
    def rate(self) -> float:
        """Operations per second."""
        return (self.flops or 0) / (self.time.ms * 1e-3) if self.time.ms > 0 else 0.0


@dataclass(frozen=True)
class RegionGroup:
    """Regions of one kind, or from one line of the source, added up."""

    kind: str
    line: str
    module: str
    """The path of the module, with ``*`` for numbers that differ."""
    types: str
    """Types of operands and result, if they are equal for all."""
    count: int
    ms: float
    share: float
    """Share of the whole run."""
    isolated_ms: float
    ceiling_ms: float
    flops: int
    moved_bytes: int
    bound: str
    """The bound of most of the time."""

    @property
    def place(self) -> str:
        """The source line and module or, if these are unknown, the types."""
        parts = (self.line, self.module) if _is_placed(self.line) else (self.line, self.types)
        return "  ".join(filter(None, parts))

    @property
    def achieved(self) -> float:
        """The least time that the roofline allows relative to the time taken."""
        return self.ceiling_ms / self.ms if self.ms > 0 else 1.0


@dataclass(frozen=True)
class Ceilings:
    """The measured roofline."""

    peaks: Mapping[str, float]
    """Operations per second by element type."""
    levels: tuple[tuple[int, float], ...]
    """Size in bytes and bandwidth in bytes per second, from the nearest cache to memory."""
    dispatch_ms: float
    """Time of a call that computes next to nothing."""


@dataclass(frozen=True)
class Profile:
    """Time and memory of a model by operator."""

    model: str
    device: str
    original: Duration
    """Time of the model as given."""
    whole: Duration
    """Time of its graph, operator by operator."""
    input: Duration
    """Time of unpacking and checking the arguments."""
    output: Duration
    """Time of packing the results."""
    regions: tuple[ProfiledRegion, ...]
    ceilings: Ceilings
    rounds: int
    mark_ms: float
    """Cost of reading the clock between two operators, already subtracted."""
    busy_ms: float | None
    """Time in which kernels ran on a GPU; None on a CPU, and if the driver did not report it."""
    peak_bytes: int
    """Peak memory in use, beyond weights and inputs."""
    weight_bytes: int
    input_bytes: int
    environment: Mapping[str, Any] = field(default_factory=dict[str, Any])
    seed: int = 0
    notes: tuple[str, ...] = ()
    saved: str | None = None
    engine: str = ""
    """The engine whose profiler measured the operators; empty for PyTorch, whose calls can also be timed alone and
    observed for memory."""

    @cached_property
    def total_ms(self) -> float:
        """The sum of all parts of the run."""
        return self.input.ms + self.operators_ms + self.output.ms

    @cached_property
    def operators_ms(self) -> float:
        """The sum of all operators' times."""
        return sum(region.time.ms for region in self.regions)

    @property
    def achieved(self) -> float:
        """The least time that the roofline allows for all operators one after the other, relative to their time."""
        return self.ceiling_ms / self.operators_ms if self.operators_ms > 0 else 1.0

    @cached_property
    def kinds(self) -> tuple[RegionGroup, ...]:
        """The regions grouped by operator, the longest time first."""
        return self._grouped(lambda region: (region.kind,))

    @cached_property
    def bottlenecks(self) -> tuple[RegionGroup, ...]:
        """The regions grouped by operator, source line and module, or types if unknown, longest time first."""
        return self._grouped(lambda region: region.kin)

    @cached_property
    def bounds(self) -> Mapping[str, float]:
        """Milliseconds by bound."""
        names = ("compute", "memory", "overhead")
        return {name: sum(r.time.ms for r in self.regions if r.bound == name) for name in names}

    @property
    def ceiling_ms(self) -> float:
        """The least time that the roofline allows all operators together, one after the other."""
        return sum(region.ceiling_ms for region in self.regions)

    @property
    def dispatch_ms(self) -> float:
        """The least time for dispatching all calls."""
        return self.ceilings.dispatch_ms * sum(len(region.calls) for region in self.regions)

    @property
    def peak_region(self) -> ProfiledRegion | None:
        """The region with the most memory in use."""
        return max(self.regions, key=lambda region: region.live_bytes, default=None)

    def _grouped(self, key: Any) -> tuple[RegionGroup, ...]:
        groups: dict[Any, list[ProfiledRegion]] = {}
        for region in self.regions:
            groups.setdefault(key(region), []).append(region)
        return tuple(sorted((_group(group, self.total_ms) for group in groups.values()), key=lambda one: -one.ms))

    def as_dict(self) -> dict[str, Any]:
        """Return the profile as data for JSON."""
        document = {name: plain(value) for name, value in asdict(self).items()}
        document["kinds"] = [plain({**asdict(one), "achieved": _plausible(one.achieved)}) for one in self.kinds]
        document["bottlenecks"] = [
            plain({**asdict(one), "achieved": _plausible(one.achieved)}) for one in self.bottlenecks[:TOP]
        ]
        for region, entry in zip(self.regions, document["regions"], strict=True):
            entry["achieved"] = plain(_plausible(region.achieved))
        return {
            **document,
            "bounds": plain(dict(self.bounds)),
            "ceiling_ms": plain(self.ceiling_ms),
            "dispatch_ms": plain(self.dispatch_ms),
        }

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the summary for the terminal."""
        for name, text in self.facts:
            yield Text.assemble((f"{name:<10}", "dim"), text)
        yield ""
        has_alone = not self.engine
        yield from _lines("bottleneck", self.bottlenecks[:TOP], with_place=True, has_alone=has_alone)
        yield ""
        yield from _lines("operator", self.kinds[:TOP], with_place=False, has_alone=has_alone)
        for note in self.notes:
            yield Text.assemble(("note      ", "dim"), note)
        if self.saved:
            yield Text.assemble(("saved     ", "dim"), self.saved)

    @cached_property
    def facts(self) -> tuple[tuple[str, str], ...]:
        """Facts in a line each, by name."""
        shares = ", ".join(f"{ms / self.total_ms:.0%} {name}-bound" for name, ms in self.bounds.items())
        peaks = ", ".join(f"{rate / 1e9:,.0f} GFLOP/s {dtype}" for dtype, rate in self.ceilings.peaks.items())
        rates = "; ".join(filter(None, (peaks, f"{self.ceilings.levels[-1][1] / 1e9:.1f} GB/s from memory")))
        held = f"weights {mebibytes(self.weight_bytes)}, inputs {mebibytes(self.input_bytes)}"
        if self.engine:
            memory = held
        else:
            peak = self.peak_region
            where = f", in {peak.kind} {peak.module}" if peak else ""
            memory = f"{mebibytes(self.peak_bytes)} at the peak{where}; {held}"
        return (
            ("model", f"{self.model}  on {self.environment.get('device_name', self.device)}"),
            *(self._engine_times if self.engine else self._pytorch_times),
            ("bound by", shares),
            *([] if self.engine else self._dispatch_facts),
            ("memory", memory),
            ("roofline", f"{rates}; it allows {self.ceiling_ms:.3f} ms, "
             f"{share_of_roof(self.ceiling_ms / self.total_ms)} of the run"),
        )  # fmt: skip

    @property
    def _engine_times(self) -> tuple[tuple[str, str], ...]:
        """Facts about times from an engine's profiler."""
        return (
            ("latency", f"{self.original.text} in {self.engine}; {self.rounds} runs more with its profiler"),
            ("operators", f"{len(self.regions)} take {self.whole.ms:.3f} ms by the profiler, {PROFILER_COST}"),
        )

    @property
    def _pytorch_times(self) -> tuple[tuple[str, str], ...]:
        """Facts about times between PyTorch's calls."""
        return (
            ("latency", f"{self.original.text} as given; {self.whole.text} operator by operator; {self.rounds} runs"),
            ("parts", f"input {self.input.ms:.3f} ms, {len(self.regions)} operators {self.operators_ms:.3f} ms, "
             f"output {self.output.ms:.3f} ms"),
        )  # fmt: skip

    @property
    def _dispatch_facts(self) -> tuple[tuple[str, str], ...]:
        """Facts about PyTorch's calls."""
        dispatch = (
            f"{sum(len(r.calls) for r in self.regions)} calls at {self.ceilings.dispatch_ms * 1e3:.1f} us: "
            f"{self.dispatch_ms:.3f} ms, {self.dispatch_ms / self.whole.ms:.0%} of the run"
        )
        idle = [] if self.busy_ms is None else [("GPU", f"busy for {self.busy_ms:.3f} ms of {self.whole.ms:.3f} ms")]
        return (("dispatch", dispatch), *idle)


def share_of_roof(achieved: float) -> str:
    """Return a share as text; an implausible one above 100% becomes a question mark."""
    return f"{achieved:.0%}" if achieved <= BEYOND else "?"


def _plausible(achieved: float) -> float | None:
    """Return a share of the roofline for JSON; None if it is implausible."""
    return achieved if achieved <= BEYOND else None


def mebibytes(size: float) -> str:
    """Return bytes as text."""
    return f"{size / 2**10:.1f} KiB" if 0 < size < SMALL else f"{size / 2**20:.1f} MiB"


def _lines(name: str, rows: Sequence[RegionGroup], *, with_place: bool, has_alone: bool) -> Iterator[Text]:
    """Yield a table that fits a terminal of 80 columns, with each place in a line of its own."""
    alone = f"{'alone':>9}" if has_alone else ""
    columns = f"{'ms':>9}{'share':>6}{'count':>6}{alone}{'GFLOP/s':>8}{'GB/s':>7} {'bound':<8}{'of roof':>8}"
    yield Text(f"{name:<{NAME_WIDTH}}{columns}", "dim")
    for row in rows:
        seconds = max(row.ms, 1e-9) * 1e-3
        is_long = len(row.kind) >= NAME_WIDTH
        if is_long:
            yield Text(row.kind)
        alone = f"{row.isolated_ms:>9.3f}" if has_alone else ""
        yield Text(
            f"{'' if is_long else row.kind:<{NAME_WIDTH}}"
            f"{row.ms:>9.3f}{row.share:>6.1%}{row.count:>6}{alone}"
            f"{row.flops / seconds / 1e9:>8.1f}{row.moved_bytes / seconds / 1e9:>7.1f} "
            f"{row.bound:<8}{share_of_roof(row.achieved):>8}"
        )
        if with_place:
            yield Text("  " + row.place, "dim")


def _group(regions: Iterable[ProfiledRegion], total_ms: float) -> RegionGroup:
    group = list(regions)
    ms = sum(region.time.ms for region in group)
    by_bound: dict[str, float] = {}
    for region in group:
        by_bound[region.bound] = by_bound.get(region.bound, 0.0) + region.time.ms
    return RegionGroup(
        kind=group[0].kind,
        line=_shared([region.line for region in group]),
        module=_common([region.module for region in group]),
        types=_shared([region.types for region in group]),
        count=len(group),
        ms=ms,
        share=ms / total_ms if total_ms else 0.0,
        isolated_ms=sum(region.isolated_ms or 0.0 for region in group),
        ceiling_ms=sum(region.ceiling_ms for region in group),
        flops=sum(region.flops or 0 for region in group),
        moved_bytes=sum(region.moved_bytes for region in group),
        bound=max(by_bound, key=lambda name: by_bound[name]),
    )


def _is_placed(line: str) -> bool:
    """Return whether a line is one of the model's source; saved programs may only know names of nodes."""
    return bool(line) and not line.startswith("node ")


def _shared(texts: Sequence[str]) -> str:
    return texts[0] if len(set(texts)) == 1 else ""


def _pattern(module: str) -> str:
    return re.sub(r"\d+", "*", module)


def _common(modules: Sequence[str]) -> str:
    return modules[0] if len(set(modules)) == 1 else _pattern(modules[0])
