"""Mutants of true rules: whatever PyTorch shows to be false must not be proved, and nothing may raise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random

import pytest

from taso_py.ir.errors import TasoError
from taso_py.ir.node import Node, Value, make
from taso_py.ir.operator import AttributeValue, Input, Operator
from taso_py.ir.size import Poly
from taso_py.ops.elementwise import Add, Div, Exp, Mul, Relu, Sigmoid, Sub, Tanh
from taso_py.ops.movement import Contiguous
from taso_py.ops.pooling import AvgPool2d, MaxPool2d
from taso_py.rules.substitution import Substitution
from taso_py.rules.text import write_rule
from taso_py.rules.verdict import Outcome
from verify import prove
from verify.limits import Refused
from verify.witness import witness

BINARY: Sequence[type[Operator]] = (Add, Mul, Sub, Div)
UNARY: Sequence[type[Operator]] = (Relu, Sigmoid, Tanh, Exp, Contiguous)
SEED = 20190904


def mutants(rules: Sequence[Substitution], random: Random, count: int) -> Iterator[Substitution]:
    seen: set[str] = set()
    while len(seen) < count:
        rule = random.choice(rules)
        try:
            mutant = _mutant(rule, random)
        except (TasoError, TypeError, ValueError, ZeroDivisionError):
            continue
        if mutant is not None and mutant.id != rule.id and mutant.id not in seen:
            seen.add(mutant.id)
            yield mutant


def _mutant(rule: Substitution, random: Random) -> Substitution | None:
    """One node of the target changed, or an output replaced by a wrong one, or the preconditions dropped."""
    if rule.preconditions and random.random() < 0.3:
        return replace(rule, preconditions=())
    inner = [node for node in rule.target.nodes if not isinstance(node.op, Input)]
    if not inner:
        return None
    chosen = random.choice(inner)

    def rebuild(node: Node, inputs: tuple[Value, ...]) -> Node:
        if node is chosen:
            return _changed(node, inputs, rule, random)
        return node if inputs == node.inputs else make(node.op, inputs, node.token)

    return replace(rule, target=rule.target.map(rebuild))


def _changed(node: Node, inputs: tuple[Value, ...], rule: Substitution, random: Random) -> Node:
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
        for family in (BINARY, UNARY):
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
    return replace(op, **{name: _nudged(value, random)})


def _nudged(value: AttributeValue, random: Random) -> AttributeValue:
    match value:
        case bool():
            return not value
        case tuple():
            place = random.randrange(len(value))
            if random.random() < 0.3:
                return tuple(reversed(value))
            return (*value[:place], _nudged(value[place], random), *value[place + 1 :])
        case int() | float():
            return value + random.choice((-2, -1, 1, 2))
        case None | str():
            return value
        case Poly():
            return value + random.choice((-1, 1))
        case _:
            return value


def examine(rules: Sequence[Substitution], seed: int, count: int) -> dict[str, int]:
    """How many mutants were proved, refuted and undecided; fails on a proof that the witness contradicts."""
    random = Random(seed)
    counts = {"proved": 0, "false": 0, "undecided": 0, "untried": 0}
    for mutant in mutants(rules, random, count):
        verdict = prove(mutant)
        assert verdict.outcome in (Outcome.PROVED, Outcome.UNKNOWN)
        try:
            found = witness(mutant, seed=random.randrange(1 << 20), trials=12)
        except Refused:
            counts["untried"] += 1
            continue
        if verdict.outcome is Outcome.PROVED:
            assert found is None, f"seed {seed}: proved but {found}\n{write_rule(mutant)}"
            counts["proved"] += 1
        else:
            counts["undecided" if found is None else "false"] += 1
    return counts


def test_no_false_mutant_is_proved(true_rules: dict[str, Substitution]) -> None:
    counts = examine(list(true_rules.values()), SEED, 300)
    assert counts["false"] > 100, counts
    assert counts["undecided"] < 0.1 * sum(counts.values()), counts


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_no_false_mutant_is_proved_at_length(true_rules: dict[str, Substitution], seed: int) -> None:
    examine(list(true_rules.values()), seed, 1000)
