"""The generator: enumerate, pair, test, generalise and prove, prune; in one loop over candidates, small ones first.

Invariant: every rule that comes out was proved by the prover that was handed in, at the generality it is stated in. The
result is a function of the configuration and that prover.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from taso_py.generate.candidates import Candidate, collect, distinct, shifted
from taso_py.generate.derive import Derivation, Deriver
from taso_py.generate.enumerate import enumerate_terms
from taso_py.generate.folding import fold
from taso_py.generate.sets import VOCABULARIES
from taso_py.generate.settle import Refusal, Settler
from taso_py.generate.vocabulary import Folding, Written
from taso_py.generate.worth import lowers_cost, only_adds, recognises, saves_contraction
from taso_py.generate.written import written
from taso_py.ir.errors import TasoError
from taso_py.ir.node import Value
from taso_py.rules.substitution import Substitution
from taso_py.rules.verdict import Prover

Progress: TypeAlias = Callable[[str, int, int], None]
"""Called with the phase, how much of it is done, and how much there is."""


@dataclass(frozen=True)
class Config:
    """What to generate from."""

    vocabularies: tuple[str, ...] = ("core", "merge", "fold", "fuse")
    max_operators: int | None = None
    """Operators per side at most; by default what each family says."""
    seed: int = 0

    def __post_init__(self) -> None:
        unknown = [name for name in self.vocabularies if name not in VOCABULARIES]
        if unknown:
            raise TasoError(f"no vocabulary is called {unknown[0]}; there are {', '.join(sorted(VOCABULARIES))}")


@dataclass
class Report:
    """What happened to the terms and candidates, by phase."""

    terms: dict[str, list[int]] = field(default_factory=dict[str, "list[int]"])
    """Terms evaluated at each level, by family."""
    candidates: int = 0
    outcomes: Counter[str] = field(default_factory=Counter[str])
    """What became of each direction of each candidate."""
    unproved: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """Candidates that pass every test but were not proved, with the prover's reason."""


@dataclass(frozen=True)
class Generation:
    """Rules that were proved, in the order in which they were accepted, and what happened."""

    rules: tuple[Substitution, ...]
    report: Report


def generate(config: Config, prove: Prover, progress: Progress | None = None) -> Generation:
    """Generates the substitutions of a configuration."""
    report = Report()
    told = progress or (lambda _phase, _done, _total: None)
    candidates = distinct(_candidates(config, report, told))
    report.candidates = len(candidates)
    loop = _Loop(Settler(prove, config.seed), Deriver(config.seed), report)
    for done, candidate in enumerate(candidates):
        told("prove", done, len(candidates))
        loop.take(candidate)
    return Generation(tuple(loop.without_redundant()), report)


def _directions(candidate: Candidate) -> Iterator[tuple[Sequence[Value], Sequence[Value]]]:
    yield candidate.left, candidate.right
    if not candidate.one_way:
        yield candidate.right, candidate.left


def _is_kept(derivation: Derivation, rule: Substitution) -> bool:
    """Derivable is not useless: a search from the source takes few steps, and does not pass through what costs more."""
    match derivation:
        case Derivation.NOT:
            return True
        case Derivation.BOTH_WAYS:
            return lowers_cost(rule)
        case Derivation.MANY_STEPS:
            return saves_contraction(rule) or recognises(rule)
        case Derivation.TWO_STEPS:
            return recognises(rule)
        case Derivation.ONE_STEP:
            return False


def _candidates(config: Config, report: Report, told: Progress) -> Iterator[Candidate]:
    families = [family for name in config.vocabularies for family in VOCABULARIES[name]]
    for done, family in enumerate(families):
        told("enumerate", done, len(families))
        if isinstance(family, Folding):
            yield from fold(family, config.seed)
        elif isinstance(family, Written):
            yield from written(family)
        else:
            found = enumerate_terms(family, config.seed, config.max_operators)
            report.terms[family.name] = found.counts
            yield from collect(found)


@dataclass
class _Loop:
    """Takes candidates in order; what is accepted prunes what comes later."""

    settler: Settler
    deriver: Deriver
    report: Report
    groups: list[list[Substitution]] = field(default_factory=list[list[Substitution]])
    """The accepted rules, those of a candidate together."""

    def take(self, candidate: Candidate) -> None:
        """Accepts the directions of a candidate that are true, proved, and not derivable or worth keeping even so."""
        directions: list[tuple[Sequence[Value], Sequence[Value], Derivation]] = []
        for source, target in _directions(candidate):
            baseline = self.settler.baseline(source, target)
            if isinstance(baseline, Refusal):
                self.report.outcomes[baseline.value] += 1
                continue
            if only_adds(baseline):
                self.report.outcomes["only adds"] += 1
                continue
            derivation = self.deriver.derive(baseline)
            if _is_kept(derivation, baseline):
                directions.append((source, target, derivation))
            else:
                self.report.outcomes[derivation.value] += 1
        proved = [self._prove(candidate, *direction) for direction in directions]
        accepted: list[Substitution] = []
        for rule in itertools.chain.from_iterable(proved):
            # The other direction is the same rule where the sides differ by a renaming.
            if not accepted or self.deriver.derive(rule) is not Derivation.ONE_STEP:
                self.deriver.add(rule)
                accepted.append(rule)
        if accepted:
            self.groups.append(accepted)
            for other in shifted(candidate):
                self.take(other)

    def without_redundant(self) -> list[Substitution]:
        """The accepted rules without those that rules accepted later made derivable."""
        going = self.deriver.redundant(self.groups, _is_kept)
        self.report.outcomes["derivable from rules accepted later"] += len(going)
        return [rule for group in self.groups for rule in group if rule not in going]

    def _prove(
        self, candidate: Candidate, source: Sequence[Value], target: Sequence[Value], derivation: Derivation
    ) -> list[Substitution]:
        proof = "index" if derivation is Derivation.NOT else "derived"
        proved = [replace(rule, proof=proof) for rule in self.settler.settle(source, target, candidate.data)]
        # What was proved may be more special than it looked, and an instance of a known rule after all.
        kept = [rule for rule in proved if not only_adds(rule) and _is_kept(self.deriver.derive(rule), rule)]
        self.report.outcomes[f"accepted, {proof}" if kept else "derivable once proved" if proved else "unproved"] += 1
        if not proved:
            self.report.unproved.append((candidate.key, self.settler.reason))
        return kept
