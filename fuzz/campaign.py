"""A fuzzing campaign: many random models in batches, each from one seed, in the processes of a pool.

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

from fuzz.check import Checker, CheckOutcome, DiscrepancyError
from fuzz.draft import Case
from fuzz.kinds import ROUNDS
from fuzz.models import models
from taso_py.executors import HERE, Pool
from taso_py.rules.database import read_database

BATCH = 25
"""Models per seed. A batch ends with its first failure, so that others can be found."""


SETTINGS = settings(
    deadline=None,
    database=None,
    verbosity=Verbosity.quiet,
    phases=(Phase.generate, Phase.shrink),
    suppress_health_check=[HealthCheck(check) for check in HealthCheck],
    report_multiple_bugs=False,
)


@dataclass(frozen=True)
class Failure:
    """A model that did not pass, minimized."""

    reason: str
    text: str
    seed: int
    """Seed of the check."""
    batch: int
    """Seed of the batch in which it occurred."""

    def __str__(self) -> str:
        return f"# {self.reason}\n# check seed {self.seed}, batch {self.batch}\n{self.text}"


@dataclass
class CampaignTally:
    """Counts over the models of a campaign."""

    tried: int = 0
    refused: Counter[str] = field(default_factory=Counter[str])
    rules: Counter[str] = field(default_factory=Counter[str])
    kernels: Counter[str] = field(default_factory=Counter[str])
    kinds: Counter[str] = field(default_factory=Counter[str])
    """Number of models with more than ordinary operators, by kind."""
    engines: Counter[str] = field(default_factory=Counter[str])
    """Number of models that engines computed, by engine."""
    refusals: Counter[str] = field(default_factory=Counter[str])
    """Engines' reasons for models that they do not compute."""
    opened: int = 0
    """Number of models with open sizes."""
    resized: int = 0
    """Number of other sizes at which those were computed, in total."""
    failures: list[Failure] = field(default_factory=list[Failure])

    def add(self, other: CampaignTally) -> None:
        """Add the counts of another tally."""
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

    def count(self, outcome: CheckOutcome) -> None:
        """Add a model that did not fail."""
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


def run_batch(number: int, count: int, kind: str = "plain", engines: tuple[str, ...] = ()) -> CampaignTally:
    """Check random models; a failing one is minimized and ends the batch.

    Args:
        number: the seed.
        count: the number of models.
        kind: the kind of models, one of :data:`ROUNDS`.
        engines: names of engines that also compute the models.
    """
    tally, checker = CampaignTally(), _checker(engines)
    last: list[tuple[Failure, Case]] = []

    @seed(number)
    @settings(SETTINGS, max_examples=count)
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
            warnings.simplefilter("ignore")  # PyTorch's warnings are about the random model
            attempt()
    except DiscrepancyError:
        tally.tried += 1
        tally.failures += [_minimized(checker, *found) for found in last]
    except Exception as error:  # the generator of models failed; other batches are not affected
        tally.tried += 1
        where = indent(format_exc(), "# ")
        tally.failures.append(Failure(f"no model was made: {type(error).__name__}: {error}", where, 0, number))
    return tally


def _minimized(checker: Checker, failure: Failure, case: Case) -> Failure:
    """Return a failure without the lines that it does not need.

    Hypothesis's draws depend on each other, so that its shrinking leaves some of them.
    """
    lines, first = case.text.splitlines(keepends=True), failure.reason
    for place in reversed(range(len(lines))):
        if lines[place].lstrip().startswith(("return", "import fuzz")):
            continue  # without results it fails for that, and without an import elsewhere
        shorter = replace(case, text="".join(lines[:place] + lines[place + 1 :]))
        try:
            checker.check(shorter, failure.seed)
        except DiscrepancyError as error:
            del lines[place]
            failure = replace(failure, reason=f"{error}; first: {first}", text=shorter.text)
        except Exception:  # the remaining text is not a model
            continue
    return failure


@cache
def _checker(engines: tuple[str, ...]) -> Checker:
    torch.set_num_threads(1)
    return Checker(read_database(), engines)


def run(
    count: int, number: int, pool: Pool = HERE, rounds: Sequence[str] = ROUNDS, engines: Sequence[str] = ()
) -> Iterator[CampaignTally]:
    """Check this many models in batches; the models of a seed may depend on the modules that a process has loaded.

    Args:
        count: the number of models.
        number: the seed.
        pool: the pool that runs batches.
        rounds: kinds of models, one per batch in turns.
        engines: names of engines that also compute the models.
    """
    starts = range(0, count, BATCH)
    kinds = cycle(rounds)
    batches = [(number * 1_000_003 + start, min(BATCH, count - start), next(kinds)) for start in starts]
    tried = partial(run_batch, engines=tuple(engines)) if engines else run_batch
    return pool.map(partial(_apply, tried), batches, lost=_lost_batch)


def _apply(function: Callable[[int, int, str], CampaignTally], batch: tuple[int, int, str]) -> CampaignTally:
    return function(*batch)


def _lost_batch(batch: tuple[int, int, str]) -> CampaignTally:
    number, count, _ = batch
    return CampaignTally(tried=count, failures=[Failure("processes died in this batch", "", 0, number)])
