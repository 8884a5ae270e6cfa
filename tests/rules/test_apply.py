"""Application: graph text in, graph text out."""

from dataclasses import replace

import pytest

from taso_py.ir.graph import Graph
from taso_py.ir.node import make
from taso_py.ir.operator import Input
from taso_py.ir.size import Open, open_size
from taso_py.ir.text import print_graph
from taso_py.ir.types import DType, TensorType
from taso_py.ops.elementwise import Add
from taso_py.ops.table import parse_graph
from taso_py.rules.apply import apply, instantiate
from taso_py.rules.match import Matcher
from taso_py.rules.text import read_rules

MERGE = """rule x: float[..G,M,K], a: float[K,N], b: float[K,P]
  source matmul(x, a), matmul(x, b)
  target t = matmul(x, concat(a, b){axis=-1}); slice(t){axis=-1, start=0, stop=N}, slice(t){axis=-1, start=N, stop=N+P}
"""


def rewrite(rule: str, graph: str) -> list[str]:
    """The printed results of applying a rule at each of its matches, None where it cannot be applied."""
    parsed = parse_graph(graph)
    results = [apply(parsed, match) for match in Matcher(read_rules(rule)).matches(parsed)]
    return [print_graph(result) if result is not None else "none" for result in results]


def same(graph: str) -> str:
    """A graph in the form that it is printed in."""
    return print_graph(parse_graph(graph))


def test_products_on_one_input_are_merged() -> None:
    graph = """graph(x: f32[1,8]) {
      a = weight{key="a", type=f32[8,2]}
      b = weight{key="b", type=f32[8,3]}
      return relu(matmul(x, a)), matmul(x, b)
    }"""
    merged = """graph(x: f32[1,8]) {
      a = weight{key="a", type=f32[8,2]}
      b = weight{key="b", type=f32[8,3]}
      t = matmul(x, CONCAT)
      return relu(slice(t){axis=-1, start=FIRST}), slice(t){axis=-1, start=SECOND}
    }"""
    first = (
        merged.replace("CONCAT", "concat(a, b){axis=-1}").replace("FIRST", "0, stop=2").replace("SECOND", "2, stop=5")
    )
    second = (
        merged.replace("CONCAT", "concat(b, a){axis=-1}").replace("FIRST", "3, stop=5").replace("SECOND", "0, stop=3")
    )
    assert rewrite(MERGE, graph) in ([same(first)], [same(second)])


def test_a_product_that_feeds_the_other_is_not_merged_with_it() -> None:
    rule = """rule x: float[M,K], y: float[N,K], a: float[K,K]
      source matmul(x, a), matmul(y, a)
      target t = matmul(concat(x, y){axis=-2}, a);
        slice(t){axis=-2, start=0, stop=M}, slice(t){axis=-2, start=M, stop=M+N}
    """
    graph = """graph(x: f32[2,8], y: f32[2,8]) {
      a = weight{key="a", type=f32[8,8]}
      u = matmul(x, a)
      return matmul(relu(u), a), matmul(y, a)
    }"""
    results = rewrite(rule, graph)
    assert len(results) == 3
    assert results.count("none") == 1


def test_numbers_and_element_types_reach_the_target() -> None:
    rule = """rule x: float[..B], y: float[..B]
      source add(mul(x, constant{value=S, dtype=float}), mul(y, constant{value=S, dtype=float}))
      target mul(add(x, y), constant{value=S, dtype=float})"""
    graph = "graph(x: f16[2], y: f16[2]) { c = constant{value=0.5, dtype=f16} return add(mul(x, c), mul(y, c)) }"
    expected = "graph(x: f16[2], y: f16[2]) { return mul(add(x, y), constant{value=0.5, dtype=f16}) }"
    assert rewrite(rule, graph) == [same(expected)]


def test_a_target_that_the_operators_refuse_is_no_match() -> None:
    rule = """rule x: float[M,N]
      source slice(x){axis=-1, start=A, stop=B}
      target slice(slice(x){axis=-1, start=2, stop=B}){axis=-1, start=A-2, stop=B-2}"""
    graph = "graph(x: f32[2,8]) { return slice(x){axis=-1, start=3, stop=7}, slice(x){axis=-1, start=1, stop=8} }"
    assert [result == "none" for result in rewrite(rule, graph)] == [False, True]


BEHIND = """rule a: float[M,N], b: float[P,N]
  source slice(concat(a, b){axis=-2}){axis=-2, start=S, stop=T}
  target slice(b){axis=-2, start=S-M, stop=T-M}"""


@pytest.mark.parametrize(
    ("slice_", "is_rewritten"),
    [
        ("start=3, stop=5", False),  # partly of a, if N is greater than 3
        ("start=N, stop=N+2", True),
        ("start=N-1, stop=N+2", False),
        ("start=N+1, stop=N+9", True),
    ],
)
def test_sizes_that_a_model_leaves_open_are_accepted_for_all_values_or_not(slice_: str, is_rewritten: bool) -> None:
    graph = f"graph(a: f32[N,4], b: f32[9,4]) {{ return slice(concat(a, b){{axis=-2}}){{axis=-2, {slice_}}} }}"
    assert [result != "none" for result in rewrite(BEHIND, graph)] == [is_rewritten]


def test_what_the_source_demands_holds_of_the_target_too() -> None:
    rule = """rule x: float[N,C,H,W], y: float[N,C,H,W], w: float[O,C,K,L]
      source add(conv2d(x, w), conv2d(y, w))
      target conv2d(add(x, y), w)"""
    graph = """graph(x: f32[2,3,S,S], y: f32[2,3,S,S]) {
      w = weight{key="w", type=f32[4,3,5,5]}
      return add(conv2d(x, w), conv2d(y, w))
    }"""
    assert "none" not in rewrite(rule, graph)


def test_a_pool_is_padded_by_at_most_half_its_window() -> None:
    rule = """rule x: float[N,C,H,W]
      source avg_pool2d(pad(x){widths=[[A,A],[B,B]]}){kernel=[K,L], stride=[S,T]}
      target avg_pool2d(x){kernel=[K,L], stride=[S,T], padding=[A,B]}
      where A >= 0, B >= 0"""
    pad = "pad(x){widths=[[WIDTH,WIDTH],[0,0]]}"
    graph = f"graph(x: f32[1,2,8,8]) {{ return avg_pool2d({pad}){{kernel=[3,3], stride=[1,1]}} }}"
    assert [rewrite(rule, graph.replace("WIDTH", width)) == ["none"] for width in ("1", "2")] == [False, True]


def test_a_target_with_an_empty_part_is_no_match() -> None:
    rule = """rule x: float[N]
      source slice(x){axis=-1, start=A, stop=N}
      target t = concat(slice(x){axis=-1, start=A, stop=N}, slice(x){axis=-1, start=0, stop=A}){axis=-1};
        slice(t){axis=-1, start=0, stop=N-A}"""
    graph = "graph(x: f32[8]) { return slice(x){axis=-1, start=START, stop=8} }"
    assert [rewrite(rule, graph.replace("START", start))[0] == "none" for start in ("3", "0")] == [False, True]


def test_a_rule_that_changes_nothing_here_is_no_match() -> None:
    rule = "rule x: float[..B], y: float[..B] source add(x, y) target add(y, x)"
    assert rewrite(rule, "graph(x: f32[2], y: f32[2]) { return add(x, y) }") == ["none"]


@pytest.mark.parametrize(("stop", "kept"), [(2, True), (3, False)])
def test_output_types_must_be_those_of_the_source(stop: int, kept: bool) -> None:
    rule = "rule x: float[N] source slice(x){axis=-1, start=0, stop=A} target slice(x){axis=-1, start=N-A, stop=N}"
    matcher = Matcher(read_rules(rule))
    match, other = (
        matcher.matches(parse_graph(f"graph(x: f32[4]) {{ return slice(x){{axis=-1, start=0, stop={end}}} }}"))[0]
        for end in (stop, 2)
    )
    assert (instantiate(replace(match, outputs=other.outputs)) is not None) == kept


def test_an_interior_value_that_others_read_stays() -> None:
    rule = "rule x: float[N] source relu(relu(x)) target relu(x)"
    graph = "graph(x: f32[4]) { t = exp(x) r = relu(t) return relu(r), tanh(r) }"
    expected = "graph(x: f32[4]) { r = relu(exp(x)) return r, tanh(r) }"
    assert rewrite(rule, graph) == [same(expected)]


@pytest.mark.parametrize(("least", "is_rewritten"), [(1, False), (2, True)])
def test_a_target_with_a_part_that_may_be_empty_is_no_match(least: int, is_rewritten: bool) -> None:
    (rule,) = read_rules(
        """rule x: float[N], y: float[N]
        source add(x, y)
        target t = add(x, y); concat(slice(t){axis=-1, start=0, stop=1}, slice(t){axis=-1, start=1, stop=N}){axis=-1}
        where N-1 >= 0"""
    )
    size = open_size(Open("x.0", 8, least, None))
    x, y = (make(Input(name, TensorType(DType.F32, (size,)))) for name in "xy")
    graph = Graph((x, y), make(Add(), [x.value, y.value]).outputs)
    (match,) = Matcher([rule]).matches(graph)
    assert (instantiate(match) is not None) == is_rewritten


def test_zeros_of_both_signs_are_two_numbers() -> None:
    rule = """rule x: float[M,N]
      source slice(div(x, constant{value=C, dtype=float})){axis=-1, start=A, stop=B}
      target div(slice(x){axis=-1, start=A, stop=B}, constant{value=C, dtype=float})"""
    source = "graph(x: f32[1,3]) { return slice(div(x, constant{value=C, dtype=f32})){axis=-1, start=0, stop=2} }"
    target = "graph(x: f32[1,3]) { return div(slice(x){axis=-1, start=0, stop=2}, constant{value=C, dtype=f32}) }"
    matcher = Matcher(read_rules(rule))
    for number in ("0.0", "-0.0", "0.0"):
        graph = parse_graph(source.replace("C", number))
        (match,) = matcher.matches(graph)
        result = apply(graph, match)
        assert result is not None
        assert print_graph(result) == same(target.replace("C", number))


def test_numbers_that_are_equal_are_put_in_as_they_are_written() -> None:
    rule = """rule x: float[..B]
      source mul(mul(x, constant{value=C, dtype=float}), constant{value=D, dtype=float})
      target mul(mul(x, constant{value=D, dtype=float}), constant{value=C, dtype=float})"""
    graph = "graph(x: f32[2]) { return mul(mul(x, constant{value=C, dtype=f32}), constant{value=D, dtype=f32}) }"
    for one, other in (("0.0", "-0.0"), ("-0.0", "0.0")):
        source, target = (graph.replace("C", a).replace("D", b) for a, b in ((one, other), (other, one)))
        assert rewrite(rule, source) == [same(target)]


@pytest.mark.parametrize("order", [("0.0", "-0.0"), ("-0.0", "0.0")])
def test_zeros_that_rules_put_in_keep_their_signs(order: tuple[str, str]) -> None:
    for zero in order:
        rule = f"rule x: float[N] source relu(x) target mul(x, constant{{value={zero}, dtype=float}})"
        target = f"graph(x: f32[2]) {{ return mul(x, constant{{value={zero}, dtype=f32}}) }}"
        assert rewrite(rule, "graph(x: f32[2]) { return relu(x) }") == [same(target)]
