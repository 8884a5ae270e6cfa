"""Derivation: what follows is recognised, what does not is not."""

from __future__ import annotations

import pytest

from taso_py.generate.derive import Derivation, Deriver
from taso_py.generate.egraph import EgglogRule
from taso_py.generate.worth import lowers_cost, only_adds, saves_contraction
from taso_py.rules.substitution import Substitution
from taso_py.rules.text import read_rules

pytest.importorskip("egglog")


def _rules(*texts: str) -> list[Substitution]:
    return read_rules("\n".join(f"rule {text}" for text in texts))


SPLIT = "a: float[..G,N], b: float[..G,M] source relu(concat(a, b){axis=-1}) target concat(relu(a), relu(b)){axis=-1}"
NESTED = (
    "a: float[N], b: float[M], c: float[P] source relu(concat(concat(a, b){axis=-1}, c){axis=-1}) "
    "target concat(concat(relu(a), relu(b)){axis=-1}, relu(c)){axis=-1}"
)
DISTRIBUTE = "a: float[..G], b: float[..G], c: float[..G] source mul(a, add(b, c)) target add(mul(a, b), mul(a, c))"
MERGE = (
    "a: float[M,K], b: float[N,K], c: float[P,K] source linear(a, b), linear(a, c) "
    "target t0 = linear(a, concat(b, c){axis=-2}); "
    "slice(t0){axis=-1, start=0, stop=N}, slice(t0){axis=-1, start=N, stop=N+P}"
)


def test_instances_steps_and_neither() -> None:
    split, nested, merge = _rules(SPLIT, NESTED, MERGE)
    deriver = Deriver(0)
    assert deriver.derive(split) is Derivation.NOT
    deriver.add(split)
    assert deriver.derive(split) is Derivation.ONE_STEP
    assert deriver.derive(nested) is Derivation.TWO_STEPS
    assert deriver.derive(split.reversed) is Derivation.BOTH_WAYS
    assert deriver.derive(merge) is Derivation.NOT
    deriver.add(merge)
    assert deriver.derive(merge) is Derivation.ONE_STEP


def test_the_order_of_commutative_operands_costs_no_step() -> None:
    distribute, other = _rules(
        DISTRIBUTE, "a: float[N], b: float[N], c: float[N] source mul(add(c, a), b) target add(mul(c, b), mul(b, a))"
    )
    deriver = Deriver(0)
    deriver.add(distribute)
    assert deriver.derive(other) is Derivation.ONE_STEP


def test_a_rule_does_not_match_where_the_types_do_not_fit() -> None:
    square, general = _rules(
        "a: float[N,N] source permute(permute(a){order=[-1,-2]}){order=[-1,-2]} target a",
        "a: float[N,M] source permute(permute(a){order=[-1,-2]}){order=[-1,-2]} target a",
    )
    deriver = Deriver(0)
    deriver.add(square)
    assert deriver.derive(general) is Derivation.NOT
    deriver.add(general)
    assert deriver.derive(square) is Derivation.ONE_STEP


def test_a_group_stands_for_several_axes() -> None:
    rows, vectors = _rules(
        "a: float[..A], b: float[..A], c: float[..A] source add(add(a, b), c) target add(add(a, c), b)",
        "a: float[..A,B], b: float[..A,B], c: float[B] source add(add(a, b), c) target add(add(a, c), b)",
    )
    deriver = Deriver(0)
    deriver.add(vectors)
    # Of one axis the first would be an instance of the second, whose group may be empty.
    assert deriver.derive(rows) is Derivation.NOT
    deriver.add(rows)
    assert deriver.derive(rows) is Derivation.ONE_STEP


def test_a_derivation_leaves_nothing_behind() -> None:
    split, merge = _rules(SPLIT, MERGE)
    deriver = Deriver(0)
    deriver.add(split)
    assert deriver.derive(split) is Derivation.ONE_STEP
    assert deriver.derive(merge) is Derivation.NOT
    assert deriver.derive(split, {EgglogRule().rewrite(split)}) is Derivation.NOT


def test_what_later_rules_derive_is_redundant() -> None:
    special, general = _rules(
        "a: float[N] source relu(concat(a, a){axis=-1}) target t0 = relu(a); concat(t0, t0){axis=-1}", SPLIT
    )
    deriver = Deriver(0)
    for rule in (special, general):
        deriver.add(rule)
    gone = deriver.redundant([[special], [general]])
    assert gone == {special}


def test_worth() -> None:
    merge, split, grow = _rules(MERGE, SPLIT, "a: float[N] source relu(a) target relu(relu(a))")
    assert saves_contraction(merge)
    assert lowers_cost(merge)
    assert not saves_contraction(split)
    assert lowers_cost(split.reversed)
    assert not lowers_cost(split)
    assert only_adds(grow)
    assert not only_adds(merge)
