"""The enumeration agrees with brute force, and gathers what is equal."""

from __future__ import annotations

import itertools

import numpy as np

from taso_py.generate.candidates import collect, distinct
from taso_py.generate.enumerate import enumerate_terms
from taso_py.generate.fingerprint import USELESS, Hasher, samples
from taso_py.generate.retest import RetestOutcome, retest
from taso_py.generate.sets.transformer import TRANSFORMER
from taso_py.generate.vocabulary import DATA, Family, Half, Production, Variables
from taso_py.ir.errors import ShapeError
from taso_py.ir.node import Value, make
from taso_py.ir.operator import Input
from taso_py.ir.types import DType, TensorType
from taso_py.ops.elementwise import Add, Relu, Sub
from taso_py.ops.movement import Concat
from taso_py.rules.text import read_rules

TINY = Family(
    "tiny",
    (Variables("x", (2,), DATA, 2),),
    (
        Production(Relu(), "d"),
        Production(Add(), ".."),
        Production(Sub(), ".."),
        Production(Concat(-1), ".."),
        Production(Half(-1, 1), "."),
    ),
    operators=2,
)


def _apply(values: set[Value]) -> set[Value]:
    """Every application of a production of ``TINY`` to values."""
    found: set[Value] = set()
    for production in TINY.productions:
        for operands in itertools.product(values, repeat=production.arity):
            try:
                found.add(make(production.at([value.type for value in operands]), operands).value)
            except ShapeError:
                continue
    return found


def _instances(value: Value) -> set[Value]:
    below = set[Value]().union(*(_instances(operand) for operand in value.node.inputs))
    return below if isinstance(value.node.op, Input) else {*below, value}


def test_every_term_comes_once() -> None:
    variables = {make(Input(name, TensorType(DType.FLOAT, (2,)))).value for name in ("x1", "x2")}
    one = _apply(variables)
    two = {value for value in _apply(variables | one) if len(_instances(value)) == 2}
    found = enumerate_terms(TINY, 0)
    # x - x is zero, so that nothing is built on it; of the last level, terms of x2 alone are renamings.
    zero = {value for value in one if value.node.op == Sub() and len(set(value.node.inputs)) == 1}
    first, second = sorted(variables, key=lambda value: str(value.node.op.text))
    kept = {value for value in two if not _instances(value) & zero and _reads(value) != {second}}
    assert first != second
    assert found.counts == [len(one), len(kept)]


def _reads(value: Value) -> set[Value]:
    if isinstance(value.node.op, Input):
        return {value}
    return set[Value]().union(*(_reads(operand) for operand in value.node.inputs))


def test_candidates_are_found_once_up_to_names_and_order() -> None:
    keys = [candidate.key for candidate in distinct(collect(enumerate_terms(TINY, 0)))]
    assert len(keys) == len(set(keys))
    assert "relu(0:1) = relu(relu(0:1))" in keys
    assert "0:1 = half{axis=-1, side=1}(concat{axis=-1}(1:1,0:1))" in keys
    # What repeats a variable on both sides is an instance of what does not.
    assert "add(0:1,add(0:1,1:1)) = add(1:1,add(0:1,0:1))" not in keys


def test_what_acts_on_tokens_or_rows_passes_reshapes() -> None:
    (tokens,) = (family for family in TRANSFORMER if family.name == "tokens")
    keys = [candidate.key for candidate in distinct(collect(enumerate_terms(tokens, 0)))]
    flat, heads = "reshape{shape=[12,4]}", "reshape{shape=[2,6,2,2]}"
    assert f"relu({heads}(0:3)) = {heads}(relu(0:3))" in keys
    assert f"{flat}(softmax(0:3)) = softmax({flat}(0:3))" in keys
    assert not any(f"{heads}(softmax" in key for key in keys)


def test_shared_operators_are_counted_once() -> None:
    found = enumerate_terms(TINY, 0)
    doubled = [row for row in found.terms.rows if row.size == 2 and row.operands == (row.operands[0],) * 2]
    assert doubled, "add(relu(x), relu(x)) has two operators"
    assert all(row.size == len(set(row.instances)) for row in found.terms.rows)


def test_the_seed_determines_everything() -> None:
    first, again, other = (enumerate_terms(TINY, seed) for seed in (1, 1, 2))
    assert first.classes == again.classes
    assert first.classes != other.classes
    assert sorted(map(len, first.classes.values())) == sorted(map(len, other.classes.values()))


def test_fingerprints_tell_shapes_and_values_apart() -> None:
    hasher = Hasher(0)
    values = samples(0, "x", (2, 3))
    keys = {
        int(hasher.keys(array[None])[0])
        for array in (values, values + 1, values.reshape(-1, 3, 2), np.where(values > 6, 0, values))
    }
    assert len(keys) == 4
    assert hasher.keys(np.stack([values * 0, values * np.nan])).tolist() == [USELESS, USELESS]


def test_every_third_sample_is_mostly_of_one_sign_that_is_the_variable_s_own() -> None:
    negative = np.array([(samples(0, f"x{number}", (500,)) < 0).mean(axis=-1) for number in range(40)])
    mostly = np.maximum(negative, 1 - negative)
    assert (mostly[:, 1::3] > 0.85).all()
    assert (mostly[:, 0::3] < 0.6).all()
    assert {*(negative[:, 1] > 0.5)} == {*(negative[:, 4] > 0.5)} == {True, False}


def test_a_relu_after_padded_convolution_and_pool_is_seen() -> None:
    text = """rule a: float[A,B,C,D], b: float[E,B,1,1]
      source relu(max_pool2d(conv2d(a, b){padding=[1,1]}){kernel=[3,3], stride=[1,1], padding=[1,1]})
      target max_pool2d(conv2d(a, b){padding=[1,1]}){kernel=[3,3], stride=[1,1], padding=[1,1]}"""
    (rule,) = read_rules(text)
    assert any(retest(rule, seed) is RetestOutcome.FALSE for seed in range(20))
