"""Fused operators are recognised in every form that they are written out in, and in nothing else."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest

from taso_py.generate.candidates import RuleCandidate, collect, distinct
from taso_py.generate.enumerate import enumerate_terms
from taso_py.generate.generalize import initial_generalities, lift, numbers
from taso_py.generate.sets.fuse import FUSE
from taso_py.generate.settle import Settler
from taso_py.generate.vocabulary import CONSTANT, DATA, FUSED, MASK, STATISTIC, Family, Production, Variables, Written
from taso_py.generate.written import written_forms
from taso_py.ir.errors import InvariantError
from taso_py.ops.elementwise import Add, Exp, Gelu, Mul, Relu, Rsqrt, Silu
from taso_py.ops.functions import IRRATIONALS
from taso_py.ops.normalization import RmsNorm, Softmax
from taso_py.ops.reduction import Mean
from taso_py.ops.table import parse_graph
from verify import prove

RMS = Family(
    "rms",
    (Variables("x", (3, 4), DATA, 1), Variables("e", (), CONSTANT, 1, 0.25)),
    (
        Production(Mean((-1,), keepdim=True), "d", STATISTIC),
        Production(Add(), "sc", STATISTIC),
        Production(Rsqrt(), "s", STATISTIC),
        Production(Mul(), "dd"),
        Production(Mul(), "ds"),
        Production(RmsNorm(1, 0.25), "g", FUSED),
    ),
    operators=5,
)


def _statements(candidate: RuleCandidate) -> list[str]:
    rules = Settler(prove, 0).settle(candidate.left, candidate.right, candidate.data)
    return [" ".join(rule.statement.split()) for rule in rules]


def test_a_factor_of_all_summands_is_taken_out_of_a_sum() -> None:
    forms = [candidate.left[0] for candidate in written_forms(Written("gelu", Gelu("tanh"), is_factored=True))]
    c, number = IRRATIONALS["sqrt(2/pi)"], "constant{{value={}, dtype=float}}".format
    (root,) = parse_graph(
        f"""graph(x: float[4]) {{ return mul(mul({number(0.5)}, x), add({number(1.0)},
        tanh(mul(mul({number(repr(c))}, x), add({number(1.0)}, mul(mul({number(0.044715)}, x), x)))))) }}"""
    ).outputs
    assert root in forms
    assert root not in [candidate.left[0] for candidate in written_forms(Written("gelu", Gelu("tanh")))]


def test_the_form_of_gelu_that_is_usually_written_is_proved() -> None:
    (root,) = parse_graph(
        f"""graph(x: float[4]) {{ return mul(mul(constant{{value=0.5, dtype=float}}, x),
        add(constant{{value=1.0, dtype=float}}, tanh(mul(constant{{value={IRRATIONALS["sqrt(2/pi)"]!r}, dtype=float}},
        add(x, mul(constant{{value=0.044715, dtype=float}}, mul(mul(x, x), x))))))) }}"""
    ).outputs
    found = [c for c in written_forms(Written("gelu", Gelu("tanh"))) if c.left == (root,)]
    assert len(found) == 1
    (statement,) = _statements(found[0])
    assert statement.startswith("a: float[..A] source mul(")
    assert statement.endswith('target gelu(a){approximate="tanh"}')


@pytest.mark.parametrize(
    "argument",
    [
        f"div(x, constant{{value={math.sqrt(2)!r}, dtype=float}})",
        f"mul(x, constant{{value={math.sqrt(0.5)!r}, dtype=float}})",
        f"mul(x, constant{{value={1 / math.sqrt(2)!r}, dtype=float}})",
    ],
)
def test_the_forms_of_the_exact_gelu_that_libraries_write_are_proved(argument: str) -> None:
    found = {candidate.left: candidate for candidate in written_forms(Written("gelu by erf", Gelu()))}
    half, one = "constant{value=0.5, dtype=float}", "constant{value=1.0, dtype=float}"
    for form in (f"mul(mul(x, {half}), t)", f"mul(x, mul({half}, t))", f"mul({half}, mul(x, t))"):
        root = parse_graph(f"graph(x: float[4]) {{ t = add({one}, erf({argument})) return {form} }}").outputs
        (statement,) = _statements(found.pop(root))
        assert statement.endswith("target gelu(a)")
    assert len(found) == 15


@pytest.mark.parametrize("form", ["div(mul(x, t), TWO)", "mul(div(x, TWO), t)", "mul(x, div(t, TWO))"])
def test_a_half_may_be_divided_by_two(form: str) -> None:
    found = {candidate.left: candidate for candidate in written_forms(Written("gelu by erf", Gelu()))}
    one = "constant{value=1.0, dtype=float}"
    text = "graph(x: float[4]) { t = add(ONE, erf(div(x, ROOT))) return FORM }"
    text = text.replace("FORM", form).replace("ONE", one).replace("ROOT", one.replace("1.0", repr(math.sqrt(2))))
    (root,) = parse_graph(text.replace("TWO", one.replace("1.0", "2.0"))).outputs
    (statement,) = _statements(found[root,])
    assert statement.endswith("target gelu(a)")
    third = parse_graph(text.replace("TWO", one.replace("1.0", "3.0"))).outputs
    assert not Settler(prove, 0).settle(third, found[root,].right, found[root,].data)


def test_another_root_is_another_function() -> None:
    form = next(written_forms(Written("gelu by erf", Gelu())))
    text = repr_of(form)
    near = next(text.replace(repr(value), "0.7071") for value in (math.sqrt(0.5), math.sqrt(2)) if repr(value) in text)
    assert Settler(prove, 0).settle(form.left, form.right, form.data)
    assert not Settler(prove, 0).settle(parse_graph(near).outputs, form.right, form.data)


def test_another_constant_is_another_function() -> None:
    form = next(written_forms(Written("gelu", Gelu("tanh"))))
    other = parse_graph(repr_of(form).replace("0.044715", "0.044714")).outputs
    assert Settler(prove, 0).settle(form.left, form.right, form.data)
    assert not Settler(prove, 0).settle(other, form.right, form.data)


def repr_of(candidate: RuleCandidate) -> str:
    """The source of a candidate as a graph text."""
    from taso_py.ir.text import print_values

    *bindings, result = print_values(candidate.left).split("; ")
    return "graph(x: float[4]) { " + "\n".join([*bindings, f"return {result}"]) + " }"


def test_forms_come_once() -> None:
    assert len(list(written_forms(Written("silu", Silu())))) == 1
    forms = [candidate.left for candidate in written_forms(Written("gelu", Gelu("tanh")))]
    assert len(forms) == len(set(forms)) > 10


def test_a_function_without_an_operator_is_not_written_out() -> None:
    @dataclass(frozen=True)
    class Cosine(Relu):
        name = "cosine"

    with pytest.raises(InvariantError, match="no operator computes"):
        list(written_forms(Written("cosine", Cosine())))


def test_a_normalisation_is_found_and_nothing_else() -> None:
    (candidate,) = distinct(collect(enumerate_terms(RMS, 0)))
    assert candidate.one_way
    assert _statements(candidate) == [
        "a: float[..A,B] source mul(rsqrt(add(mean(mul(a, a)){axes=[-1], keepdim=true}, "
        "constant{value=C, dtype=float})), a) target rms_norm(a){axes=1, eps=C}"
    ]


def test_what_is_broadcast_stays_so() -> None:
    family = Family(
        "masks",
        (Variables("s", (2, 3, 4), DATA, 1), Variables("m", (2, 1, 4), MASK, 1)),
        (Production(Add(), "dm"), Production(Softmax(), "d"), Production(Relu(), "d")),
        operators=3,
    )
    found = distinct(collect(enumerate_terms(family, 0)))
    (candidate,) = [c for c in found if "relu(relu" in c.key and "add" in c.key and "softmax" not in c.key]
    lifted = [rule for start in initial_generalities(numbers(candidate.left, candidate.right))
              for rule in lift(candidate.left, candidate.right, start)]  # fmt: skip
    assert lifted
    assert all("1" in str(rule.variables[1].types[0]) or "1" in str(rule.variables[0].types[0]) for rule in lifted)


def _family(name: str) -> Family:
    return next(family for family in FUSE if isinstance(family, Family) and family.name == name)


def test_functions_that_are_written_with_an_exponential_are_found() -> None:
    found = [
        _statements(candidate) for candidate in distinct(collect(enumerate_terms(_family("logistic functions"), 0)))
    ]
    one, below = "constant{value=1.0, dtype=float}", "exp(mul(constant{value=-1.0, dtype=float}, a))"
    assert [f"a: float[..A] source div(a, add({one}, {below})) target silu(a)"] in found
    assert [f"a: float[..A] source t0 = {one}; div(t0, add(t0, {below})) target sigmoid(a)"] in found
    assert [f"a: float[..A] source t0 = {one}; mul(div(t0, add(t0, {below})), a) target silu(a)"] in found
    assert len(found) == 3


def test_scores_that_are_divided_are_attention_to_divided_queries() -> None:
    found = [_statements(candidate) for candidate in distinct(collect(enumerate_terms(_family("attention"), 0)))]
    divided = [statement for statements in found for statement in statements if "div(" in statement]
    assert [statement.partition("source ")[2] for statement in divided] == [
        "matmul(softmax(div(matmul(a, permute(b){order=[-1,-2]}), constant{value=F, dtype=float})), c) "
        "target attention(div(a, constant{value=F, dtype=float}), b, c){scale=1.0}"
    ]


def test_operands_of_two_roles_are_found_in_both_orders_of_types() -> None:
    shapes = ((3, 4), (3, 1))
    for first, second in (shapes, shapes[::-1]):
        family = Family(
            "two roles",
            (Variables("x", first, DATA, 1), Variables("s", second, STATISTIC, 1)),
            (Production(Mul(), "ds"), Production(Exp(), "d")),
            operators=1,
        )
        assert enumerate_terms(family, 0).counts == [2]
