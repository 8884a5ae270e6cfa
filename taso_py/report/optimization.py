"""The report of one optimization: its data, its JSON form, its summary.

Invariant: the JSON form has the fields of the command line's contract, and holds finite numbers, strings, booleans,
lists and objects only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from taso_py.report.plain import plain
from taso_py.report.profile import mebibytes

TABLE_WIDTH = 80
"""Columns that the summary's table has at least."""


@dataclass(frozen=True)
class Speedup:
    """The original's time over another's: median and 95% interval of paired ratios."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Report:
    """What was done to a model and what was measured."""

    model: str
    device: str
    runtime: str
    """The runtime that the result is for."""
    original_ms: float
    optimized_ms: float
    speedup: float
    """Median of paired ratios original/optimized, in a fresh race after the winner was chosen."""
    speedup_low: float
    speedup_high: float
    rules_speedup: Speedup
    """The same against the unchanged graph in the same runtime: what the substitutions alone are worth."""
    applied: tuple[str, ...]
    """Rule identifiers in the order of application; empty where the original graph was kept."""
    error: float
    original_error: float
    comparison_passed: bool
    stop_reason: str
    search_seconds: float
    expansions: int
    candidates: int
    """Distinct graphs that the search built."""
    estimated_ms: tuple[float, float]
    """What latencies say of the unchanged graph and of the result, both with the best kernels, on a CPU at its usual
    pace: the guide, not the verdict."""
    operators: tuple[int, int]
    """Operators that run, before and after; what depends on weights only is not counted."""
    weight_bytes: tuple[int, int]
    """Of the original and of what is saved."""
    rounds: int
    """Rounds of the confirming race."""
    timed: Mapping[str, float] = field(default_factory=dict[str, float])
    """Median milliseconds of everything that was timed end to end, by name."""
    environment: Mapping[str, Any] = field(default_factory=dict[str, Any])
    seed: int = 0
    memory_bytes: int | None = None
    """What the result's weights take in memory, as kernels have packed them and without the biases of these; None where
    a compiler has them, or the original is kept."""
    kernels: Mapping[str, int] = field(default_factory=dict[str, int])
    """How often each tile beside the plain operators computes something in the result."""
    notes: tuple[str, ...] = ()
    """What the reader should know: no gain, a candidate refused, a runtime that was not available."""
    saved: str | None = None
    """The folder that the result was written to."""

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON-able data; a number that is not finite becomes null."""
        return {name: plain(value) for name, value in asdict(self).items()}

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The summary that the command line prints."""
        yield Text.assemble(
            ("model    ", "dim"), self.model, ("  on ", "dim"), self.device, ("  in ", "dim"), self.runtime
        )
        table = Table(box=None, pad_edge=False, header_style="dim")
        table.add_column()
        for header in ("original", "optimized", "ratio"):
            table.add_column(header, justify="right", no_wrap=True)
        table.add_column("95% interval", justify="right")
        table.add_row(
            "latency", *(f"{ms:.3f} ms" for ms in (self.original_ms, self.optimized_ms)),
            f"{self.speedup:.3f}x", f"{self.speedup_low:.3f} to {self.speedup_high:.3f}",
        )  # fmt: skip
        rules = self.rules_speedup
        table.add_row("by rules alone", "", "", f"{rules.median:.3f}x", f"{rules.low:.3f} to {rules.high:.3f}")
        estimated = [f"{ms:.3f} ms" for ms in self.estimated_ms]
        pace = "at the usual pace" if self.device == "cpu" else "as measured"
        table.add_row("estimate of that", *estimated, self._estimated_ratio, pace)
        table.add_row("operators", *map(str, self.operators))
        table.add_row("weights", *map(mebibytes, self.weight_bytes))
        if self.memory_bytes is not None:
            held = (self.weight_bytes[0], self.memory_bytes)
            table.add_row("in memory", *map(mebibytes, held), "", "as kernels packed them")
        table.add_row("error", f"{self.original_error:.1e}", f"{self.error:.1e}", "", "relative, against float64")
        # Numbers stay whole where the terminal is narrower; it breaks the lines then.
        yield from console.render(table, options.update(max_width=max(options.max_width, TABLE_WIDTH)))
        yield Text.assemble(("rules    ", "dim"), self._rules_text())
        if self.kernels:
            listed = ", ".join(f"{name} x{count}" for name, count in self.kernels.items())
            yield Text.assemble(("kernels  ", "dim"), listed)
        stopped = (
            f"{self.expansions} expansions, {self.candidates} graphs, {self.search_seconds:.1f} s: {self.stop_reason}"
        )
        yield Text.assemble(("search   ", "dim"), stopped)
        for note in self.notes:
            yield Text.assemble(("note     ", "dim"), note)
        if self.saved:
            yield Text.assemble(("saved    ", "dim"), self.saved)

    @property
    def _estimated_ratio(self) -> str:
        before, after = self.estimated_ms
        return f"{before / after:.3f}x" if after else ""

    def _rules_text(self) -> str:
        if not self.applied:
            return "none applied; the graph is the original's"
        counts: dict[str, int] = {}
        for rule in self.applied:
            counts[rule] = counts.get(rule, 0) + 1
        listed = ", ".join(f"{rule} x{count}" if count > 1 else rule for rule, count in counts.items())
        return f"{len(self.applied)} applied: {listed}  (taso-py rules show ID)"
