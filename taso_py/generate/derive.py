"""Derivability of a rule from accepted rules: a typed e-graph over one generic instance of it.

The e-graph (egglog, Zhang et al. 2023) holds the source at sizes that are pairwise distinct, so that nothing fits by
accident; accepted rules are its rewrites. A rule is derivable in n steps when n rounds of all rewrites make the target
equal to the source; reordering commutative operands costs no round.

Limits: the number of rounds; one instance; rules that bind a size only inside an expression are not used as rewrites. A
rule that is derivable here and not in general would be dropped wrongly, which loses a rule and never makes one false.

Invariant: rewrites are rules that were proved.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from taso_py.generate.egraph import HEADER, SHAPES, TABLES, EgglogRule, arity, declaration, expression, insertion
from taso_py.generate.retest import generic_instance
from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, Value
from taso_py.ir.operator import Input
from taso_py.rules.substitution import Substitution

ROUNDS = 3
"""Most rounds of rewriting from the source."""
ROUNDS_FROM_BOTH = 2
"""Most further rounds once the target is in the e-graph as well."""
MOST_ENTRIES = 800
"""Most operators in the e-graph at which another round is begun: one round may multiply them by a hundred."""


class Derivation(enum.Enum):
    """How a rule follows from the accepted ones."""

    NOT = "not derivable"
    BOTH_WAYS = "derivable from both sides"
    """Equal once both sides are in the e-graph; a search that starts at the source does not reach the target."""
    MANY_STEPS = "derivable in many steps"
    TWO_STEPS = "derivable in two steps"
    ONE_STEP = "an instance of a rule"


@dataclass(frozen=True)
class _Rewrite:
    """An accepted rule as a rewrite of the e-graph, in a ruleset of its own."""

    ruleset: str
    reads: frozenset[str]
    """Constructors in its source."""
    makes: frozenset[str]
    """Constructors in its target."""
    grows: bool
    """True if it joins several outputs, whose combinations may be quadratically many."""


class Deriver:
    """An e-graph with the accepted rules as rewrites."""

    def __init__(self, seed: int) -> None:
        # Only generation needs egglog, which is an optional dependency.
        from egglog import bindings

        self._bindings, self._graph, self._seed = bindings, bindings.EGraph(), seed
        self._declared: set[str] = set()
        self._rewrites: dict[str, _Rewrite] = {}
        self._combined: dict[tuple[str, ...], str] = {}
        self._run(f"{HEADER}(ruleset complete)(ruleset forget){SHAPES}")
        self._run("".join(_deletion_rule(name, operands) for name, operands in TABLES.items()))

    def _run(self, program: str) -> list[object]:
        return list(self._graph.run_program(*self._graph.parse_program(program)))

    def _holds(self, facts: str) -> bool:
        try:
            self._run(f"(check {facts})")
        except self._bindings.EggSmolError:
            return False
        return True

    def _declare(self, rule: Substitution) -> None:
        for node in (*rule.source.nodes, *rule.target.nodes):
            if not isinstance(node.op, Input):
                self._declare_operator(node)

    def _declare_operator(self, node: Node) -> None:
        name, command = declaration(node)
        if name not in self._declared:
            self._declared.add(name)
            self._run(command + _deletion_rule(name, arity(node)))
            if node.op.commutative:
                self._run(f"(rule ((= e ({name} a b))) ((union e ({name} b a))) :ruleset complete)")

    def add(self, rule: Substitution) -> bool:
        """Add a proved rule as a rewrite; False if it binds a size inside an expression only."""
        self._declare(rule)
        text = EgglogRule().rewrite(rule)
        if text and text not in self._rewrites:
            name = f"rule{len(self._rewrites)}"
            reads, makes = _constructors(rule.source), _constructors(rule.target)
            self._rewrites[text] = _Rewrite(name, reads, makes, len(rule.source.outputs) > 1)
            self._run(f"(ruleset {name})(rule {text} :ruleset {name})")
        return bool(text)

    @property
    def rewrites(self) -> int:
        """Number of rewrites; derivability depends on them alone."""
        return len(self._rewrites)

    def redundant(self, groups: Sequence[Sequence[Substitution]]) -> set[Substitution]:
        """Return the added rules that are instances of others and can go; the last groups go first.

        A group is a rule and its reverse, which are left out together when either is derived.
        """
        own = {rule: EgglogRule().rewrite(rule) for group in groups for rule in group}
        gone: set[Substitution] = set()
        for group in reversed(groups):
            without = {own[rule] for rule in (*gone, *group)}
            gone.update(rule for rule in group if self.derive(rule, without, most=1) is Derivation.ONE_STEP)
        return gone

    def derive(self, rule: Substitution, without: Collection[str] = (), most: int = ROUNDS) -> Derivation:
        """Return how the accepted rules derive this one.

        Args:
            rule: the rule to derive.
            without: the rewrites of rules that are left out.
            most: rounds from the source; from both sides only after the usual number of these.
        """
        instance = generic_instance(rule, self._seed)
        if instance is None:
            return Derivation.NOT
        self._declare(instance)
        source, target = instance.source, instance.target
        facts = _equal(source.outputs, target.outputs)
        self._insert(source)
        rounds = self._rounds_until(facts, most, self._relevant(_constructors(source), without))
        found = _BY_ROUNDS[rounds] if rounds else Derivation.NOT
        if not rounds and most == ROUNDS:
            self._insert(target)
            relevant = self._relevant(_constructors(source) | _constructors(target), without)
            if self._rounds_until(facts, ROUNDS_FROM_BOTH, relevant):
                found = Derivation.BOTH_WAYS
        # Far quicker than to push and pop the e-graph, which copies all rewrites.
        self._run("(run forget 1)")
        return found

    def _insert(self, graph: Graph) -> None:
        self._run(f"{insertion(graph.nodes)}(run-schedule {_COMPLETE})")

    def _relevant(self, reached: frozenset[str], without: Collection[str]) -> list[str]:
        """Return the rulesets of a round: all rewrites that may apply, combined, then growing ones one by one."""
        waiting = [rewrite for text, rewrite in self._rewrites.items() if text not in without]
        chosen: list[_Rewrite] = []
        while ready := [rewrite for rewrite in waiting if rewrite.reads <= reached]:
            chosen += ready
            waiting = [rewrite for rewrite in waiting if not rewrite.reads <= reached]
            reached = reached.union(*(rewrite.makes for rewrite in ready))
        plain = tuple(sorted(rewrite.ruleset for rewrite in chosen if not rewrite.grows))
        return [self._combine(plain)] * bool(plain) + sorted(rewrite.ruleset for rewrite in chosen if rewrite.grows)

    def _combine(self, names: tuple[str, ...]) -> str:
        if names not in self._combined:
            self._combined[names] = f"combined{len(self._combined)}"
            self._run(f"(unstable-combined-ruleset {self._combined[names]} {' '.join(names)})")
        return self._combined[names]

    def _rounds_until(self, facts: str, most: int, rulesets: Sequence[str]) -> int:
        """Return the number of rounds after which the facts hold; 0 if they do not within the limits."""
        for done in range(1, most + 1) if rulesets else ():
            for ruleset in rulesets:
                if self._entries() > MOST_ENTRIES:
                    return done if self._holds(facts) else 0
                self._run(f"(run-schedule (run {ruleset}) {_COMPLETE})")
            if self._holds(facts):
                return done
        return 0

    def _entries(self) -> int:
        (report,) = self._run("(print-size)")
        sizes: list[tuple[str, int]] = getattr(report, "sizes", [])
        return sum(count for name, count in sizes if name not in TABLES)


_COMPLETE = "(saturate (run complete))"


def _equal(left: Sequence[Value], right: Sequence[Value]) -> str:
    """Return the facts that values at concrete sizes are equal."""
    return " ".join(f"(= {expression(a)} {expression(b)})" for a, b in zip(left, right, strict=True))


def _deletion_rule(name: str, operands: int) -> str:
    """Return the rule that deletes all entries of a constructor or function."""
    entry = f"({' '.join([name, *(f'x{place}' for place in range(operands))])})"
    return f"(rule ((= e {entry})) ((delete {entry})) :ruleset forget)"


def _constructors(graph: Graph) -> frozenset[str]:
    return frozenset(declaration(node)[0] for node in graph.nodes if not isinstance(node.op, Input))


_BY_ROUNDS = {1: Derivation.ONE_STEP, 2: Derivation.TWO_STEPS, 3: Derivation.MANY_STEPS}
