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
from taso_py.search.result import Candidate, SearchResult

ORIGINAL = "original"
"""The name of the original module among the finalists."""


@dataclass(frozen=True)
class EngineSearch:
    """The result of a search, with the engines whose prices it used."""

    result: SearchResult
    engines: Sequence[Engine]
    """Engines in which the graphs may run."""


def result_for(engine: Engine, searches: Sequence[EngineSearch]) -> SearchResult:
    """Return the result of the search for an engine; that of the first if the engine was not searched for."""
    return next((found.result for found in searches if engine in found.engines), searches[0].result)


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


@dataclass(frozen=True)
class Standings:
    """The finalists after their races."""

    finalists: Mapping[str, Finalist]
    """All of them by name, the original included."""
    races: Sequence[Race]
    """The race of all, and if there was another, that of the fastest of each engine and of compilers; the original is
    the baseline of each."""
    ahead: Sequence[str]
    """The names of those that were faster than the original, the fastest first."""

    def unchanged(self, finalist: Finalist) -> Finalist:
        """Return the unchanged graph in the engine of a finalist; the original if it is not among the finalists."""
        twins = (other for other in self.finalists.values() if is_unchanged_twin(other, finalist))
        return next(twins, self.finalists[ORIGINAL])


def contestants(finalists: Mapping[str, Finalist]) -> Mapping[str, Contestant]:
    """Return the contestants of the races but for the original."""
    return {
        name: Contestant(finalist.engine.name, bool(finalist.candidate.applied))
        for name, finalist in finalists.items()
        if not finalist.is_original
    }


def ahead_of_original(finalists: Mapping[str, Finalist], race: Race) -> Sequence[str]:
    """Return the names of those that were faster than the original in a race, the fastest first.

    Graphs with rules that gained less than matters are left out, since the unchanged graph does as well.
    """
    raced = [name for name in race.times if race.times[name]]
    ranking = sorted(raced, key=lambda name: -race.ratio(name).median)
    ahead = ranking[: ranking.index(ORIGINAL)]
    return [name for name in ahead if not _adds_nothing(finalists[name], finalists, race)]


def _adds_nothing(finalist: Finalist, finalists: Mapping[str, Finalist], race: Race) -> bool:
    """Return whether rules gained less in a race than matters."""
    if not finalist.candidate.applied:
        return False
    twins = [name for name in race.times if is_unchanged_twin(finalists[name], finalist)]
    return any(race.ratio(finalist.name, over=name).median < 1 + INDIFFERENCE for name in twins if race.times[name])


def leaders(ranking: Sequence[str], finalists: Mapping[str, Finalist], race: Race) -> Sequence[str]:
    """Return the first finalist of each engine of those that a race kept to its end, in the order of a ranking.

    Args:
        ranking: names of finalists, the fastest first, without the original.
        finalists: the finalists by name.
        race: the race of all of them.
    """
    found: dict[str, str] = {}
    for name in ranking:
        if len(race.times[name]) == race.rounds:
            found.setdefault(finalists[name].engine.name, name)
    return [*found.values()]


def by_engine(fastest: Sequence[str], ranking: Sequence[str], finalists: Mapping[str, Finalist]) -> Sequence[str]:
    """Return a ranking in which the order of the engines is that of the fastest finalists of some.

    Args:
        fastest: names of finalists, each followed by the others of its engine.
        ranking: names of finalists, the fastest first; those of other engines come last.
        finalists: the finalists by name.
    """
    led = list[str]()
    for name in fastest:
        led += [name, *(one for one in ranking if finalists[one].engine is finalists[name].engine)]
    return [*dict.fromkeys([*led, *ranking])]


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
