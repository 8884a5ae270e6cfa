"""Mutants of proved rules: ``python -m verify.audit.mutations --count 10000 --seed 0``.

A mutant is a proved rule with one thing changed: operands exchanged, an operator or an attribute replaced, a value
replaced by another of its type, a precondition dropped. Most are false, and false in ways that a mistaken prover would
not notice. Each is given to the prover and to the witness.

Invariant: the mutants depend on the rules and the seed only.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from random import Random

from rich.console import Console
from rich.progress import track

from taso_py.arguments import CommandParser
from taso_py.executors import HERE, Pool, add_options, open_pool
from taso_py.ir.errors import TasoError
from taso_py.ir.node import Node, Value, make
from taso_py.ir.operator import AttributeValue, Input, Operator
from taso_py.ir.sign import Sign
from taso_py.ir.size import Poly
from taso_py.ops.pooling import AvgPool2d, MaxPool2d
from taso_py.ops.table import DEFINED
from taso_py.rules.database import read_database
from taso_py.rules.substitution import Substitution, with_signs
from taso_py.rules.text import write_rule
from taso_py.rules.verdict import Outcome
from verify.limits import Refused
from verify.prover import prove
from verify.witness import TargetRefused, witness

TRIALS = 12
"""Random trials of each mutant."""
CHANGES = (1, 1, 1, 2, 2, 3)
"""Numbers of changes in a mutant, one of these drawn at random."""
_PLAIN = [op for op in DEFINED.values() if op.is_elementwise and not fields(op)]
_BINARY, _UNARY = ([op for op in _PLAIN if op.arity == (count, count)] for count in (2, 1))


@dataclass
class MutantTally:
    """Counts of mutants by the answers of prover and witness."""

    proved: int = 0
    """Proved, and not refuted."""
    false: int = 0
    """Refuted by PyTorch, in value or because it cannot compute the target; not proved."""
    undecided: int = 0
    """Neither proved nor refuted."""
    untried: int = 0
    """PyTorch could not compute it at any sizes."""
    wrong: list[str] = field(default_factory=list[str])
    """Mutants that are proved although PyTorch refutes them; any is a mistake of the prover."""

    @classmethod
    def of(cls, fates: Iterable[tuple[str, str]]) -> MutantTally:
        """Count the results of :func:`examine`."""
        tally = cls()
        for fate, text in fates:
            if fate == "wrong":
                tally.wrong.append(text)
            else:
                setattr(tally, fate, getattr(tally, fate) + 1)
        return tally

    @property
    def total(self) -> int:
        """Number of mutants."""
        return self.proved + self.false + self.undecided + self.untried + len(self.wrong)


def examine(case: tuple[Substitution, int]) -> tuple[str, str]:
    """Give a mutant, with a seed, to prover and witness; return its field of the tally, and why it is wrong."""
    mutant, seed = case
    is_proved = prove(mutant).outcome is Outcome.PROVED
    try:
        found = witness(mutant, seed, TRIALS)
    except TargetRefused as refusal:
        return ("wrong", f"proved, but {refusal}\n{write_rule(mutant)}") if is_proved else ("false", "")
    except Refused:
        return "untried", ""
    if is_proved:
        return ("proved", "") if found is None else ("wrong", f"proved, but differs {found}\n{write_rule(mutant)}")
    return ("undecided" if found is None else "false"), ""


def examine_all(seed: int, mutants: Iterable[Substitution], pool: Pool = HERE) -> Iterator[tuple[str, str]]:
    """Give mutants to prover and witness; any exception but a refusal is a mistake and passes through."""
    random = Random(seed)
    cases = ((mutant, random.randrange(1 << 20)) for mutant in mutants)
    return pool.map(examine, cases, chunk=8)


def mutants(rules: Sequence[Substitution], random: Random, count: int) -> Iterator[Substitution]:
    """Yield distinct mutants of the rules, of one change or several: single changes alone are too few."""
    seen: set[str] = set()
    while len(seen) < count:
        rule = mutant = random.choice(rules)
        try:
            for _ in range(random.choice(CHANGES)):
                mutant = mutant and _mutant(mutant, random)
        except (TasoError, TypeError, ValueError, ZeroDivisionError):
            continue
        if mutant is not None and mutant.id != rule.id and mutant.id not in seen:
            seen.add(mutant.id)
            yield mutant


def _mutant(rule: Substitution, random: Random) -> Substitution | None:
    """Return a rule with one node of the target changed, or with preconditions or signs dropped."""
    if rule.preconditions and random.random() < 0.3:
        return replace(rule, preconditions=())
    if rule.signs and random.random() < 0.3:
        return with_signs(rule, dict.fromkeys(rule.signs, Sign.ANY))
    inner = [node for node in rule.target.nodes if not isinstance(node.op, Input)]
    if not inner:
        return None
    chosen = random.choice(inner)

    def rebuild(node: Node, inputs: tuple[Value, ...]) -> Node:
        if node is chosen:
            return _mutate_node(node, inputs, rule, random)
        return node if inputs == node.inputs else make(node.op, inputs, node.token)

    return replace(rule, target=rule.target.map(rebuild))


def _mutate_node(node: Node, inputs: tuple[Value, ...], rule: Substitution, random: Random) -> Node:
    kind = random.randrange(4)
    if kind == 0 and len(inputs) > 1:
        shuffled = list(inputs)
        random.shuffle(shuffled)
        return make(node.op, shuffled)
    if kind == 1:
        others = [value for n in (*rule.source.nodes, *rule.target.nodes) for value in n.outputs]
        place = random.randrange(len(inputs)) if inputs else 0
        same = [value for value in others if inputs and value.type == inputs[place].type and value not in inputs]
        if same:
            return make(node.op, [*inputs[:place], random.choice(same), *inputs[place + 1 :]])
    if kind == 2:
        for family in (_BINARY, _UNARY):
            if type(node.op) in family:
                return make(random.choice(family)(), inputs)
        if isinstance(node.op, AvgPool2d | MaxPool2d):
            other = MaxPool2d if isinstance(node.op, AvgPool2d) else AvgPool2d
            return make(other(node.op.kernel, node.op.stride, node.op.padding), inputs)
    return make(_with_other_attribute(node.op, random), inputs)


def _with_other_attribute(op: Operator, random: Random) -> Operator:
    if not op.attributes:
        return op
    name, value = random.choice(op.attributes)
    if name in ("eps", "scale", "value") and not isinstance(value, float):
        return replace(op, **{name: 0.25})  # a symbol for a real number: nothing is computed from it
    return replace(op, **{name: _perturbed(value, random)})


def _perturbed(value: AttributeValue, random: Random) -> AttributeValue:
    match value:
        case bool():
            return not value
        case tuple():
            place = random.randrange(len(value))
            if random.random() < 0.3:
                return tuple(reversed(value))
            return (*value[:place], _perturbed(value[place], random), *value[place + 1 :])
        case int() | float():
            return value + random.choice((-2, -1, 1, 2))
        case None | str():
            return value
        case Poly():
            return value + random.choice((-1, 1))
        case _:
            return value


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; exit status 0 if no false mutant is proved."""
    parser = CommandParser(prog="python -m verify.audit.mutations", description="Mutants of proved rules.")
    parser.add_argument("paths", metavar="PATH", type=Path, nargs="*", help="rules (default: the shipped database)")
    parser.add_argument("--count", metavar="N", type=int, default=1000, help="mutants (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="(%(default)s)")
    add_options(parser)
    parsed = parser.parse_args(arguments)
    try:
        stated = [rule for path in parsed.paths or [None] for rule in read_database(path)]
        with open_pool(parsed.jobs, parsed.executor) as pool:
            rules = [rule for rule in stated if prove(rule).outcome is Outcome.PROVED]
            chosen = mutants(rules, Random(parsed.seed), parsed.count)
            fates = examine_all(parsed.seed, chosen, pool)
            tally = MutantTally.of(
                track(fates, description="mutants", total=parsed.count, console=Console(stderr=True))
            )
    except TasoError as error:
        sys.stderr.write(f"verify.audit.mutations: error: {error}\n")
        return 2
    for text in tally.wrong:
        sys.stdout.write(f"{text}\n\n")
    sys.stdout.write(
        f"{tally.total} mutants of {len(rules)} proved rules, seed {parsed.seed}: "
        f"{tally.false} refuted and not proved, {tally.proved} proved and not refuted, {tally.undecided} neither, "
        f"{tally.untried} could not be tried, {len(tally.wrong)} proved although refuted\n"
    )
    return 1 if tally.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
