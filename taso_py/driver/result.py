"""What an optimization is told and what it answers.

Invariant: options that make no sense cannot be made.
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
from taso_py.saving.warmup import Sizes, warm
from taso_py.search.result import Limits
from taso_py.search.strategies import SEARCHES
from taso_py.search.trace import Trace

GROWTH_LIMIT = 1.25
"""How many times the original's bytes of weights the result may hold."""


_KINDS: Mapping[str, tuple[type, str]] = {
    "str": (str, "a name"),
    "int": (Integral, "a whole number"),
    "float": (Real, "a number"),
}
"""What options are, by how their types are written."""
OR_NONE = " | None"


class OptimizeError(TasoError):
    """An optimization that cannot be carried out as asked."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to optimize; the defaults are those of the command line."""

    runtime: str = "eager"
    search: str = "backtracking"
    alpha: float = 1.05
    budget: int = 2000
    effort: str = NORMAL
    """A level of :data:`taso_py.effort.EFFORTS`, which says how long searching and timing may take."""
    within: float | None = None
    """Seconds that all of it may take, more or less, in place of a level of effort."""
    time_limit: float | None = None
    """Seconds of search, in place of the effort's; what it takes to measure new kernels comes on top."""
    numerics: Numerics | None = None
    """The cap, or its label; None allows all, and up to ZERO_TERMS where a rule is applied in fp16."""
    seed: int = 0
    race_seconds: float | None = None
    """Seconds of the race of all, in place of the effort's."""
    reload: bool = True
    """Whether the result is judged in the form that it is saved in, loaded again; it is whenever it is saved."""
    kernels: bool = True
    """Whether to choose kernels and memory formats; otherwise plain ATen calls compute everything."""
    reuse: bool = True
    """Whether parts of the graph that are the same but for their weights are searched once."""
    cache: bool = True
    """Whether what wins is remembered, on disk too, beside the latencies, and what won before stays in the running."""
    progress: bool = False

    @classmethod
    def named(cls, options: Mapping[str, Any]) -> Self:
        """The options of these names, the others as they are by default.

        Raises:
            TasoError: an option does not exist or makes no sense.
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
                raise OptimizeError(f"{option.name} is {kind[1]}, not {given!r}")
        label: Any = self.numerics
        if label is not None and not isinstance(label, Numerics):
            object.__setattr__(self, "numerics", Numerics.labelled(str(label)))
        object.__setattr__(self, "seed", int(self.seed))  # PyTorch takes no NumPy's
        if not 0 <= self.seed < 2**63:
            raise OptimizeError(f"a seed is a whole number from 0 to 2**63 - 1, not {self.seed}")
        if self.effort not in EFFORTS:
            raise OptimizeError(f"no effort is called {self.effort}; there are {', '.join(EFFORTS)}")
        if self.within is not None and not 0 < self.within < math.inf:
            raise OptimizeError(f"within is a positive number of seconds, not {self.within}")
        if not self.limited.race_s > 0:
            raise OptimizeError(f"race_seconds must be positive, not {self.race_seconds}")
        if self.search not in SEARCHES:
            raise OptimizeError(f"no search is called {self.search}; there are {', '.join(SEARCHES)}")
        if self.runtime not in CHOICES:
            raise OptimizeError(f"no runtime is called {self.runtime}; there are {', '.join(CHOICES)}")
        self.limits()

    @property
    def limited(self) -> Effort:
        """The level of effort, with the limits that were given in place of its own."""
        level = EFFORTS[self.effort] if self.within is None else within(self.within)
        search_s = level.search_s if self.time_limit is None else self.time_limit
        race_s = level.race_s if self.race_seconds is None else self.race_seconds
        return replace(level, search_s=search_s, race_s=race_s)

    def limits(self) -> Limits:
        """The limits of the search; raises `TasoError` if they make no sense."""
        return Limits(
            alpha=self.alpha,
            budget=self.budget,
            seconds=self.limited.search_s,
            growth=GROWTH_LIMIT,
            numerics=self.numerics,
            results=self.limited.finalists,
            reuse=self.reuse,
            seed=self.seed,
        )


@dataclass(frozen=True)
class Optimized:
    """A result with its evidence."""

    module: Runner
    """Called like the original; for the eager runtime a ``torch.fx.GraphModule``."""
    report: Report
    trace: Trace
    plan: Plan
    """The kernels that compute it."""
    keeps_original: bool
    """Whether nothing was surely faster than the original, which is the module then."""
    inputs: OpenInputs
    """What the module is called with, at any of its sizes."""

    def warmup(self, sizes: Iterable[Sizes]) -> None:
        """Calls the module once at each of some open sizes, since the first call at a size takes longer than others.

        ``optimized.warmup([1, 16, 200])`` where one size is open; with several, dicts by the names in the report.

        Raises:
            TasoError: the module does not have these sizes.
        """
        warm(self.module, self.inputs, sizes)
