"""Truth values are guards: one integer a statement, opposites of each other, decided by signs where all laws hold."""

from __future__ import annotations

from fractions import Fraction

import pytest

from taso_py.ir.size import symbol
from taso_py.ops.scalar import Read, Relation
from taso_py.rules.text import read_rules
from taso_py.rules.verdict import Outcome
from verify import prove
from verify.context import Context
from verify.laws import Laws, ProofLevel
from verify.signs import Assumption, Signs
from verify.terms import Call, Sum, constant, product_of, term_key
from verify.truth import Truths, negation

X, Y = (product_of(Read(name, (symbol("@0"),))) for name in "xy")
C, D = (Read(name, (symbol("@0"),)) for name in "cd")
BOUND = Read("c", (symbol("~0001"),))
DIFFERENCE = (*X, Y[0]._replace(coefficient=Fraction(-1)))


def truths(level: ProofLevel = ProofLevel.ALGEBRA, *assumed: Assumption) -> Truths:
    signs = Signs(assumed)
    return Truths(Laws(Context({}, ()), level, signs), signs)


def compared(relation: Relation, left: Sum, right: Sum, *assumed: Assumption) -> Sum:
    return tuple(truths(ProofLevel.ALGEBRA, *assumed).compared(relation, left, right))


def test_a_statement_has_one_guard() -> None:
    made = truths()
    assert made.of(C) == made.of(C) != made.of(D)
    assert list(made.statements.values()) == [C, D]
    assert negation(made.of(C)) != made.of(C) == negation(negation(made.of(C)))


def test_a_statement_about_a_bound_index_is_a_factor() -> None:
    made = truths()
    assert made.of(BOUND) == product_of(BOUND)
    assert made.statements == {}
    assert negation(negation(made.of(BOUND))) == made.of(BOUND)


def test_numbers_are_compared() -> None:
    one, two = constant(1), constant(2)
    for relation, expected in zip(Relation, ([0, 0, 1], [0, 1, 1], [0, 1, 0]), strict=True):
        pairs = [(one, two), (two, two), (two, one)]
        assert [compared(relation, *pair) for pair in pairs] == [constant(truth) for truth in expected]


@pytest.mark.parametrize(
    ("is_positive", "greater", "at_least"), [(True, (1, 0), (1, 0)), (False, (0, None), (None, 1))]
)
def test_a_sign_decides_comparisons(is_positive: bool, greater: tuple[int | None, ...], at_least: object) -> None:
    """With a tie both ``x >= y`` and ``y >= x`` hold, so of what is not greater one of them is open."""
    assumed = Assumption(DIFFERENCE, is_positive)
    found = [
        tuple(int(truth != ()) if truth in ((), constant(1)) else None for truth in pair)
        for pair in (
            [compared(relation, *sides, assumed) for sides in ((X, Y), (Y, X))]
            for relation in (Relation.GREATER, Relation.GREATER_EQUAL)
        )
    ]
    assert found == [greater, at_least]


@pytest.mark.parametrize("level", [ProofLevel.MOVEMENT, ProofLevel.TERMS])
def test_below_the_highest_level_a_comparison_is_equal_to_itself_only(level: ProofLevel) -> None:
    made = truths(level)
    found = {
        (relation, sides): made.compared(relation, *sides)
        for relation in Relation
        for sides in ((X, Y), (Y, X), (X, X), (constant(1), constant(2)))
    }
    assert found.pop((Relation.EQUAL, (Y, X))) == found[Relation.EQUAL, (X, Y)]
    everything = [tuple(truth) for truth in found.values()]
    opposites = [negation(truth) for truth in everything]
    assert len({tuple(map(term_key, truth)) for truth in (*everything, *opposites)}) == 2 * len(found)
    assert () not in everything
    assert constant(1) not in everything


def test_a_choice_by_a_bound_index_is_a_function_unless_nothing_is_chosen() -> None:
    made, truth = truths(), product_of(BOUND)
    assert made.choice(truth, X, Y) == product_of(Call("choice", (truth, X, Y)))
    assert made.choice(truth, X, X) == X
    assert made.choice(truth, constant(1), ()) == truth
    assert made.choice(truth, (), constant(1)) == negation(truth)


ZERO, ONE = (f"constant{{value={value}, dtype=float}}" for value in ("0.0", "1.0"))
UNDEFINED = {
    "a quotient that was needed under a condition": f"""rule c: bool[A], x: float[A], y: float[A]
  source where(c, div(y, x), {ZERO})
  target mul(div(y, x), where(c, {ONE}, {ZERO}))""",
    "a quotient that was needed for some elements": """rule c: bool[A,B], x: float[A,1], y: float[A,B]
  source sum(sub(where(c, div(y, x), y), where(c, div(y, x), y))){axes=[-1]}
  target sum(sub(div(y, x), div(y, x))){axes=[-1]}""",
}


@pytest.mark.parametrize("name", UNDEFINED)
def test_what_is_not_chosen_may_not_be_computed_where_it_is_undefined(name: str) -> None:
    (rule,) = read_rules(UNDEFINED[name])
    assert "may not be defined" in prove(rule).reason


def test_what_is_needed_under_the_same_condition_may_be_computed() -> None:
    (rule,) = read_rules(f"""rule c: bool[A], x: float[A], y: float[A]
  source where(c, div(y, x), {ZERO})
  target mul(where(c, div(y, x), {ZERO}), where(c, {ONE}, {ZERO}))""")
    assert prove(rule).outcome is Outcome.PROVED
