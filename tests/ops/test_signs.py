"""Signs are found where definitions show them, hold of what operators compute, and are not found elsewhere."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from taso_py.ir.node import Node, Value, make
from taso_py.ir.operator import Constant, Input
from taso_py.ir.sign import SIGNS, Sign, with_sign
from taso_py.ir.types import DType, TensorType
from taso_py.ops.evaluate import Domain, Floats, evaluate
from taso_py.ops.signs import sign_of
from taso_py.ops.table import parse_graph
from tests.ops.test_evaluate import CASES, Case

POSITIVE = (
    "exp(x)",
    "sigmoid(x)",
    "softmax(x){axis=-1}",
    "rsqrt(p)",
    "div(p, exp(x))",
    "add(mul(x, x), constant{value=1e-05, dtype=f32})",
    "add(abs(x), exp(y))",
    "maximum(x, exp(x))",
    "minimum(exp(x), exp(y))",
    "div(exp(x), sqrt(exp(y)))",
    "sum(exp(x)){axes=[-1]}",
    "mean(exp(x)){axes=[-2, -1]}",
    "concat(exp(x), sigmoid(y)){axis=-1}",
    "permute(exp(x)){order=[-1, -2]}",
    "slice(exp(x)){axis=-1, start=1, stop=3}",
    "where(gt(x, y), exp(x), exp(y))",
    "hardtanh(exp(x)){min_val=0.5, max_val=6.0}",
    "pow(exp(x)){exponent=3}",
    "mul(p, p)",
    "sqrt(p)",
    "silu(p)",
)
NONNEGATIVE = (
    "relu(x)",
    "abs(x)",
    "mul(x, x)",
    "pow(x){exponent=4}",
    "mul(mul(x, y), mul(y, x))",
    "sqrt(x)",
    "add(relu(x), relu(y))",
    "mean(mul(x, x)){axes=[-1]}",
    "tanh(relu(x))",
    "gelu(relu(x))",
    "hardtanh(x){min_val=0.0, max_val=6.0}",
    "maximum(relu(x), y)",
    "pad(relu(x)){widths=[[1, 1]]}",
    "matmul(relu(x), permute(relu(y)){order=[-1, -2]})",
    "where(gt(x, y), exp(x), relu(y))",
    "cast(cast(exp(x)){dtype=f16}){dtype=f32}",
    "mul(n, p)",
    "concat(n, p){axis=-1}",
)
ANY = (
    "x",
    "log(p)",
    "rsqrt(x)",
    "rsqrt(n)",
    "div(p, n)",
    "sub(exp(x), exp(y))",
    "mul(x, y)",
    "pow(x){exponent=3}",
    "minimum(exp(x), y)",
    "maximum(x, y)",
    "silu(x)",
    "sin(p)",
    "div(exp(x), y)",
    "mul(exp(x), constant{value=-1.0, dtype=f32})",
    "pad(p){widths=[[1, 1]], value=-1.0}",
    "matmul(relu(x), permute(y){order=[-1, -2]})",
    "hardtanh(p){min_val=-1.0, max_val=-0.5}",
    "where(gt(p, n), p, x)",
    "layer_norm(p){axes=1, eps=1e-05}",
)
_EXPECTED = {
    text: sign
    for texts, sign in ((POSITIVE, Sign.POSITIVE), (NONNEGATIVE, Sign.NONNEGATIVE), (ANY, Sign.ANY))
    for text in texts
}


def _value(text: str) -> Value:
    inputs = "x: f32[3,4], y: f32[3,4], p: positive f32[3,4], n: nonnegative f32[3,4]"
    return parse_graph(f"graph({inputs}) {{ return {text} }}").outputs[0]


@pytest.mark.parametrize("text", _EXPECTED)
def test_a_sign_is_found_where_it_is_evident(text: str) -> None:
    assert sign_of(_value(text)) is _EXPECTED[text]


def test_a_long_computation_is_followed_to_its_beginning() -> None:
    value = _value("exp(x)")
    for _ in range(5000):
        value = make(_value("sqrt(x)").node.op, (value,)).value
    assert sign_of(value) is Sign.POSITIVE


def test_numbers_get_a_sign() -> None:
    numbers = np.array([-2.0, 0.0, 3.0])
    assert with_sign(numbers, Sign.ANY) is numbers
    assert with_sign(numbers, Sign.NONNEGATIVE).tolist() == [2.0, 0.0, 3.0]
    assert with_sign(numbers, Sign.POSITIVE, 0.5).tolist() == [2.0, 0.5, 3.0]


def _signs(count: int) -> Iterator[Sequence[Sign]]:
    """Yield signs for a number of operands: equal ones, and one that differs."""
    for sign in Sign:
        yield [sign] * count
        for place in range(count):
            yield [Sign.ANY if other == place else sign for other in range(count)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.op.name)
def test_what_operators_compute_has_the_sign_that_is_found(case: Case) -> None:
    for signs in _signs(len(case.shapes)):
        declared = enumerate(zip(case.types, signs, strict=True))
        operands = [_input(type_, sign, place) for place, (type_, sign) in declared]
        found = sign_of(make(case.op, [operand.value for operand in operands]).value)
        for seed in range(4):
            result = evaluate(case.op, _draw(case, signs, seed), case.types, Domain.REAL)
            known = result[~np.isnan(result)]
            least = {Sign.ANY: True, Sign.NONNEGATIVE: (known >= 0).all(), Sign.POSITIVE: (known > 0).all()}
            assert least[found], f"{[sign.label for sign in signs]} give {found.label}"


def _input(type_: TensorType, sign: Sign, place: int) -> Node:
    return make(Input(f"x{place}", type_, sign=sign if type_.dtype is not DType.BOOL else Sign.ANY))


def _draw(case: Case, signs: Sequence[Sign], seed: int) -> list[Floats]:
    generator = np.random.default_rng(seed)
    arrays = [generator.standard_normal(shape) * 2 for shape in case.shapes]
    zeros = [generator.random(shape) < 0.2 for shape in case.shapes]
    arrays = [np.where(zero, 0.0, array) for array, zero in zip(arrays, zeros, strict=True)]
    return case.truly([with_sign(array, sign, 1e-3) for array, sign in zip(arrays, signs, strict=True)])


def test_a_sign_that_is_too_great_would_be_noticed() -> None:
    """The draws above have zeros and negative numbers, of which a wrong claim would be refuted."""
    case = next(case for case in CASES if case.op.name == "relu")
    result = evaluate(case.op, _draw(case, [Sign.ANY], 0), case.types, Domain.REAL)
    assert (result == 0).any()
    assert (np.concatenate([array.ravel() for array in _draw(case, [Sign.ANY], 0)]) < 0).any()


def test_the_words_for_signs() -> None:
    assert SIGNS == {"nonnegative": Sign.NONNEGATIVE, "positive": Sign.POSITIVE}


@pytest.mark.parametrize(
    "text",
    [
        "graph(i: i32[4]) { return mul(i, i) }",
        "graph(i: i8[4]) { return add(maximum(i, mul(i, i)), maximum(i, mul(i, i))) }",
        "graph(i: i64[4]) { return cast(maximum(i, constant{value=0, dtype=i64})){dtype=i32} }",
        "graph(x: f32[4]) { return cast(exp(x)){dtype=i64} }",
        "graph(x: f32[4]) { return cast(cast(relu(x)){dtype=i8}){dtype=f32} }",
    ],
)
def test_integers_wrap_around(text: str) -> None:
    """46341 squared is negative in 32 bits, and so is 2^31 converted to them."""
    assert sign_of(parse_graph(text).outputs[0]) is Sign.ANY


@pytest.mark.parametrize(
    ("text", "sign"),
    [
        ("graph(i: i32[4]) { return cast(maximum(i, constant{value=1, dtype=i32})){dtype=i64} }", Sign.POSITIVE),
        ("graph(i: i32[4]) { return cast(maximum(i, constant{value=0, dtype=i32})){dtype=f32} }", Sign.NONNEGATIVE),
        ("graph(x: f32[4]) { return cast(x){dtype=u8} }", Sign.NONNEGATIVE),
        ("graph(b: bool[4]) { return cast(b){dtype=i8} }", Sign.NONNEGATIVE),
    ],
)
def test_conversions_that_lose_nothing_keep_signs(text: str, sign: Sign) -> None:
    assert sign_of(parse_graph(text).outputs[0]) is sign


def test_complex_squares_and_infinite_numbers_have_the_sign_that_they_have() -> None:
    square = "graph(z: c64[4]) { return cast(mul(z, z)){dtype=f32} }"
    assert sign_of(parse_graph(square).outputs[0]) is Sign.ANY
    for number, sign in ((math.inf, Sign.POSITIVE), (-math.inf, Sign.ANY)):
        assert sign_of(make(Constant(number, DType.F32)).value) is sign
