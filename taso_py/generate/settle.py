"""Search for the most general rules of a candidate that pass random instances and that a prover accepts.

Invariant: a rule that comes out was proved as it is stated, with the numerics class that the prover gave.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from taso_py.generate.generalize import Generality, Number, initial_generalities, lift, numbers
from taso_py.generate.retest import RetestOutcome, examine, has_generic_instance, retest
from taso_py.ir.graph import topological
from taso_py.ir.node import Value
from taso_py.ir.operator import Input
from taso_py.ir.sign import Sign
from taso_py.ops.evaluate import Domain
from taso_py.rules.substitution import Substitution, canonical, with_signs
from taso_py.rules.verdict import Outcome, Prover

TRIALS = 2
"""Random instances before a proof: the candidate has passed more, and most wrong generalities fail the first."""


class Refusal(enum.Enum):
    """The reason why a direction of a candidate is not a rule."""

    ILL_TYPED = "does not hold for general sizes"
    FALSE = "false at random sizes"


@dataclass
class Settler:
    """Tests and proves rules; remembers why the last test or proof failed."""

    prove: Prover
    seed: int
    reason: str = field(default="", init=False)
    _domain: Domain = field(default=Domain.EXACT, init=False)
    _tried: dict[str, Substitution | None] = field(default_factory=dict[str, "Substitution | None"], init=False)
    """The rules of this direction that were tried, each with the proved rule or None."""

    def baseline(
        self,
        source: Sequence[Value],
        target: Sequence[Value],
        *,
        narrow: bool = False,
        domain: Domain = Domain.EXACT,
        faithful: bool = False,
    ) -> Substitution | Refusal:
        """Return the least general rule: symbolic sizes, every attribute fixed that may be, slice bounds if needed."""
        refusal, self.reason = Refusal.ILL_TYPED, ""
        for generality in initial_generalities(numbers(source, target), narrow=narrow, faithful=faithful):
            if any(number[0] != "slice" for number in numbers(source, target)) and not generality.fixed:
                continue
            for rule in lift(source, target, generality):
                refusal = Refusal.FALSE
                trial, self.reason = examine(rule, self.seed, domain=domain)
                if trial is RetestOutcome.PASSED and has_generic_instance(rule, self.seed):
                    return rule
        return refusal

    def settle(
        self,
        source: Sequence[Value],
        target: Sequence[Value],
        data: frozenset[str],
        *,
        narrow: bool = False,
        domain: Domain = Domain.EXACT,
        faithful: bool = False,
    ) -> list[Substitution]:
        """Return the proved rules of one direction: with axis groups where possible, else without; empty if none is.

        Args:
            source: values of concrete shapes.
            target: values that are to replace them.
            data: the variables that are data; a group may lead these, or all variables.
            narrow: whether rules of slices and windows at particular places only are wanted too.
            domain: the numbers on which the sides are compared.
            faithful: whether the sides themselves have to be an instance.
        """
        self.reason, self._domain = "", domain
        self._tried = {}
        for start in initial_generalities(numbers(source, target), narrow=narrow, faithful=faithful):
            plain = self._first_proved(source, target, start)
            if plain is not None:
                generality, plain = self._generalized(source, target, start, plain)
                found = [*self._with_axis_groups(source, target, generality, data)] or [plain]
                return [*map(self._with_weaker_signs, found)]
        return []

    def _with_weaker_signs(self, rule: Substitution) -> Substitution:
        """Return a rule of which as little is demanded of each variable's sign as the prover needs."""
        for name, demanded in rule.signs.items():
            for sign in range(demanded):
                weaker = with_signs(rule, {name: Sign(sign)})
                verdict = self.prove(weaker)
                if verdict.outcome is Outcome.PROVED and verdict.numerics is not None:
                    rule = canonical(replace(weaker, numerics=verdict.numerics))
                    break
        return rule

    def _generalized(
        self, source: Sequence[Value], target: Sequence[Value], generality: Generality, rule: Substitution
    ) -> tuple[Generality, Substitution]:
        """Return a more general rule: each fixed number becomes a symbol where the prover still proves it.

        Two operators may have to change together, a pool's stride and a convolution's.
        """
        for freed in [
            *(frozenset({number}) for number in sorted(generality.fixed)),
            *_shared_numbers(generality.fixed),
        ]:
            if not freed <= generality.fixed:
                continue
            freer = replace(generality, fixed=generality.fixed - freed)
            found = self._first_proved(source, target, freer)
            if found is not None:
                generality, rule = freer, found
        return generality, rule

    def _with_axis_groups(
        self, source: Sequence[Value], target: Sequence[Value], generality: Generality, data: frozenset[str]
    ) -> Iterator[Substitution]:
        nodes = topological(value.node for value in (*source, *target))
        every = {node.op.key: node.op.type.rank for node in nodes if isinstance(node.op, Input)}
        for grouped in dict.fromkeys((frozenset(every) & data, frozenset(every))):
            most = min((every[name] for name in grouped), default=-1)
            for replaced in range(most, -1, -1):
                rule = self._first_proved(source, target, replace(generality, grouped=grouped, replaced=replaced))
                if rule is not None:
                    yield rule
                    break

    def _first_proved(
        self, source: Sequence[Value], target: Sequence[Value], generality: Generality
    ) -> Substitution | None:
        for rule in lift(source, target, generality):
            if rule.id in self._tried:
                if (known := self._tried[rule.id]) is not None:
                    return known
                continue
            self._tried[rule.id] = None
            if retest(rule, self.seed, TRIALS, self._domain) is RetestOutcome.PASSED and has_generic_instance(
                rule, self.seed
            ):
                verdict = self.prove(rule)
                if verdict.outcome is Outcome.PROVED and verdict.numerics is not None:
                    self._tried[rule.id] = replace(rule, numerics=verdict.numerics)
                    return self._tried[rule.id]
                self.reason = verdict.reason
        return None


def _shared_numbers(found: Iterable[Number]) -> Iterator[frozenset[Number]]:
    """Yield the sets of equal numbers in attributes of the same name that several operators have."""
    places: dict[tuple[str, int | float], set[Number]] = {}
    for kind, value in sorted(found):
        places.setdefault((kind.rpartition(".")[2], value), set()).add((kind, value))
    yield from (frozenset(numbers) for numbers in places.values() if len(numbers) > 1)
