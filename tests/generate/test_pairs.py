"""Pairs come once up to names, and say no more than they have to."""

from __future__ import annotations

import pytest

from taso_py.generate.candidates import RuleCandidate, collect, distinct
from taso_py.generate.enumerate import enumerate_terms
from taso_py.generate.pairs import Pair, pairs
from taso_py.generate.terms import Terms
from taso_py.generate.vocabulary import DATA, WEIGHT, Family, Half, Production, Variables
from taso_py.ops.contraction import Matmul
from taso_py.ops.elementwise import Add, Mul, Relu
from taso_py.ops.movement import Concat


def _found(
    *productions: Production, operators: int, shape: tuple[int, ...] = (4,), equal: int = 9
) -> dict[str, RuleCandidate]:
    family = Family("small", (Variables("x", shape, DATA),), productions, operators, equal=equal)
    return {candidate.key: candidate for candidate in distinct(collect(enumerate_terms(family, 0)))}


def test_what_both_sides_share_is_a_variable() -> None:
    keys = _found(Production(Relu(), "d"), Production(Concat(-1), "dd"), operators=3)
    assert "relu(0:1) = relu(relu(0:1))" in keys
    assert not any("relu(concat" in key and "relu(relu(concat" in key for key in keys)


def _pairs(*productions: Production, operators: int, equal: int | None) -> tuple[Terms, list[Pair]]:
    family = Family("small", (Variables("x", (4,), DATA, 2),), productions, operators, equal=equal)
    found = enumerate_terms(family, 0)
    return found.terms, [*pairs(found)]


def test_what_is_true_of_the_shared_term_alone_keeps_it() -> None:
    terms, found = _pairs(Production(Relu(), "d"), Production(Mul(), "dd"), operators=3, equal=9)
    products = {
        number
        for number, row in enumerate(terms.rows)
        if row.production == 1 and [terms.rows[operand].production for operand in row.operands] == [0, 0]
    }
    found = [pair for pair in found if pair.right in products and terms.rows[pair.left].production == 0]
    assert found
    shared = [{*terms.rows[pair.left].instances} & {*terms.rows[pair.right].instances} for pair in found]
    assert all(shared), "relu(a * relu(b)) = relu(a) * relu(b)"
    assert {pair.cut for pair in found} == {frozenset()}, "relu(b) is not negative, another factor may be"


@pytest.mark.parametrize("equal", [None, 9])
def test_what_both_sides_read_repeatedly_does_not_come(equal: int | None) -> None:
    terms, found = _pairs(Production(Relu(), "d"), Production(Mul(), "dd"), operators=2, equal=equal)
    (square,) = (n for n, row in enumerate(terms.rows) if row.production == 1 and row.operands == (0, 0))
    assert terms.rows[square].repeats == 1
    assert found
    assert not any(square in terms.rows[pair.right].operands for pair in found)


def test_what_a_side_forgets_is_a_variable() -> None:
    keys = _found(Production(Half(-1, 0), "d"), Production(Concat(-1), "dd"), Production(Add(), "dd"), operators=3)
    assert "0:1 = half{axis=-1, side=0}(concat{axis=-1}(0:1,1:1))" in keys
    assert not any(key.startswith("0:1 = half") and "add" in key for key in keys)


def test_a_broadcast_axis_is_no_variable() -> None:
    """Halves of an axis of two are of size one, where a product of matrices is a product of numbers."""
    keys = _found(Production(Half(-1, 0), "d"), Production(Matmul(), "dd"), operators=3, shape=(2, 2))
    assert not any(":2(" in key for key in keys)


def test_large_pairs_are_wanted_where_they_gain() -> None:
    productions = (Production(Relu(), "d"), Production(Add(), "dd"), Production(Mul(), "dd"))
    every = _found(*productions, operators=3)
    some = _found(*productions, operators=3, equal=2)
    assert every.keys() == some.keys()
    factor = next(key for key in some if key.count("mul") == 3 and key.count("add") == 2 and "relu" not in key)
    assert some[factor].one_way
    assert not every[factor].one_way
    assert len(some[factor].left[0].node.inputs[0].node.inputs) == 2, "the sum of products is the source"
    idle = {key for key, candidate in some.items() if candidate.is_idle}
    assert any(key.count("add") == 6 for key in idle), "sums in another order gain nothing"
    assert not any(candidate.is_idle or candidate.is_large for candidate in every.values())


def test_what_depends_on_weights_only_is_computed_once() -> None:
    family = Family(
        "small",
        (Variables("x", (3, 2), DATA, 1), Variables("w", (2, 2), WEIGHT, 2)),
        (Production(Matmul(), "dw"), Production(Matmul(), "ww"), Production(Relu(), "d")),
        operators=2,
        equal=1,
    )
    (candidate,) = (c for c in distinct(collect(enumerate_terms(family, 0))) if c.key.count("matmul") == 4)
    assert candidate.one_way
    assert candidate.right[0].node.inputs[0].node.op.name == "input", "the product with the weights' product"
