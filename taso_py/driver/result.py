"""The result of an optimization."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from taso_py.backend import Plan
from taso_py.checking.resize import OpenInputs
from taso_py.engines.engine import Runner
from taso_py.report.optimization import Report
from taso_py.saving.warmup import Sizes, warm_up
from taso_py.search.trace import Trace


@dataclass(frozen=True)
class Optimized:
    """The result of an optimization: the module with its report, trace and plan."""

    module: Runner
    """Called like the original; for the eager runtime a ``torch.fx.GraphModule``."""
    report: Report
    trace: Trace
    plan: Plan
    """The kernels that compute it."""
    keeps_original: bool
    """True if nothing was significantly faster than the original, which ``module`` then is."""
    inputs: OpenInputs
    """The module's example inputs, from which inputs of other open sizes are made."""

    def warmup(self, sizes: Iterable[Sizes]) -> None:
        """Call the module once at each of some open sizes, since the first call at a size is slow.

        With one open size, ``optimized.warmup([1, 16, 200])``; with several, give dicts by the names in the report.

        Raises:
            TasoError: the module does not have these sizes.
        """
        warm_up(self.module, self.inputs, sizes)
