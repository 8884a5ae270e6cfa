"""The report of a search for a device that is not here: data, JSON, and summary for the terminal.

Invariant: the summary says that nothing was timed, and how to time it on the device.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from taso_py.report.plain import plain


@dataclass(frozen=True)
class Prediction:
    """The result of a search by latencies of another device."""

    model: str
    environment: Mapping[str, Any]
    """Environment of that device."""
    predicted_ms: tuple[float, float]
    """Before and after, each with its best kernels and memory formats."""
    applied: tuple[str, ...]
    """Rule identifiers in order of application."""
    candidates: int
    """Number of distinct graphs that the search built."""
    unknown: int
    """Number of latencies that were needed but never measured there; kernels that need them were left out."""
    search_seconds: float
    stop_reason: str
    saved: str | None = None
    """The file of the trace."""

    def as_dict(self) -> dict[str, Any]:
        """Return the prediction as data for JSON."""
        return {name: plain(value) for name, value in asdict(self).items()}

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the summary for the terminal."""
        before, after = self.predicted_ms
        yield Text.assemble(("model      ", "dim"), self.model, ("  for ", "dim"), str(self.environment["device_name"]))
        yield Text.assemble(
            ("predicted  ", "dim"),
            f"{before:.3f} ms -> {after:.3f} ms",
            ("  from latencies of single kernels; nothing was timed", "dim"),
        )
        rules = ", ".join(f"{rule} x{count}" for rule, count in Counter(self.applied).most_common(5))
        yield Text.assemble(("rules      ", "dim"), f"{len(self.applied)} applied", f": {rules}" if rules else "")
        yield Text.assemble(
            ("search     ", "dim"),
            f"{self.candidates} graphs in {self.search_seconds:.1f} s, ended because {self.stop_reason}",
        )
        if self.unknown:
            several = "kernels were" if self.unknown > 1 else "kernel was"
            said = f"{self.unknown} {several} never measured on that device, and not considered"
            yield Text.assemble(("note       ", "dim"), said)
        if self.saved:
            said = f"on that device: taso-py optimize MODEL --trace {self.saved}"
            yield Text.assemble(("next       ", "dim"), said)
