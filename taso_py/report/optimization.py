"""The report of one optimization: its data, its JSON form, its summary.

Invariant: the JSON form has the fields of the command line's contract, and holds finite numbers, strings, booleans,
lists and objects only.
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
"""How far a ratio may be from that of the latencies beside it without a word."""
SHORT_MS = 0.1
"""Shorter latencies are written in microseconds."""
TABLE_WIDTH = 80
"""Columns that the summary's table has at least."""


@dataclass(frozen=True)
class Speedup:
    """The original's time over another's: median and 95% interval of paired ratios."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class EngineSpeedups:
    """The speed-ups of one engine over the original, in the race of all; the best graph counts where it ran several."""

    unchanged: Speedup | None = None
    """Of the unchanged graph."""
    rewritten: Speedup | None = None
    """Of the best graph that rules made; None where none was timed."""


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
    """Median of paired ratios original/optimized, in a fresh race after the winner was chosen; not a number, as are the
    ends of its interval and ``rules_speedup``, where it is withheld."""
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
    withheld: str | None = None
    """Why no ratio is told, where what was timed cannot be or was too disturbed."""
    peak_bytes: tuple[int, int] | None = None
    """The most memory in use during a call beyond weights and inputs, of original and result; None where that does not
    show."""
    contention: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What other programs left of the processor's cores while the result was timed; see
    `taso_py.latency.contention.Contention`."""
    phases: Mapping[str, float] = field(default_factory=dict[str, float])
    """Seconds that each phase took, by name, in order; of a saved result, all before it was saved."""
    engines: Mapping[str, EngineSpeedups] = field(default_factory=dict[str, "EngineSpeedups"])
    """What each engine made of the model in the first race, by name; several with `runtime` auto or inductor."""
    notes: tuple[str, ...] = ()
    """What the reader should know: no gain, a candidate refused, a runtime that was not available."""
    saved: str | None = None
    """The folder that the result was written to."""

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON-able data; a number that is not finite becomes null."""
        return {name: plain(value) for name, value in asdict(self).items()}

    @property
    def ratio_text(self) -> str:
        """The speed-up for people."""
        return "withheld" if self.withheld else f"{self.speedup:.3f}x"

    @property
    def interval_text(self) -> str:
        """Its interval for people."""
        return "see note" if self.withheld else f"{self.speedup_low:.3f} to {self.speedup_high:.3f}"

    @property
    def throughput(self) -> tuple[float, float]:
        """Calls a second, one after the other, of original and result."""
        return 1e3 / self.original_ms, 1e3 / self.optimized_ms

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The summary that the command line prints."""
        where = f"{self.environment.get('device_name', self.device)}"
        threads = self.environment.get("threads")
        if threads:
            where += f", {threads} thread{'s' if threads > 1 else ''}"
        for name, text in (("model", self.model), ("device", where), ("result", self._result_text)):
            yield Text.assemble((f"{name:<9}", "dim"), text)
        # Numbers stay whole where the terminal is narrower; it breaks the lines then.
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
        """The numbers of original and result side by side."""
        table = Table(box=None, pad_edge=False, header_style="dim")
        table.add_column()
        for header in ("original", "result", "speed-up"):
            table.add_column(header, justify="right", no_wrap=True)
        table.add_column("", style="dim")
        before, after = self.original_ms, self.optimized_ms
        sure = "" if self.withheld or not self.rounds else f"{self.interval_text} (95% sure)"
        table.add_row("latency", _time(before), _time(after), self.ratio_text, sure)
        table.add_row("throughput", *map(_rate, self.throughput), "", "calls, one after the other")
        if self.applied and not self.withheld:
            rules = self.rules_speedup
            said = "due to rewriting; the rest to kernels and memory formats"
            table.add_row("of which rules", "", "", f"{rules.median:.3f}x", said)
        table.add_row(
            "predicted", *map(_time, self.estimated_ms), self._estimated_ratio,
            "from latencies of single kernels",
        )  # fmt: skip
        table.add_row("operators", *map(str, self.operators))
        table.add_row("weights", *map(mebibytes, self.weight_bytes), "", "as saved")
        if self.memory_bytes is not None:
            held = (self.weight_bytes[0], self.memory_bytes)
            table.add_row("  in memory", *map(mebibytes, held), "", "as kernels packed them")
        if self.peak_bytes is not None:
            table.add_row("peak memory", *map(mebibytes, self.peak_bytes), "", "of a call, beside weights and inputs")
        errors = f"{self.original_error:.1e}", f"{self.error:.1e}"
        table.add_row("error", *errors, "", "relative, against float64")
        return table

    def _engines_table(self) -> Table:
        """What each engine made of the model."""
        table = Table(box=None, pad_edge=False, header_style="dim")
        for header in ("engines", "unchanged graph", "", "with rules", ""):
            table.add_column(header, justify="left" if header == "engines" else "right", no_wrap=True)
        for name, made in self.engines.items():
            cells = [_with_interval(speedup) for speedup in (made.unchanged, made.rewritten)]
            table.add_row(f"  {name}", *cells[0], *cells[1])
        return table

    @property
    def all_notes(self) -> tuple[str, ...]:
        """The notes, and what has to be said of the numbers as they are printed."""
        said = () if self.withheld is None else (f"the speed-up is withheld: {self.withheld}",)
        return (*said, *self._ratio_note(), *self.notes)

    def _ratio_note(self) -> tuple[str, ...]:
        """Why the ratio is another than that of the two medians above it, where the reader would see that."""
        medians = self.original_ms / self.optimized_ms if self.optimized_ms else math.nan
        if not abs(medians / self.speedup - 1) > VISIBLE:  # nor where any is not a number
            return ()
        return (
            f"{self.speedup:.3f}x is the median of {self.rounds} ratios, each of two times that were taken one right "
            f"after the other; the two latencies are medians over all rounds, between which the machine changed its "
            f"speed, and their ratio is {medians:.3f}",
        )

    @property
    def _result_text(self) -> str:
        """What the result is, in words."""
        if not self.rounds:
            return "the original, unchanged: nothing was surely faster"
        how = {"eager": "runs in eager mode", "cudagraph": "runs as a CUDA graph"}
        return how.get(self.runtime, f"is compiled by {self.runtime}")

    @property
    def _search_text(self) -> str:
        seconds = f"{self.candidates} graphs in {self.search_seconds:.1f} s"
        return f"{seconds}, ended because {self.stop_reason}"

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


def _time(ms: float) -> str:
    """A latency for people, with at least three digits that mean something."""
    return f"{ms:.3f} ms" if ms >= SHORT_MS else f"{ms * 1e3:.2f} us"


def _rate(rate: float) -> str:
    """Calls a second for people."""
    return f"{rate:,.0f}/s" if rate >= 100 else f"{rate:.3g}/s"


def _with_interval(speedup: Speedup | None) -> tuple[str, str]:
    """A speed-up and its interval for people."""
    if speedup is None:
        return "", ""
    return f"{speedup.median:.3f}x", f"{speedup.low:.3f} to {speedup.high:.3f}"
