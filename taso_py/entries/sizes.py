"""One model optimized for several sizes of its inputs: each for itself, all of them one result.

Invariant: the results share the model's weights in memory and in the saved folder; what kernels have packed is each
result's own.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rich.table import Table
from torch import Tensor, nn

from taso_py.driver.result import Optimized
from taso_py.entries.entry import EntryPoint, EntryPointError
from taso_py.entries.optimize import optimize_into
from taso_py.ir.errors import in_a_line
from taso_py.models.source import Source
from taso_py.options import Options
from taso_py.report.optimization import Report
from taso_py.report.table import plain_table
from taso_py.saving.folder import folder_of
from taso_py.saving.sized import Shapes, SizedModule, shapes_of, text_of

LONGEST_NAME = 100
"""The most letters of a size's name, which names a folder too."""


@dataclass(frozen=True)
class SizesReport:
    """The reports of one model's sizes."""

    reports: Mapping[str, Report]

    def as_dict(self) -> dict[str, Any]:
        """Return the reports as JSON objects, by size."""
        return {name: report.as_dict() for name, report in self.reports.items()}

    def __rich__(self) -> Table:
        """Return a row for each size."""
        numbers = ("original", "result", "speed-up", "95% sure", "rules applied")
        rows = [
            (
                name,
                f"{report.original_ms:.3f} ms",
                f"{report.optimized_ms:.3f} ms",
                report.ratio_text,
                report.interval_text,
                report.runtime,
                str(len(report.applied)),
            )
            for name, report in self.reports.items()
        ]
        header = ("size", "original", "result", "speed-up", "95% sure", "runs in", "rules applied")
        return plain_table(header, rows, numbers)


@dataclass(frozen=True)
class OptimizedSizes:
    """A model optimized for several sizes."""

    module: SizedModule
    """Called like the model. Arguments of other sizes go to the model itself; if it writes to its buffers, they raise
    an ``ArgumentError``, since the results have state of their own."""
    results: Mapping[str, Optimized]
    """Report, trace and plan for each size, by its text: ``8x3x224x224``."""

    @property
    def report(self) -> SizesReport:
        """The reports of all sizes."""
        return SizesReport({name: result.report for name, result in self.results.items()})


def optimize_sizes(
    module: nn.Module,
    examples: Sequence[Sequence[Any] | Mapping[str, Any] | Tensor],
    *,
    output: str | os.PathLike[str] | None = None,
    **options: Any,
) -> OptimizedSizes:
    """Optimize a model for several sizes, as one result that calls the form for the sizes of its arguments.

    Args:
        module: the model in evaluation mode.
        examples: example inputs of each size: a tensor, a tuple of positional inputs, or a dict of keyword inputs.
        output: the folder to save all of them to, which :func:`taso_py.load` reads.
        options: the fields of :class:`Options`; seconds are for each size.

    Raises:
        TasoError: a size cannot be imported, is given twice, or an option is wrong; one line that names the size.
    """
    given: Any = examples
    if not isinstance(given, Iterable) or isinstance(given, Tensor | Mapping | str):
        raise EntryPointError(f"examples must be a list of the example inputs of each size, not {in_a_line(examples)}")
    sources = [_source(module, example) for example in examples]
    return optimize_sources(sources, Options.from_mapping(options), None if output is None else folder_of(output))


def _source(module: nn.Module, example: Sequence[Any] | Mapping[str, Any] | Tensor) -> Source:
    is_named = isinstance(example, Mapping)
    entry = EntryPoint(module, (), example) if is_named else EntryPoint(module, example)
    return entry.source(type(module).__name__)


def optimize_sources(sources: Sequence[Source], options: Options, output: Path | None) -> OptimizedSizes:
    """Optimize sources that are one model with inputs of several sizes.

    Args:
        sources: the sources, whose module is one.
        options: the options for each.
        output: the folder to save to, if any.

    Raises:
        TasoError: a size cannot be imported, or is given twice.
    """
    by_name: dict[str, Source] = {}
    shapes: dict[str, Shapes] = {}
    for source in sources:
        found = shapes_of(source.args, source.kwargs)
        name = text_of(found)
        if found in shapes.values():
            raise EntryPointError(f"size {name} is given twice; give each once")
        if len(name) > LONGEST_NAME:
            name = f"size {len(shapes)}"
        by_name[name], shapes[name] = replace(source, name=f"{source.name} at {name}"), found
    if not by_name:
        raise EntryPointError("no size is given; give example inputs of each")
    found = optimize_into(output, by_name, options, shapes)
    has_state = any(entry.has_state for entry in found.values())
    modules = {shapes[name]: entry.optimized.module for name, entry in found.items()}
    original = None if has_state else sources[0].callable()
    return OptimizedSizes(
        SizedModule(modules, original), MappingProxyType({name: entry.optimized for name, entry in found.items()})
    )
