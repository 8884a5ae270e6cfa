"""taso-py: a superoptimizer for PyTorch models.

``taso_py.optimize(module, example_inputs)`` rewrites a model, ``taso_py.optimize_sizes`` for several sizes,
``taso_py.optimize_entry_points`` several entry points of one; ``taso_py.load(folder)`` loads a saved result, and
``taso_py.refresh(folder, state_dict)`` makes it again with other weights.
``taso_py.inspect(pipeline, ...)`` times the modules of a pipeline, and ``taso_py.optimize_parts`` rewrites those that
take the time. The other public names are the types of what goes in and comes out.

Invariant: importing this package imports nothing heavy; names are looked up when they are first used.
"""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

from taso_py.compiler import register

if TYPE_CHECKING:
    from taso_py.driver.optimize import optimize
    from taso_py.driver.refresh import refresh
    from taso_py.driver.result import Optimized
    from taso_py.entries.entry import EntryPoint
    from taso_py.entries.optimize import optimize_entry_points
    from taso_py.entries.sizes import optimize_sizes
    from taso_py.ir.errors import TasoError
    from taso_py.options import Options
    from taso_py.pipelines.inspecting import inspect
    from taso_py.pipelines.parts import optimize_parts
    from taso_py.report.optimization import Report
    from taso_py.rules.database import read_database
    from taso_py.rules.verdict import Numerics
    from taso_py.saving.loading import load

__all__ = [
    "EntryPoint",
    "Numerics",
    "Optimized",
    "Options",
    "Report",
    "TasoError",
    "inspect",
    "load",
    "optimize",
    "optimize_entry_points",
    "optimize_parts",
    "optimize_sizes",
    "read_database",
    "refresh",
]

_HOMES = {
    "EntryPoint": "taso_py.entries.entry",
    "Numerics": "taso_py.rules.verdict",
    "Optimized": "taso_py.driver.result",
    "Options": "taso_py.options",
    "Report": "taso_py.report.optimization",
    "TasoError": "taso_py.ir.errors",
    "inspect": "taso_py.pipelines.inspecting",
    "load": "taso_py.saving.loading",
    "optimize": "taso_py.driver.optimize",
    "refresh": "taso_py.driver.refresh",
    "optimize_entry_points": "taso_py.entries.optimize",
    "optimize_parts": "taso_py.pipelines.parts",
    "optimize_sizes": "taso_py.entries.sizes",
    "read_database": "taso_py.rules.database",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    before = list(warnings.filters)
    try:
        found = getattr(import_module(_HOMES[name]), name)
        if "torch._dynamo" in sys.modules:  # as after the import of what optimizes
            register()
        return found
    finally:
        _drop_filters(before)


def _drop_filters(before: list[Any]) -> None:
    """Remove warning filters that libraries have set while they were imported (sympy does)."""
    now: Any = warnings.filters
    for entry in [entry for entry in now if entry not in before]:
        now.remove(entry)
