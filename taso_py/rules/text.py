"""Rules as text: writing and reading.

    rule r3f2a91c0d4e5
      a: float[M,K], b: float[N,K], c: float[P,K]
      source linear(a, b), linear(a, c)
      target t0 = linear(a, concat(b, c){axis=-2}); slice(t0){axis=-1, start=0, stop=N}, slice(t0){axis=-1, ...}
      where N-1 >= 0
      numerics REORDER
      proof index

The identifier may be left out when a rule is written by a person; where it is given it must fit the content.

Invariant: ``read_rules(write_rules(rules)) == rules``; reading executes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from taso_py.ir.errors import GraphTextError, TasoError
from taso_py.ir.graph import Graph
from taso_py.ir.operator import Input
from taso_py.ir.parse import GraphParser
from taso_py.ops.scalar import Condition
from taso_py.ops.table import OPERATORS
from taso_py.rules.substitution import Substitution
from taso_py.rules.verdict import Numerics


def write_rule(rule: Substitution) -> str:
    """Return one rule as text, without a trailing newline."""
    proof = [f"  proof {rule.proof}"] if rule.proof else []
    return "\n".join([f"rule {rule.id}", rule.statement, f"  numerics {rule.numerics.name}", *proof])


def write_rules(rules: Iterable[Substitution]) -> str:
    """Return rules as text, separated by empty lines."""
    return "\n\n".join(map(write_rule, rules)) + "\n"


def read_rules(text: str) -> list[Substitution]:
    """Parse every rule of a text.

    Raises:
        GraphTextError: the text does not follow the grammar, a rule is not well-formed, or an identifier does not fit.
    """
    parser = _RuleParser(text, OPERATORS)
    rules: list[Substitution] = []
    try:
        while parser.peek().kind != "end":
            rules.append(parser.rule())
    except RecursionError as error:
        raise GraphTextError("a rule is nested too deeply; give names to parts of it") from error
    return rules


class _RuleParser(GraphParser):
    def rule(self) -> Substitution:
        self.expect("rule")
        stated = None if self.peek(1).text == ":" else self.expect("", kind="name")
        variables = [self.variable()]
        while self.accept(","):
            variables.append(self.variable())
        names = {node.op.key: node.value for node in variables if isinstance(node.op, Input)}
        self.expect("source")
        source = Graph(tuple(variables), tuple(self.bindings_and_values(names)))
        self.expect("target")
        target = Graph(tuple(variables), tuple(self.bindings_and_values(names)))
        conditions = self._conditions() if self.accept("where") else []
        numerics = self._numerics() if self.accept("numerics") else Numerics.EXACT
        proof = self.expect("", kind="name") if self.accept("proof") else ""
        try:
            rule = Substitution(source, target, preconditions=tuple(conditions), numerics=numerics, proof=proof)
        except TasoError as error:
            self.fail(f"rule {stated or ''}: {error}")
        if stated is not None and stated != rule.id:
            self.fail(f"rule {stated}: its text has the identifier {rule.id}; it was changed after it was proved")
        return rule

    def _numerics(self) -> Numerics:
        name = self.expect("", kind="name")
        if name not in Numerics.__members__:
            self.fail(f"no numerics class is called {name}; there are {', '.join(Numerics.__members__)}")
        return Numerics[name]

    def _conditions(self) -> list[Condition]:
        conditions = [self._condition()]
        while self.accept(","):
            conditions.append(self._condition())
        return conditions

    def _condition(self) -> Condition:
        value = self.size()
        is_equality = self.accept("==")
        if not is_equality:
            self.expect(">=")
        return Condition(value - self.size(), is_equality)
