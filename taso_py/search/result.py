"""What a search is told and what it answers.

Invariant: the results of a search are sorted by cost, differ in the set of rules that they use, and store no more than
the growth limit allows.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

from taso_py.ir.errors import TasoError
from taso_py.ir.graph import Graph
from taso_py.ir.types import DType
from taso_py.rules.match import Match
from taso_py.rules.verdict import Numerics
from taso_py.search.trace import Trace, make_trace


class StopReason(enum.Enum):
    """Why a search ended."""

    EXHAUSTED = "nothing is left within the slack"
    BUDGET = "the budget of graphs is used up"
    TIME = "the time is used up"
    STALLED = "nothing better came for long"
    INTERRUPTED = "interrupted"
    FOLLOWED = "a trace was followed"


@dataclass(frozen=True)
class Limits:
    """How far a search goes."""

    alpha: float = 1.05
    """Graphs that cost up to so many times the best are followed (SOSP 2019, section 5)."""
    budget: int = 2000
    """How many graphs are built at most."""
    patience: int = 100
    """After how many graphs in a row that made nothing better a search, or that of a region, ends."""
    seconds: float = 60.0
    """How long a search may take."""
    now: Callable[[], float] = time.monotonic
    """The time in seconds."""
    growth: float = 1.25
    """How many times the original's weights a result may store; graphs on the way may store more."""
    static_bytes: float | None = None
    """The same limit in bytes, in place of the factor."""
    numerics: Numerics | None = None
    """The cap on the rules' numerics class. Without one all are allowed, in fp16 all up to ZERO_TERMS."""
    results: int = 5
    """How many graphs are returned at most, the original not counted."""
    reuse: bool = True
    """Whether regions that are the same but for their weights are searched once, not one by one."""
    seed: int = 0
    """Of the order among equally promising steps; 0 takes them in the order of the graph."""

    def __post_init__(self) -> None:
        if not (self.alpha >= 1 and self.growth >= 1):
            raise TasoError("alpha and growth are factors of at least 1")
        if min(self.budget, self.patience, self.results) < 1 or not self.seconds > 0:
            raise TasoError("a search needs a budget, patience, a time limit and a number of results above 0")

    def allows(self, match: Match) -> bool:
        """Whether the numerics class of a match's rule is allowed at its element type."""
        cap = self.numerics
        if cap is None:
            cap = Numerics.ZERO_TERMS if match.dtype is DType.F16 else Numerics.MASK
        return match.rule.numerics <= cap


@dataclass(frozen=True)
class Candidate:
    """A graph that a search found."""

    original: Graph
    """Where the search began."""
    graph: Graph
    seconds: float
    """Its latency by the cost that guided the search."""
    static_bytes: int
    """What it stores: weights, and what is computed from them at build time."""
    applied: tuple[str, ...] = ()
    """The identifiers of the rules in the order of application."""
    steps: Iterable[tuple[Match, Graph]] = field(default=(), compare=False, repr=False)
    """The matches that were applied, one after the other, each with the graph after it; perhaps derived only now."""

    @cached_property
    def trace(self) -> Trace:
        """The steps in a form that can be kept and replayed.

        Raises:
            TraceError: the steps do not lead to the graph.
        """
        return make_trace(self.original, self.steps, self.graph)


@dataclass(frozen=True)
class SearchResult:
    """What a search found."""

    original: Candidate
    candidates: tuple[Candidate, ...]
    """The best graphs, best first, the original among them."""
    stop_reason: StopReason
    expansions: int
    """How many graphs were matched against the rules."""
    built: int
    """How many distinct graphs were built."""
    seconds: float
    """How long the search took."""
    notes: tuple[str, ...] = ()
    """What the user should know of it, one line each."""

    @property
    def best(self) -> Candidate:
        """The cheapest graph."""
        return self.candidates[0]


@dataclass(frozen=True)
class Progress:
    """How a search is going."""

    built: int
    expansions: int
    original_seconds: float
    best_seconds: float
    """Latencies by the cost, of the original and of the best graph so far."""
    seconds: float
    """How long the search has taken."""


Report: TypeAlias = Callable[[Progress], None]
