"""Finalists: the graphs that are built for engines and timed end to end against the original."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from torch import nn

from taso_py.backend import Plan, Program
from taso_py.engines.engine import Engine, Runner
from taso_py.judging.timing import INDIFFERENCE, Race
from taso_py.latency.idle import wait_until_idle
from taso_py.search.result import Candidate

ORIGINAL = "original"
"""The name of the original module among the finalists."""


@dataclass(frozen=True)
class Finalist:
    """A graph built for an engine, or the original module."""

    name: str
    candidate: Candidate
    program: Program
    plan: Plan
    engine: Engine
    runner: Runner
    module: nn.Module
    """The module that the runner runs."""

    @property
    def is_original(self) -> bool:
        """True if it is the original module."""
        return self.name == ORIGINAL


@dataclass(frozen=True)
class Contestant:
    """How a finalist was made, without its module."""

    engine: str
    is_rewritten: bool


def contestants(finalists: Mapping[str, Finalist]) -> Mapping[str, Contestant]:
    """Return the contestants of the first race but for the original."""
    return {
        name: Contestant(finalist.engine.name, bool(finalist.candidate.applied))
        for name, finalist in finalists.items()
        if not finalist.is_original
    }


def adds_nothing(finalist: Finalist, finalists: Mapping[str, Finalist], first: Race) -> bool:
    """Return whether rules gained less in a race than matters, so that the unchanged graph does as well."""
    if not finalist.candidate.applied:
        return False
    twins = [name for name, other in finalists.items() if is_unchanged_twin(other, finalist)]
    return any(first.ratio(finalist.name, over=name).median < 1 + INDIFFERENCE for name in twins if first.times[name])


def leaders(ranking: Sequence[str], finalists: Mapping[str, Finalist], first: Race) -> Sequence[str]:
    """Return the first finalist of each engine of those that a race kept to its end, in the order of a ranking.

    Args:
        ranking: names of finalists, the fastest first, without the original.
        finalists: the finalists by name.
        first: the race of all of them.
    """
    found: dict[str, str] = {}
    for name in ranking:
        if len(first.times[name]) == first.rounds:
            found.setdefault(finalists[name].engine.name, name)
    return [*found.values()]


def settle(finalists: Iterable[Finalist]) -> Callable[[], None] | None:
    """Return a function to call before each turn, which waits for other contestants' threads; None if not needed."""
    return wait_until_idle if any(finalist.engine.has_own_threads for finalist in finalists) else None


def describe(candidate: Candidate) -> str:
    """Return what a report calls a graph."""
    steps = len(candidate.applied)
    return f"{steps} rule{'s' if steps > 1 else ''} applied" if steps else "unchanged graph"


def is_unchanged_twin(one: Finalist, other: Finalist) -> bool:
    """Return whether ``one`` is the unchanged graph in the engine of ``other``."""
    return not (one.is_original or one.candidate.applied) and one.engine is other.engine


def unique(name: str, taken: set[str]) -> str:
    """Return the name, with a number if it is taken, and mark it as taken."""
    names = (name if number == 1 else f"{name} ({number})" for number in count(1))
    free = next(name for name in names if name not in taken)
    taken.add(free)
    return free
