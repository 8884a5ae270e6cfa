"""Candidates of concrete shapes become rules over symbols; what is false does not pass."""

from __future__ import annotations

import pytest

from taso_py.generate.generalize import Generality, initial_generalities, lift, numbers
from taso_py.generate.retest import RetestOutcome, generic_instance, instances, retest
from taso_py.generate.settle import Settler
from taso_py.ir.node import Value
from taso_py.ops.table import parse_graph
from taso_py.rules.substitution import Substitution
from taso_py.rules.text import read_rules
from verify import prove


def _sides(variables: str, source: str, target: str) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
    graphs = [parse_graph(f"graph({variables}) {{ {side} }}") for side in (source, target)]
    return graphs[0].outputs, graphs[1].outputs


def _first_true(variables: str, source: str, target: str) -> str:
    """The statement of the most general rule that passes random instances."""
    sides = _sides(variables, source, target)
    for generality in initial_generalities(numbers(*sides)):
        for rule in lift(*sides, generality):
            if retest(rule, 0) is RetestOutcome.PASSED and generic_instance(rule, 0) is not None:
                return " ".join(rule.statement.split())
    return ""


@pytest.mark.parametrize(
    ("variables", "source", "target", "expected"),
    [
        (
            "x: float[9]",
            "return slice(slice(x){axis=-1, start=1, stop=8}){axis=-1, start=2, stop=5}",
            "return slice(x){axis=-1, start=3, stop=6}",
            "a: float[A] source slice(slice(a){axis=-1, start=B, stop=C}){axis=-1, start=D, stop=E} "
            "target slice(a){axis=-1, start=B+D, stop=B+E}",
        ),
        (
            "x: float[4], y: float[4]",
            "return slice(concat(x, y){axis=-1}){axis=-1, start=4, stop=8}",
            "return y",
            "a: float[A], b: float[B] source slice(concat(a, b){axis=-1}){axis=-1, start=A, stop=A+B} target b",
        ),
        (
            "x: float[3,2], a: float[2,2], b: float[2,2]",
            "return linear(x, a), linear(x, b)",
            "t = linear(x, concat(a, b){axis=-2}) "
            "return slice(t){axis=-1, start=0, stop=2}, slice(t){axis=-1, start=2, stop=4}",
            "a: float[A,B], b: float[C,B], c: float[D,B] source linear(a, b), linear(a, c) "
            "target t0 = linear(a, concat(b, c){axis=-2}); "
            "slice(t0){axis=-1, start=0, stop=C}, slice(t0){axis=-1, start=C, stop=C+D}",
        ),
        (
            "x: float[3,2,4,5], k: float[2,2,3,3], l: float[2,2,3,3]",
            "return add(conv2d(x, k){padding=[1,1]}, conv2d(x, l){padding=[1,1]})",
            "return conv2d(x, add(k, l)){padding=[1,1]}",
            "a: float[A,B,C,D], b: float[E,B,F,G], c: float[E,B,F,G] source "
            "add(conv2d(a, b){stride=[H,I], padding=[J,K], dilation=[L,M]}, "
            "conv2d(a, c){stride=[H,I], padding=[J,K], dilation=[L,M]}) "
            "target conv2d(a, add(c, b)){stride=[H,I], padding=[J,K], dilation=[L,M]}",
        ),
    ],
)
def test_the_most_general_rule(variables: str, source: str, target: str, expected: str) -> None:
    assert _first_true(variables, source, target) == expected


def test_what_is_true_for_some_sizes_only_is_not_lifted() -> None:
    assert _first_true("x: float[2,2]", "return add(x, x)", "return add(x, permute(x){order=[-1,-2]})") == ""


def _settled(variables: str, source: str, target: str, *, narrow: bool = False, faithful: bool = False) -> str:
    sides = _sides(variables, source, target)
    rules = Settler(prove, 0).settle(*sides, frozenset(), narrow=narrow, faithful=faithful)
    return " ".join(rules[0].statement.split()) if rules else ""


def test_what_is_true_of_slices_at_particular_places_is_lifted_if_that_is_wanted() -> None:
    variables = "q: float[2,8,5], k: float[2,7,5], v: float[2,7,9]"
    sides = (
        "return slice(attention(q, k, v){causal=true}){axis=-2, start=3, stop=4}",
        "return attention(slice(q){axis=-2, start=3, stop=4}, slice(k){axis=-2, start=0, stop=4}, "
        "slice(v){axis=-2, start=0, stop=4})",
    )
    assert not _settled(variables, *sides)
    assert "source slice(attention(a, b, c){causal=true}){axis=-2, start=F, stop=F+1}" in _settled(
        variables, *sides, narrow=True
    )


def test_two_rows_of_causal_attention_need_a_mask() -> None:
    variables = "q: float[2,8,5], k: float[2,7,5], v: float[2,7,9]"
    sides = (
        "return slice(attention(q, k, v){causal=true}){axis=-2, start=2, stop=4}",
        "return attention(slice(q){axis=-2, start=2, stop=4}, slice(k){axis=-2, start=0, stop=4}, "
        "slice(v){axis=-2, start=0, stop=4})",
    )
    assert not _settled(variables, *sides, narrow=True)


def test_padding_is_added_to_padding() -> None:
    statement = _settled(
        "x: float[2,3,3,4], k: float[4,3,3,2]",
        "return conv2d(pad(x){widths=[[3,3],[2,2]]}, k){stride=[2,2], padding=[1,1]}",
        "return conv2d(x, k){stride=[2,2], padding=[4,3]}",
    )
    assert "pad(a){widths=[[I,I],[H,H]]}" in statement
    assert "padding=[I+L,H+M]" in statement


def test_sums_of_dilated_convolutions_are_of_any_stride_and_dilation() -> None:
    """Extents of two images are equal because those of the results are, and those of the kernels."""
    window = "{stride=[2,2], padding=[1,1], dilation=[2,2]}"
    statement = _settled(
        "x: float[2,3,6,5], y: float[2,4,6,5], k: float[5,3,3,2], l: float[5,4,3,2]",
        f"return add(conv2d(x, k){window}, conv2d(y, l){window})",
        f"return conv2d(concat(x, y){{axis=-3}}, concat(k, l){{axis=-3}}){window}",
    )
    assert "stride=[I,J], padding=[K,L], dilation=[M,N]" in statement


def test_grouped_convolutions_side_by_side_have_features_in_proportion() -> None:
    """The sum of their groups divides the sum of their features, if each has as many a group as the other."""
    statement = _settled(
        "x: float[1,4,6,5], y: float[1,6,6,5], k: float[10,2,3,2], l: float[15,2,3,2]",
        "return concat(conv2d(x, k){groups=2}, conv2d(y, l){groups=3}){axis=-3}",
        "return conv2d(concat(x, y){axis=-3}, concat(k, l){axis=-4}){groups=5}",
    )
    assert "b: float[B*F,C,G,H]" in statement
    assert "d: float[F*I,C,G,H]" in statement
    assert "groups=B+I" in statement


def test_a_leading_axis_group() -> None:
    sides = _sides("x: float[3,4]", "return relu(slice(x){axis=-1, start=1, stop=3})",
                   "return slice(relu(x)){axis=-1, start=1, stop=3}")  # fmt: skip
    (rule,) = lift(*sides, Generality(grouped=frozenset({"x"}), replaced=1))
    assert str(rule.variables[0].types[0]) == "float[..A,B]"


RULE = "rule a: float[..G,N], b: float[..G,M] source {} target {}"


def _rule(source: str, target: str) -> Substitution:
    return read_rules(RULE.format(source, target))[0]


def test_retest_tells_true_from_false() -> None:
    true = _rule("relu(concat(a, b){axis=-1})", "concat(relu(a), relu(b)){axis=-1}")
    false = read_rules(
        "rule a: float[N] source slice(slice(a){axis=-1, start=A, stop=B}){axis=-1, start=C, stop=D} "
        "target slice(a){axis=-1, start=A, stop=A+D-C}"
    )[0]
    assert retest(true, 0) is RetestOutcome.PASSED
    assert retest(false, 0) is RetestOutcome.FALSE


def test_instances_do_not_depend_on_anything_but_rule_and_seed() -> None:
    rule = _rule("slice(concat(a, b){axis=-1}){axis=-1, start=A, stop=B}", "slice(a){axis=-1, start=A, stop=B}")
    first, again = ([instance.instantiate(rule).statement for instance in instances(rule, 7)] for _ in range(2))
    assert first == again
    assert len(first) > 5


DEPTHWISE = (
    "x: float[3,2,4,5]",
    "return avg_pool2d(x){kernel=[3,3], stride=[1,1], padding=[1,1]}",
    "return conv2d(x, div(expand(constant{value=1.0, dtype=float}){shape=[2,1,3,3]}, constant{value=9.0, dtype=float}))"
    "{padding=[1,1], groups=2}",
)


def test_groups_follow_from_the_channels_and_strides_are_freed_together() -> None:
    (rule,) = Settler(prove, 0).settle(*_sides(*DEPTHWISE), frozenset({"x"}))
    statement = " ".join(rule.statement.split())
    assert "source avg_pool2d(a){kernel=[3,3], stride=[E,F], padding=[G,H]}" in statement
    assert "shape=[B,1,3,3]" in statement
    assert "{stride=[E,F], padding=[G,H], groups=B}" in statement


def test_of_a_faithful_rule_the_candidate_is_an_instance() -> None:
    """With any padding a convolution may follow enlarging by a factor of one, which no model does."""
    sides = (
        "x: float[2,3,3,2], w: float[5,3,1,1]",
        "return conv2d(upsample_nearest2d(x){factors=[3,2]}, w)",
        "return upsample_nearest2d(conv2d(x, w)){factors=[3,2]}",
    )
    assert "factors=[1,1]" in _settled(*sides)
    assert _settled(*sides, faithful=True) == (
        "a: float[A,B,C,D], b: float[E,B,1,1] source conv2d(upsample_nearest2d(a){factors=[F,G]}, b){dilation=[H,I]} "
        "target upsample_nearest2d(conv2d(a, b){dilation=[H,I]}){factors=[F,G]}"
    )
