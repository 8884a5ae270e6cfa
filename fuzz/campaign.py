"""A campaign: many random models in batches, each from one seed, wherever a pool has its processes.

Invariant: the models depend on the seeds only; a process that dies, or a batch in which no model can be made, is a
failure of its batch and loses no other.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import cycle
from textwrap import indent
from traceback import format_exc

import torch
from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis import strategies as st

from fuzz.check import Checker, DiscrepancyError, Outcome
from fuzz.draft import Case
from fuzz.kinds import ROUNDS
from fuzz.models import models
from taso_py.executors import HERE, Pool
from taso_py.rules.database import read_database

BATCH = 25
"""How many models come from one seed. A batch ends with its first failure, so that others can be found."""


_SETTINGS = settings(
    deadline=None,
    database=None,
    verbosity=Verbosity.quiet,
    phases=(Phase.generate, Phase.shrink),
    suppress_health_check=[HealthCheck(check) for check in HealthCheck],
    report_multiple_bugs=False,
)


@dataclass(frozen=True)
class Failure:
    """A model that did not pass, as small as it could be made."""

    reason: str
    text: str
    seed: int
    """Of the check."""
    batch: int
    """The seed of the batch that it was met in."""

    def __str__(self) -> str:
        return f"# {self.reason}\n# check seed {self.seed}, batch {self.batch}\n{self.text}"


@dataclass
class Tally:
    """What became of models."""

    tried: int = 0
    refused: Counter[str] = field(default_factory=Counter[str])
    rules: Counter[str] = field(default_factory=Counter[str])
    kernels: Counter[str] = field(default_factory=Counter[str])
    kinds: Counter[str] = field(default_factory=Counter[str])
    """How many models have more than ordinary operators, by what that is."""
    engines: Counter[str] = field(default_factory=Counter[str])
    """How many models engines computed, by their names."""
    refusals: Counter[str] = field(default_factory=Counter[str])
    """What engines said of models that they do not compute."""
    opened: int = 0
    """Those of which sizes were left open."""
    resized: int = 0
    """At how many other sizes those were computed in all."""
    failures: list[Failure] = field(default_factory=list[Failure])

    def add(self, other: Tally) -> None:
        """Adds what became of others."""
        self.tried += other.tried
        self.refused += other.refused
        self.rules += other.rules
        self.kernels += other.kernels
        self.kinds += other.kinds
        self.engines += other.engines
        self.refusals += other.refusals
        self.opened += other.opened
        self.resized += other.resized
        self.failures += other.failures

    def count(self, outcome: Outcome) -> None:
        """Adds what became of one that did not fail."""
        self.tried += 1
        self.refused.update([outcome.refused] if outcome.refused else [])
        self.rules.update(outcome.rules)
        self.kernels.update(outcome.kernels)
        self.kinds.update(outcome.kinds)
        self.engines.update(outcome.engines)
        self.refusals.update(outcome.refusals)
        self.opened += bool(outcome.open)
        self.resized += outcome.resized

    def __str__(self) -> str:
        lines = [
            f"{self.tried} models: {self.refused.total()} refused, {self.rules.total()} rewrites by {len(self.rules)} "
            f"rules, {self.kernels.total()} calls of {len(self.kernels)} kernels, {len(self.failures)} failures",
            f"  {self.opened} with open sizes, computed at {self.resized} other sizes",
            f"  {', '.join(f'{count} of kind {kind}' for kind, count in sorted(self.kinds.items())) or 'all ordinary'}",
            *(f"  {count} computed in {name}" for name, count in sorted(self.engines.items())),
            *(f"  refused {count} x: {reason}" for reason, count in self.refused.most_common(12)),
            *(f"  refused {count} x: {reason}" for reason, count in self.refusals.most_common(12)),
        ]
        return "\n".join(lines)


def run_batch(number: int, count: int, kind: str = "plain", engines: tuple[str, ...] = ()) -> Tally:
    """Tries random models; a failing one is made smaller and ends the batch.

    Args:
        number: the seed.
        count: how many models.
        kind: of which, one of :data:`ROUNDS`.
        engines: the names of engines that are to compute them too.
    """
    tally, checker = Tally(), _checker(engines)
    last: list[tuple[Failure, Case]] = []

    @seed(number)
    @settings(_SETTINGS, max_examples=count)
    @given(models(kind), st.integers(0, 1 << 16))
    def attempt(case: Case, chance: int) -> None:
        try:
            outcome = checker.check(case, chance)
        except DiscrepancyError as error:
            last[:] = [(Failure(str(error), case.text, chance, number), case)]
            raise
        if not last:
            tally.count(outcome)

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what PyTorch warns of is the made-up model's own doing
            attempt()
    except DiscrepancyError:
        tally.tried += 1
        tally.failures += [_shortened(checker, *found) for found in last]
    except Exception as error:  # what makes models is at fault; other batches are none the worse
        tally.tried += 1
        where = indent(format_exc(), "# ")
        tally.failures.append(Failure(f"no model was made: {type(error).__name__}: {error}", where, 0, number))
    return tally


def _shortened(checker: Checker, failure: Failure, case: Case) -> Failure:
    """A failure without the lines that it does not need: what hypothesis draws hangs together, and some of it stays."""
    lines, first = case.text.splitlines(keepends=True), failure.reason
    for place in reversed(range(len(lines))):
        if lines[place].lstrip().startswith(("return", "import taso_py")):
            continue  # without results it fails for that, and without an import elsewhere
        shorter = replace(case, text="".join(lines[:place] + lines[place + 1 :]))
        try:
            checker.check(shorter, failure.seed)
        except DiscrepancyError as error:
            del lines[place]
            failure = replace(failure, reason=f"{error}; first: {first}", text=shorter.text)
        except Exception:  # what is left is no model
            continue
    return failure


@cache
def _checker(engines: tuple[str, ...]) -> Checker:
    torch.set_num_threads(1)
    return Checker(read_database(), engines)


def run(
    count: int, number: int, pool: Pool = HERE, rounds: Sequence[str] = ROUNDS, engines: Sequence[str] = ()
) -> Iterator[Tally]:
    """Tries so many models, some at a time; which a seed gives may depend on the modules that a process has loaded.

    Args:
        count: how many models.
        number: the seed.
        pool: where batches are tried.
        rounds: kinds of models, one a batch in turns.
        engines: the names of engines that are to compute them too.
    """
    starts = range(0, count, BATCH)
    kinds = cycle(rounds)
    batches = [(number * 1_000_003 + start, min(BATCH, count - start), next(kinds)) for start in starts]
    tried = partial(run_batch, engines=tuple(engines)) if engines else run_batch
    return pool.map(partial(_apply, tried), batches, lost=_died)


def _apply(function: Callable[[int, int, str], Tally], batch: tuple[int, int, str]) -> Tally:
    return function(*batch)


def _died(batch: tuple[int, int, str]) -> Tally:
    number, count, _ = batch
    return Tally(tried=count, failures=[Failure("processes died in this batch", "", 0, number)])
