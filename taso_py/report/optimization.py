"""The report of one optimization: data, JSON, and summary for the terminal.

Invariant: the JSON document has the documented fields, and holds finite numbers, strings, booleans, lists and objects
only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from taso_py.report.plain import plain
from taso_py.report.profile import mebibytes

VISIBLE = 0.01
"""Largest relative difference between the speed-up and the ratio of the printed latencies that needs no note."""
SHORT_MS = 0.1
"""Latency below which microseconds are printed."""
TABLE_WIDTH = 80
"""Least width of the summary's tables in columns."""


@dataclass(frozen=True)
class Speedup:
    """A speed-up over the original: median and 95% interval of paired ratios."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class EngineSpeedups:
    """Speed-ups of one engine over the original in the first race; its best graph counts if it ran several."""

    unchanged: Speedup | None = None
    """Speed-up of the unchanged graph."""
    rewritten: Speedup | None = None
    """Speed-up of the best rewritten graph; None if none was timed."""


@dataclass(frozen=True)
class Report:
    """Results of an optimization, and what was measured."""

    model: str
    device: str
    runtime: str
    """The runtime that the result is for."""
    original_ms: float
    optimized_ms: float
    speedup: float
    """Median of paired ratios original/optimized in the confirming race; NaN if withheld, as are the ends of its
    interval and ``rules_speedup``."""
    speedup_low: float
    speedup_high: float
    rules_speedup: Speedup
    """Speed-up over the unchanged graph in the same runtime: the gain of the substitutions alone."""
    applied: tuple[str, ...]
    """Rule identifiers in order of application; empty if the original graph was kept."""
    error: float
    original_error: float
    comparison_passed: bool
    stop_reason: str
    search_seconds: float
    expansions: int
    candidates: int
    """Number of distinct graphs that the search built."""
    estimated_ms: tuple[float, float]
    """Sums of latencies of the unchanged graph and of the result, both with the best kernels, on a CPU at its usual
    speed; these guide the search and are not the measured result. Not finite where the engine lacks an operator."""
    operators: tuple[int, int]
    """Number of operators that run in each call, before and after."""
    weight_bytes: tuple[int, int]
    """Bytes of the original's weights, and of those that are saved."""
    rounds: int
    """Number of rounds of the confirming race."""
    timed: Mapping[str, float] = field(default_factory=dict[str, float])
    """Median milliseconds of everything that was timed end to end, by name."""
    environment: Mapping[str, Any] = field(default_factory=dict[str, Any])
    seed: int = 0
    memory_bytes: int | None = None
    """Bytes of the result's weights in memory, packed and without the biases of packed kernels; None if an engine holds
    them or the original is kept."""
    kernels: Mapping[str, int] = field(default_factory=dict[str, int])
    """How often each kernel other than plain operators is used in the result."""
    withheld: str | None = None
    """Reason why no speed-up is reported: the timing was implausible or too disturbed."""
    is_final: bool = True
    """False if the search or a race was interrupted, or other programs took much of the processor: another run may find
    more."""
    peak_bytes: tuple[int, int] | None = None
    """Peak memory of a call beyond weights and inputs, of original and result; None if unknown."""
    contention: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Load of the processor's cores by other programs while the result was timed; see
    `taso_py.latency.contention.Contention`."""
    phases: Mapping[str, float] = field(default_factory=dict[str, float])
    """Seconds of each phase, by name, in order; for a saved result, of all phases before it was saved."""
    engines: Mapping[str, EngineSpeedups] = field(default_factory=dict[str, "EngineSpeedups"])
    """Speed-ups of each engine in the first race, by name; several with `runtime` auto or inductor."""
    notes: tuple[str, ...] = ()
    """Notes for the reader: no gain, a refused candidate, an unavailable runtime."""
    saved: str | None = None
    """The folder of the saved result."""

    def as_dict(self) -> dict[str, Any]:
        """Return the report as data for JSON; numbers that are not finite become null."""
        return {name: plain(value) for name, value in asdict(self).items()}

    @property
    def ratio_text(self) -> str:
        """The speed-up as text."""
        return "withheld" if self.withheld else f"{self.speedup:.3f}x"

    @property
    def interval_text(self) -> str:
        """The interval of the speed-up as text."""
        return "see note" if self.withheld else f"{self.speedup_low:.3f} to {self.speedup_high:.3f}"

    @property
    def throughput(self) -> tuple[float, float]:
        """Sequential calls per second of original and result."""
        return 1e3 / self.original_ms, 1e3 / self.optimized_ms

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the summary for the terminal."""
        where = f"{self.environment.get('device_name', self.device)}"
        threads = self.environment.get("threads")
        if threads:
            where += f", {threads} thread{'s' if threads > 1 else ''}"
        for name, text in (("model", self.model), ("device", where), ("result", self._result_text)):
            yield Text.assemble((f"{name:<9}", "dim"), text)
        # If the terminal is narrower, it wraps lines, so that numbers are not cut.
        yield from console.render(self._table(), options.update(max_width=max(options.max_width, TABLE_WIDTH)))
        if len(self.engines) > 1:
            yield from console.render(
                self._engines_table(), options.update(max_width=max(options.max_width, TABLE_WIDTH))
            )
        yield Text.assemble(("rules    ", "dim"), self._rules_text())
        if self.kernels:
            listed = ", ".join(f"{name} x{count}" for name, count in self.kernels.items())
            yield Text.assemble(("kernels  ", "dim"), listed)
        yield Text.assemble(("search   ", "dim"), self._search_text)
        if self.phases:
            slowest = sorted(self.phases.items(), key=lambda phase: -phase[1])[:3]
            listed = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in slowest)
            yield Text.assemble(("took     ", "dim"), f"{sum(self.phases.values()):.1f} s, most of it {listed}")
        for note in self.all_notes:
            yield Text.assemble(("note     ", "dim"), note)
        if self.saved:
            yield Text.assemble(("saved    ", "dim"), self.saved)

    def _table(self) -> Table:
        """Return the table of original and result."""
        table = Table(box=None, pad_edge=False, header_style="dim")
        table.add_column()
        for header in ("original", "result", "speed-up"):
            table.add_column(header, justify="right", no_wrap=True)
        table.add_column("", style="dim")
        before, after = self.original_ms, self.optimized_ms
        sure = "" if self.withheld or not self.rounds else f"{self.interval_text} (95% sure)"
        table.add_row("latency", _time(before), _time(after), self.ratio_text, sure)
        table.add_row("throughput", *map(_rate, self.throughput), "", "sequential calls")
        if self.applied and not self.withheld:
            rules = self.rules_speedup
            said = "by rewriting; the rest by kernels and memory formats"
            table.add_row("of which rules", "", "", f"{rules.median:.3f}x", said)
        if self.is_estimated:
            cells = [*map(_time, self.estimated_ms), self._estimated_ratio]
            table.add_row("predicted", *cells, "from latencies of single kernels")
        table.add_row("operators", *map(str, self.operators))
        table.add_row("weights", *map(mebibytes, self.weight_bytes), "", "as saved")
        if self.memory_bytes is not None:
            held = (self.weight_bytes[0], self.memory_bytes)
            table.add_row("  in memory", *map(mebibytes, held), "", "packed for the kernels")
        if self.peak_bytes is not None:
            table.add_row("peak memory", *map(mebibytes, self.peak_bytes), "", "of a call, without weights and inputs")
        errors = f"{self.original_error:.1e}", f"{self.error:.1e}"
        table.add_row("error", *errors, "", "relative, against float64")
        return table

    def _engines_table(self) -> Table:
        """Return the table of engines."""
        table = Table(box=None, pad_edge=False, header_style="dim")
        for header in ("engines", "unchanged graph", "", "with rules", ""):
            table.add_column(header, justify="left" if header == "engines" else "right", no_wrap=True)
        for name, made in self.engines.items():
            cells = [_with_interval(speedup) for speedup in (made.unchanged, made.rewritten)]
            table.add_row(f"  {name}", *cells[0], *cells[1])
        return table

    @property
    def all_notes(self) -> tuple[str, ...]:
        """The notes, and explanations of the printed numbers."""
        said = () if self.withheld is None else (f"the speed-up is withheld: {self.withheld}",)
        return (*said, *self._ratio_note(), *self.notes)

    def _ratio_note(self) -> tuple[str, ...]:
        """Return a note if the speed-up visibly differs from the ratio of the two printed medians."""
        medians = self.original_ms / self.optimized_ms if self.optimized_ms else math.nan
        if not abs(medians / self.speedup - 1) > VISIBLE:  # False for NaN
            return ()
        return (
            f"{self.speedup:.3f}x is the median of {self.rounds} ratios, each of two times that were taken directly "
            "one after the other; the two latencies are medians over all rounds, during which the machine's speed "
            f"changed, and their ratio is {medians:.3f}",
        )

    @property
    def _result_text(self) -> str:
        """The result in words."""
        if not self.rounds:
            return "the original, unchanged: nothing was surely faster"
        how = {"eager": "runs in eager mode", "cudagraph": "runs as a CUDA graph"}
        return how.get(self.runtime, f"is compiled by {self.runtime}")

    @property
    def _search_text(self) -> str:
        seconds = f"{self.candidates} graphs in {self.search_seconds:.1f} s"
        return f"{seconds}, ended because {self.stop_reason}"

    @property
    def is_estimated(self) -> bool:
        """True if the sums of latencies are known."""
        return all(map(math.isfinite, self.estimated_ms))

    @property
    def _estimated_ratio(self) -> str:
        before, after = self.estimated_ms
        return f"{before / after:.3f}x" if after else ""

    def _rules_text(self) -> str:
        if not self.applied:
            return "none applied; the graph is unchanged"
        counts: dict[str, int] = {}
        for rule in self.applied:
            counts[rule] = counts.get(rule, 0) + 1
        listed = ", ".join(f"{rule} x{count}" if count > 1 else rule for rule, count in counts.items())
        return f"{len(self.applied)} applied: {listed}  (taso-py rules show ID)"


def _time(ms: float) -> str:
    """Return a latency as text with at least three significant digits."""
    return f"{ms:.3f} ms" if ms >= SHORT_MS else f"{ms * 1e3:.2f} us"


def _rate(rate: float) -> str:
    """Return calls per second as text."""
    return f"{rate:,.0f}/s" if rate >= 100 else f"{rate:.3g}/s"


def _with_interval(speedup: Speedup | None) -> tuple[str, str]:
    """Return a speed-up and its interval as text."""
    if speedup is None:
        return "", ""
    return f"{speedup.median:.3f}x", f"{speedup.low:.3f} to {speedup.high:.3f}"
