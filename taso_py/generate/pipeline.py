"""The generator's pipeline: enumerate, pair, test, generalize and prove, prune; small candidates first.

Tests and proofs depend on one candidate each and run on any number of workers; derivability depends on all rules
accepted before. Candidates are taken in batches: those that the accepted rules do not derive are proved together, then
accepted one after the other unless earlier ones of the batch derive them.

Invariant: every rule returned was proved by the given prover at the generality it is stated in. The result is a
function of the configuration and that prover, not of the number of workers or of interruptions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from taso_py.executors import HERE, Pool
from taso_py.generate.candidates import RuleCandidate, collect, distinct, shifted
from taso_py.generate.derive import Derivation, Deriver
from taso_py.generate.enumerate import enumerate_terms
from taso_py.generate.folding import fold
from taso_py.generate.journal import Journal
from taso_py.generate.sets import VOCABULARIES
from taso_py.generate.settle import Refusal, Settler
from taso_py.generate.vocabulary import Family, Folding, Written
from taso_py.generate.workers import Workers
from taso_py.generate.worth import lowers_cost, only_adds, recognizes, saves_contraction
from taso_py.generate.written import written_forms
from taso_py.ir.errors import TasoError
from taso_py.ir.node import Value
from taso_py.rules.substitution import Substitution
from taso_py.rules.text import read_rules, write_rule
from taso_py.rules.verdict import Prover

BATCH = 12
"""Candidates per batch; a constant, since the result depends on it."""

TESTS = 8
"""Tests sent to a worker together; each takes a millisecond or two."""

Progress: TypeAlias = Callable[[str, int, int], None]
"""Called with the phase, the amount done and the total."""


@dataclass(frozen=True)
class Config:
    """Configuration of a generation."""

    vocabularies: tuple[str, ...]
    """Vocabularies generated together: rules of some prune those of others."""
    max_operators: int | None = None
    """Most operators per side; by default the limit of each family."""
    seed: int = 0
    families: tuple[Family | Folding | Written, ...] = ()
    """Further families, e.g. with operators of one's own."""

    def __post_init__(self) -> None:
        unknown = [name for name in self.vocabularies if name not in VOCABULARIES]
        if unknown:
            raise TasoError(f"no vocabulary is called {unknown[0]}; there are {', '.join(sorted(VOCABULARIES))}")


@dataclass(frozen=True)
class Fate:
    """The outcome of one direction of a candidate."""

    candidate: str
    outcome: str
    detail: str = ""
    """Shapes at which it is false, the reason why it was not proved, or the identifiers of the accepted rules."""


@dataclass
class GenerationReport:
    """Statistics on terms and candidates, by phase."""

    terms: dict[str, list[int]] = field(default_factory=dict[str, "list[int]"])
    """Terms evaluated at each level, by family."""
    candidates: int = 0
    fates: list[Fate] = field(default_factory=list[Fate])

    @property
    def outcomes(self) -> Counter[str]:
        """Number of directions of candidates by outcome."""
        return Counter(fate.outcome for fate in self.fates)

    @property
    def unproved(self) -> list[Fate]:
        """Candidates that passed every test but were not proved, with the prover's reason."""
        return [fate for fate in self.fates if fate.outcome == "unproved"]


@dataclass(frozen=True)
class Generation:
    """The proved rules in the order in which they were accepted, and the report."""

    rules: tuple[Substitution, ...]
    report: GenerationReport


def generate(
    config: Config,
    prove: Prover,
    progress: Progress | None = None,
    *,
    pool: Pool = HERE,
    journal: Journal | None = None,
) -> Generation:
    """Generate the substitutions of a configuration.

    Args:
        config: the configuration.
        prove: the prover; for a pool of other processes, a function that these find by its name.
        progress: called as the generation proceeds.
        pool: the pool that runs tests and proofs.
        journal: remembers tests and proofs, for a run that continues where this one stops.
    """
    report = GenerationReport()
    notify = progress or (lambda _phase, _done, _total: None)
    workers = Workers(pool, prove, config.seed)
    candidates = distinct(_candidates(config, report, notify, workers))
    report.candidates = len(candidates)
    report.fates += [Fate(candidate.key, "gains nothing") for candidate in candidates if candidate.is_idle]
    candidates = [candidate for candidate in candidates if not candidate.is_idle]
    loop = _Loop(workers, Deriver(config.seed), journal or Journal(), report)
    loop.test(candidates, notify)
    for start in range(0, len(candidates), BATCH):
        notify("prove", start, len(candidates))
        loop.take(candidates[start : start + BATCH])
    notify("prune", 0, 1)
    return Generation(tuple(loop.without_redundant()), report)


def _candidates(
    config: Config, report: GenerationReport, notify: Progress, workers: Workers
) -> Iterator[RuleCandidate]:
    families = [*(family for name in config.vocabularies for family in VOCABULARIES[name]), *config.families]
    tasks = [(family, config) for family in families]
    for done, (family, (counts, found)) in enumerate(zip(families, workers.map(_enumerate, tasks), strict=True)):
        notify("enumerate", done + 1, len(families))
        if counts:
            report.terms[family.name] = counts
        yield from found


def _enumerate(
    _settler: Settler, task: tuple[Family | Folding | Written, Config]
) -> tuple[list[int], list[RuleCandidate]]:
    """Return the number of terms at each level and the candidates of a family."""
    family, config = task
    match family:
        case Folding():
            return [], [*fold(family, config.seed)]
        case Written():
            return [], [*written_forms(family)]
        case Family():
            found = enumerate_terms(family, config.seed, config.max_operators)
            return found.counts, distinct(collect(found))


@dataclass(frozen=True)
class _Direction:
    """A candidate read from left to right or back."""

    candidate: RuleCandidate
    is_forwards: bool

    @property
    def name(self) -> str:
        return f"{self.candidate.key}{'' if self.is_forwards else ', backwards'}"

    @property
    def wanted(self) -> dict[str, bool]:
        """The kinds of rules that are wanted, as arguments of :class:`Settler`."""
        return {"narrow": self.candidate.narrow, "faithful": self.candidate.faithful}

    @property
    def sides(self) -> tuple[Sequence[Value], Sequence[Value]]:
        left, right = self.candidate.left, self.candidate.right
        return (left, right) if self.is_forwards else (right, left)


def _directions(candidates: Iterable[RuleCandidate]) -> list[_Direction]:
    ways = [(candidate, way) for candidate in candidates if not candidate.is_idle for way in (True, False)]
    return [_Direction(candidate, way) for candidate, way in ways if way or not candidate.one_way]


def _test(settler: Settler, direction: _Direction) -> dict[str, str]:
    """Return the least general rule of a direction as text, or the reason why there is none."""
    candidate = direction.candidate
    baseline = settler.baseline(*direction.sides, domain=candidate.domain, **direction.wanted)
    if isinstance(baseline, Refusal):
        return {"outcome": baseline.value, "detail": settler.reason}
    return {"rule": write_rule(baseline)}


def _settle(settler: Settler, direction: _Direction) -> dict[str, Any]:
    """Return the proved rules of a direction as text, or the reason why the last proof failed."""
    candidate = direction.candidate
    proved = settler.settle(*direction.sides, candidate.data, domain=candidate.domain, **direction.wanted)
    return {"rules": [write_rule(rule) for rule in proved], "reason": settler.reason}


def _is_worth_keeping(derivation: Derivation, rule: Substitution, candidate: RuleCandidate) -> bool:
    """Return whether a rule is worth keeping although it may be derivable.

    A search from the source takes few steps and does not pass through graphs that cost more, so that a derivable rule
    may still help. But of large rules there are too many that save some steps, and every rule slows down each step of a
    search.
    """
    if candidate.is_large:
        return derivation is Derivation.NOT
    match derivation:
        case Derivation.NOT:
            return True
        case Derivation.BOTH_WAYS:
            return lowers_cost(rule)
        case Derivation.MANY_STEPS:
            return saves_contraction(rule) or recognizes(rule)
        case Derivation.TWO_STEPS:
            return recognizes(rule)
        case Derivation.ONE_STEP:
            return False


@dataclass
class _Loop:
    """Processes candidates in order; accepted rules prune later candidates."""

    workers: Workers
    deriver: Deriver
    journal: Journal
    report: GenerationReport
    groups: list[list[Substitution]] = field(default_factory=list[list[Substitution]])
    """The accepted rules, grouped by candidate."""

    def test(self, candidates: Sequence[RuleCandidate], notify: Progress) -> list[tuple[_Direction, dict[str, str]]]:
        """Test all directions of candidates at random sizes."""
        directions = _directions(candidates)
        named = {f"test {direction.name}": direction for direction in directions}
        found = self.journal.recall_all(
            named,
            lambda missing: self.workers.map(_test, missing, TESTS),
            lambda done, total: notify("test", done, total),
        )
        return [*zip(directions, found, strict=True)]

    def take(self, candidates: Sequence[RuleCandidate]) -> None:
        """Accept the directions of candidates that are true, proved, and not derivable or worth keeping even so."""
        tested = self.test(candidates, lambda _phase, _done, _total: None)
        open_ = [direction for direction, test in tested if self._may_be_new(direction, test)]
        named = {f"settle {direction.name}": direction for direction in open_}
        proofs = self.journal.recall_all(named, lambda missing: self.workers.map(_settle, missing))
        settled = dict(zip(open_, proofs, strict=True))
        accepted = [candidate for candidate in candidates if self._accept(candidate, settled)]
        others = [other for candidate in accepted for other in shifted(candidate)]
        if others:
            self.take(others)

    def _may_be_new(self, direction: _Direction, test: dict[str, str]) -> bool:
        if "rule" not in test:
            self._record(direction, test["outcome"], test["detail"])
            return False
        (baseline,) = read_rules(test["rule"])
        if only_adds(baseline):
            self._record(direction, "only adds")
            return False
        derivation = self._derive(baseline)
        if not _is_worth_keeping(derivation, baseline, direction.candidate):
            self._record(direction, derivation.value)
            return False
        return True

    def _accept(self, candidate: RuleCandidate, settled: dict[_Direction, dict[str, Any]]) -> bool:
        """Accept the proved rules of a candidate that are still worth keeping; return whether there are any."""
        kept: list[Substitution] = []
        for direction in _directions([candidate]):
            if direction in settled:
                kept += self._worth_keeping(direction, settled[direction])
        group: list[Substitution] = []
        for rule in kept:
            # The other direction is the same rule where the sides differ by a renaming.
            if not group or self._derive(rule) is not Derivation.ONE_STEP:
                self.deriver.add(rule)
                group.append(rule)
        if group:
            self.groups.append(group)
        return bool(group)

    def _worth_keeping(self, direction: _Direction, settled: dict[str, Any]) -> list[Substitution]:
        kept: list[Substitution] = []
        for rule in (rule for text in settled["rules"] for rule in read_rules(text)):
            # The proved rule may be less general than expected, and an instance of a known rule after all.
            derivation = self._derive(rule)
            if not only_adds(rule) and _is_worth_keeping(derivation, rule, direction.candidate):
                kept.append(replace(rule, proof="index" if derivation is Derivation.NOT else "derived"))
        if not settled["rules"]:
            self._record(direction, "unproved", settled["reason"])
        elif not kept:
            self._record(direction, "derivable once proved")
        else:
            self._record(direction, f"accepted, {kept[0].proof}", " ".join(rule.id for rule in kept))
        return kept

    def _derive(self, rule: Substitution) -> Derivation:
        name = f"derive {rule.id} after {self.deriver.rewrites}"
        return Derivation[self.journal.recall(name, lambda: self.deriver.derive(rule).name)]

    def _record(self, direction: _Direction, outcome: str, detail: str = "") -> None:
        self.report.fates.append(Fate(direction.name, outcome, detail))

    def without_redundant(self) -> list[Substitution]:
        """Return the accepted rules without instances of rules accepted later.

        Rules that are derivable from these in several steps stay: they are larger, and a search would take a detour.
        """
        going = self.deriver.redundant(self.groups)
        late = "an instance of a rule accepted later"
        self.report.fates += [Fate(name, late) for name in sorted(rule.id for rule in going)]
        return [rule for group in self.groups for rule in group if rule not in going]
