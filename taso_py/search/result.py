"""Limits and results of a search.

Invariant: the results of a search are sorted by cost, differ in the set of rules that they use, and store no more bytes
than the growth limit allows.
"""

from __future__ import annotations

import enum
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeAlias

from taso_py.ir.errors import TasoError
from taso_py.ir.graph import Graph
from taso_py.ir.types import DType
from taso_py.ops.work import most_stored
from taso_py.rules.match import Match
from taso_py.rules.verdict import Numerics
from taso_py.search.trace import BodyTrace, Trace, make_trace

WORTH = 0.002
"""Least gain by its cost for which a graph is built and timed. In ONNX Runtime and OpenVINO the rules for five models
gained 0.6 to 37%, and those for ResNet-50 and MobileNet, which they make no faster, nothing."""


class SearchStop(enum.Enum):
    """The reason why a search ended."""

    EXHAUSTED = "nothing is left within the slack"
    BUDGET = "the budget of graphs is used up"
    TIME = "the time is used up"
    STALLED = "nothing better came for long"
    INTERRUPTED = "interrupted"
    FOLLOWED = "a trace was followed"


@dataclass(frozen=True)
class Limits:
    """The limits of a search."""

    alpha: float = 1.05
    """Graphs that cost at most this multiple of the best are followed (SOSP 2019, section 5)."""
    budget: int = 2000
    """The most graphs that are built."""
    patience: int = 100
    """A search ends after so many consecutive graphs without an improvement; that of a region after fewer, if it costs
    little beside the whole."""
    seconds: float = 60.0
    """The longest duration of a search."""
    now: Callable[[], float] = time.monotonic
    """The clock, in seconds."""
    growth: float = 1.25
    """The most bytes that a result may store, relative to the original; intermediate graphs may store more.

    A little more is always allowed, see :func:`taso_py.ops.work.most_stored`."""
    static_bytes: float | None = None
    """The limit on stored bytes as a number, in place of :attr:`growth`."""
    numerics: Numerics | None = None
    """The cap on the rules' numerics class. By default all are allowed, in fp16 those up to ZERO_TERMS."""
    results: int = 5
    """The most graphs that are returned, not counting the original."""
    reuse: bool = True
    """True if regions with the same structure up to weights are searched once, not one by one."""
    seed: int = 0
    """Seed of the order among equally promising steps; 0 takes them in the order of the graph."""

    def __post_init__(self) -> None:
        if not (self.alpha >= 1 and self.growth >= 1):
            raise TasoError("alpha and growth are factors of at least 1")
        if min(self.budget, self.patience, self.results) < 1 or not self.seconds > 0:
            raise TasoError("a search needs a budget, patience, a time limit and a number of results above 0")

    def most_bytes(self, original: int) -> float:
        """Return the most bytes that a result may store, given those that the original stores."""
        return most_stored(original, self.growth) if self.static_bytes is None else self.static_bytes

    def allows(self, match: Match) -> bool:
        """Return whether the numerics class of a match's rule is allowed at its element type."""
        cap = self.numerics
        if cap is None:
            dtypes = {match.dtype, *(value.type.dtype for value in match.outputs)}
            cap = Numerics.ZERO_TERMS if DType.F16 in dtypes else Numerics.MASK
        return match.rule.numerics <= cap


@dataclass(frozen=True)
class Candidate:
    """A graph that a search found."""

    original: Graph
    """The graph at which the search began."""
    graph: Graph
    seconds: float
    """Its latency by the cost that guided the search."""
    static_bytes: int
    """The bytes it stores: weights, and values computed from them at build time."""
    applied: tuple[str, ...] = ()
    """The identifiers of the rules in the order of application."""
    steps: Iterable[tuple[Match, Graph]] = field(default=(), compare=False, repr=False)
    """The matches that were applied, one after the other, each with the graph after it; may be derived on iteration."""
    bodies: tuple[BodyTrace, ...] = ()
    """The steps in bodies of control flow that were taken after these."""

    @cached_property
    def trace(self) -> Trace:
        """The steps in a form that can be stored and replayed.

        Raises:
            TraceError: the steps do not lead to the graph.
        """
        return make_trace(self.original, self.steps, self.graph, self.bodies)


@dataclass(frozen=True)
class SearchResult:
    """The result of a search."""

    original: Candidate
    candidates: tuple[Candidate, ...]
    """The best graphs, best first, including the original."""
    stop_reason: SearchStop
    expansions: int
    """The number of graphs that were matched against the rules."""
    built: int
    """The number of distinct graphs that were built."""
    seconds: float
    """The duration of the search."""
    notes: tuple[str, ...] = ()
    """Notes for the user, one line each."""

    @property
    def best(self) -> Candidate:
        """The cheapest graph."""
        return self.candidates[0]

    @property
    def gain(self) -> float:
        """The speed-up of the cheapest graph over the original by its cost; 1 if the original has no such cost."""
        before, after = self.original.seconds, self.best.seconds
        return before / after if math.isfinite(before) and after > 0 else 1.0

    def worthwhile(self) -> SearchResult:
        """Return the result without graphs that cost hardly less than the original, as far as this has a cost."""
        most = (1 - WORTH) * self.original.seconds
        kept = [one for one in self.candidates if not one.applied or one.seconds < most or not math.isfinite(most)]
        return replace(self, candidates=tuple(kept))


@dataclass(frozen=True)
class Progress:
    """The progress of a search."""

    built: int
    expansions: int
    original_seconds: float
    best_seconds: float
    """Latencies of the original and of the best graph so far, by the cost."""
    seconds: float
    """The duration of the search so far."""


ProgressCallback: TypeAlias = Callable[[Progress], None]
