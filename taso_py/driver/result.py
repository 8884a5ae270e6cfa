"""Options and result of an optimization.

Invariant: constructing options validates them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from numbers import Integral, Real
from typing import Any, Self

from taso_py.backend import Plan
from taso_py.checking.resize import OpenInputs
from taso_py.effort import EFFORTS, NORMAL, Effort, within
from taso_py.engines.engine import Runner
from taso_py.engines.table import CHOICES
from taso_py.ir.errors import TasoError
from taso_py.report.optimization import Report
from taso_py.rules.verdict import Numerics
from taso_py.saving.warmup import Sizes, warm_up
from taso_py.search.result import Limits
from taso_py.search.strategies import SEARCHES
from taso_py.search.trace import Trace

GROWTH_LIMIT = 1.25
"""The most bytes of weights that the result may hold, relative to the original."""


_KINDS: Mapping[str, tuple[type, str]] = {
    "str": (str, "a name"),
    "int": (Integral, "a whole number"),
    "float": (Real, "a number"),
}
"""Accepted Python types of options, and their names for messages, by annotation."""
OR_NONE = " | None"


class OptimizeError(TasoError):
    """Raised if an optimization cannot be carried out as asked."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of an optimization; the defaults are those of the command line."""

    runtime: str = "eager"
    search: str = "backtracking"
    alpha: float = 1.05
    budget: int = 2000
    effort: str = NORMAL
    """A level of :data:`taso_py.effort.EFFORTS`, which limits the time for measuring, searching and timing."""
    within: float | None = None
    """Seconds that the whole optimization may take, approximately; used in place of a level of effort."""
    time_limit: float | None = None
    """Seconds of search, in place of the effort's; measuring new kernels is not included."""
    numerics: Numerics | None = None
    """The cap, or its label; None allows all, and up to ZERO_TERMS where a rule is applied in fp16."""
    seed: int = 0
    race_seconds: float | None = None
    """Seconds of the first race, in place of the effort's."""
    reload: bool = True
    """True if the result is evaluated in its saved form, loaded again; always so if it is saved."""
    kernels: bool = True
    """True if kernels and memory formats are chosen; otherwise plain ATen calls compute everything."""
    reuse: bool = True
    """True if repeated parts of the graph, equal except for their weights, are searched once."""
    cache: bool = True
    """True if winners are remembered on disk, beside the latencies, and earlier winners are considered again."""
    progress: bool = False

    @classmethod
    def from_mapping(cls, options: Mapping[str, Any]) -> Self:
        """Return options with the given fields set and the others at their defaults.

        Raises:
            TasoError: an option does not exist or has an invalid value.
        """
        known = [field.name for field in fields(cls)]
        for name in options:
            if name not in known:
                close = get_close_matches(name, known, n=3) or known
                raise OptimizeError(f"there is no option {name!r}; did you mean {', '.join(close)}?")
        return cls(**options)

    def __post_init__(self) -> None:
        for option in fields(self):
            given: object = getattr(self, option.name)
            kind = _KINDS.get(str(option.type).removesuffix(OR_NONE))
            if given is None and str(option.type).endswith(OR_NONE):
                continue
            if kind is not None and not isinstance(given, kind[0]):
                raise OptimizeError(f"{option.name} must be {kind[1]}, not {given!r}")
        label: Any = self.numerics
        if label is not None and not isinstance(label, Numerics):
            object.__setattr__(self, "numerics", Numerics.labelled(str(label)))
        object.__setattr__(self, "seed", int(self.seed))  # PyTorch refuses NumPy's integers
        if not 0 <= self.seed < 2**63:
            raise OptimizeError(f"seed must be a whole number from 0 to 2**63 - 1, not {self.seed}")
        if self.effort not in EFFORTS:
            raise OptimizeError(f"no effort is called {self.effort}; there are {', '.join(EFFORTS)}")
        if self.within is not None and not 0 < self.within < math.inf:
            raise OptimizeError(f"within must be a positive number of seconds, not {self.within}")
        if not self.effective_effort.race_s > 0:
            raise OptimizeError(f"race_seconds must be positive, not {self.race_seconds}")
        if self.search not in SEARCHES:
            raise OptimizeError(f"no search is called {self.search}; there are {', '.join(SEARCHES)}")
        if self.runtime not in CHOICES:
            raise OptimizeError(f"no runtime is called {self.runtime}; there are {', '.join(CHOICES)}")
        self.limits()

    @property
    def effective_effort(self) -> Effort:
        """The level of effort, with ``time_limit`` and ``race_seconds`` in place of its own limits if given."""
        level = EFFORTS[self.effort] if self.within is None else within(self.within)
        search_s = level.search_s if self.time_limit is None else self.time_limit
        race_s = level.race_s if self.race_seconds is None else self.race_seconds
        return replace(level, search_s=search_s, race_s=race_s)

    def limits(self) -> Limits:
        """Return the limits of the search; raises `TasoError` if they are invalid."""
        return Limits(
            alpha=self.alpha,
            budget=self.budget,
            seconds=self.effective_effort.search_s,
            growth=GROWTH_LIMIT,
            numerics=self.numerics,
            results=self.effective_effort.finalists,
            reuse=self.reuse,
            seed=self.seed,
        )


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
