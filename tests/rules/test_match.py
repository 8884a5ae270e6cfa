"""Matching: rule text and graph text in, bindings out."""

import math
from collections import Counter
from collections.abc import Sequence

import pytest

from taso_py.frontend import import_module
from taso_py.ir.graph import Graph
from taso_py.ir.node import make
from taso_py.ir.operator import Input, Weight
from taso_py.ir.size import Open, open_size
from taso_py.ir.types import DType, TensorType
from taso_py.models import zoo
from taso_py.ops.elementwise import Relu, Sub
from taso_py.ops.signs import sign_of
from taso_py.ops.table import parse_graph
from taso_py.rules.apply import cyclic_path
from taso_py.rules.database import read_database
from taso_py.rules.embed import embeddings
from taso_py.rules.index import GraphIndex
from taso_py.rules.match import Identity, Match, Matcher, complete_match
from taso_py.rules.pattern import compile_pattern
from taso_py.rules.text import read_rules

MERGE = """rule x: float[..G,M,K], a: float[K,N], b: float[K,P]
  source matmul(x, a), matmul(x, b)
  target t = matmul(x, concat(a, b){axis=-1}); slice(t){axis=-1, start=0, stop=N}, slice(t){axis=-1, start=N, stop=N+P}
"""
FACTOR = "rule a: float[..B], b: float[..B], c: float[..B] source add(mul(a, b), mul(a, c)) target mul(a, add(b, c))"
SLICES = """rule x: float[..G,N]
  source slice(slice(x){axis=-1, start=A, stop=B}){axis=-1, start=C, stop=D}
  target slice(x){axis=-1, start=A+C, stop=A+D}
"""


def matches(rules: str, graph: str) -> list[Match]:
    return Matcher(read_rules(rules)).matches(parse_graph(graph))


def bindings(match: Match) -> str:
    """Variables by the name of the leaf they are bound to, then sizes."""
    values = [f"{name}={getattr(value.node.op, 'key', value.node.op.name)}" for name, value in match.values.items()]
    return ", ".join(sorted(values) + [f"{name}={size}" for name, size in sorted(match.sizes.items())])


def products(count: int, shape: str = "f32[1,8]", sizes: Sequence[int] = range(4, 99)) -> str:
    """A graph of several matrix products on one input."""
    lines = [f'  w{i} = weight{{key="w{i}", type=f32[8,{sizes[i]}]}}\n  v{i} = matmul(x, w{i})' for i in range(count)]
    results = ", ".join(f"v{i}" for i in range(count))
    return f"graph(x: {shape}) {{\n" + "\n".join(lines) + f"\n  return {results}\n}}"


def test_roots_that_share_an_operand_are_found_once_a_pair() -> None:
    found = [bindings(match) for match in matches(MERGE, products(3))]
    assert [{text[2:4], text[8:10]} for text in found] == [{"w0", "w1"}, {"w0", "w2"}, {"w1", "w2"}]
    assert found[0] in ("a=w0, b=w1, x=x, K=8, M=1, N=4, P=5", "a=w1, b=w0, x=x, K=8, M=1, N=5, P=4")


def test_symmetric_matches_are_found_the_same_way_round_wherever_the_weights_are_the_same() -> None:
    graph = """graph(x: f32[1,8], y: f32[1,8]) {
      w = weight{key="w", type=f32[8,4]}
      u = weight{key="u", type=f32[8,4]}
      return matmul(x, w), matmul(x, u), matmul(y, u), matmul(y, w)
    }"""
    found = [(match.values["x"], match.values["a"], match.values["b"]) for match in matches(MERGE, graph)]
    assert len(found) == 2
    assert found[0][0] != found[1][0]
    assert found[0][1:] == found[1][1:]


def test_a_group_stands_for_any_number_of_axes() -> None:
    for shape in ("f32[1,8]", "f32[3,1,8]", "f32[2,3,1,8]"):
        assert len(matches(MERGE, products(2, shape))) == 1
    assert not matches(MERGE.replace("..G,", ""), products(2, "f32[3,1,8]"))


def test_commutative_operands_match_in_both_orders() -> None:
    graph = "graph(x: f32[2], y: f32[2], z: f32[2]) { return add(mul(x, z), mul(z, y)), add(mul(x, y), mul(y, y)) }"
    found = [bindings(match).split(", ") for match in matches(FACTOR, graph)]
    assert [(shared, {left[2:], right[2:]}) for shared, left, right in found] == [
        ("a=z", {"x", "y"}),
        ("a=y", {"x", "y"}),
    ]


def test_what_the_pattern_shares_must_be_shared() -> None:
    graph = "graph(x: f32[2], y: f32[2], z: f32[2], u: f32[2]) { return add(mul(x, z), mul(u, y)) }"
    assert not matches(FACTOR, graph)


def test_attributes_are_solved_for() -> None:
    graph = """graph(x: f32[3,9]) {
      return slice(slice(x){axis=-1, start=2, stop=8}){axis=-1, start=1, stop=4}
    }"""
    assert [bindings(match) for match in matches(SLICES, graph)] == ["x=x, A=2, B=8, C=1, D=4, N=9"]
    assert not matches(SLICES, graph.replace("axis=-1, start=1, stop=4", "axis=-2, start=1, stop=3"))


@pytest.mark.parametrize(
    ("shape", "sizes"), [("2*N", {"N": 6}), ("N+4", {"N": 8}), ("5-N", None), ("5*N", None), ("12", {}), ("N*N", None)]
)
def test_a_size_that_is_an_expression_is_solved_or_refused(shape: str, sizes: dict[str, int] | None) -> None:
    rule = f"rule x: float[{shape}] source relu(relu(x)) target relu(x)"
    found = matches(rule, "graph(x: f32[12]) { return relu(relu(x)) }")
    assert [match.sizes for match in found] == ([] if sizes is None else [sizes])


def test_an_equation_may_wait_for_sizes_that_are_bound_later() -> None:
    rule = """rule x: float[M*N], y: float[M], z: float[N]
      source concat(x, concat(y, z){axis=-1}){axis=-1} target concat(concat(x, y){axis=-1}, z){axis=-1}"""
    graph = "graph(x: f32[6], y: f32[2], z: f32[3]) { return concat(x, concat(y, z){axis=-1}){axis=-1} }"
    assert [bindings(match) for match in matches(rule, graph)] == ["x=x, y=y, z=z, M=2, N=3"]
    assert not matches(rule, graph.replace("f32[6]", "f32[5]"))


def test_a_number_attribute_binds_a_bare_symbol() -> None:
    rule = """rule x: float[..B]
      source mul(mul(x, constant{value=S, dtype=float}), constant{value=T, dtype=float})
      target mul(mul(x, constant{value=T, dtype=float}), constant{value=S, dtype=float})"""
    graph = "graph(x: f16[2]) { return mul(mul(x, constant{value=0.5, dtype=f16}), constant{value=3.0, dtype=f16}) }"
    found = matches(rule, graph)
    assert [match.sizes for match in found] == [{"S": 0.5, "T": 3.0}]
    assert str(found[0].dtype) == "f16"


def test_one_floating_element_type_a_match() -> None:
    rule = "rule x: float[..B] source relu(relu(x)) target relu(x)"
    assert len(matches(rule, "graph(x: bf16[2]) { return relu(relu(x)) }")) == 1
    integer = "graph(x: i64[2], y: i64[2]) { return add(mul(x, y), mul(x, x)) }"
    assert not matches(FACTOR, integer)
    assert len(matches(FACTOR, integer.replace("i64", "f32"))) == 1


def test_preconditions_hold() -> None:
    rule = MERGE + "  where N-4 >= 0, P-N-1 == 0\n"
    assert [match.sizes["P"] for match in matches(rule, products(3))] == [5, 6]
    assert not matches(MERGE + "  where N-100 >= 0\n", products(3))


def test_sizes_that_a_model_leaves_open_satisfy_a_precondition_only_for_all_values() -> None:
    graph = "graph(x: f32[N+2]) { return relu(relu(x)) }"
    rule = "rule x: float[N] source relu(relu(x)) target relu(x) where "
    found = [len(matches(rule + condition, graph)) for condition in ("N-3 >= 0", "N-4 >= 0", "N-3 == 0", "2*N >= 6")]
    assert found == [1, 0, 0, 1]


def test_empty_tensors_never_match() -> None:
    assert not matches(SLICES, "graph(x: f32[0,9]) { return " + _slices("2", "8", "1", "4") + " }")
    assert not matches(SLICES, "graph(x: f32[3,9]) { return " + _slices("2", "8", "1", "1") + " }")


def _slices(*ends: str) -> str:
    a, b, c, d = ends
    return f"slice(slice(x){{axis=-1, start={a}, stop={b}}}){{axis=-1, start={c}, stop={d}}}"


def test_shared_interior_nodes_need_not_be_outputs() -> None:
    graph = "graph(x: f32[3,9]) { t = slice(x){axis=-1, start=2, stop=8} return slice(t){axis=-1, start=1, stop=4}, t }"
    assert len(matches(SLICES, graph)) == 1


def test_outputs_are_distinct() -> None:
    graph = 'graph(x: f32[1,8]) { w = weight{key="w", type=f32[8,4]} return matmul(x, w), relu(matmul(x, w)) }'
    assert not matches(MERGE, graph)


THREE = """rule x: float[A,K], y: float[B,K], z: float[C,K], w: float[K,N]
  source matmul(x, w), matmul(y, w), matmul(z, w)
  target t = matmul(concat(x, y, z){axis=-2}, w); slice(t){axis=-2, start=0, stop=A},
    slice(t){axis=-2, start=A, stop=A+B}, slice(t){axis=-2, start=A+B, stop=A+B+C}"""
TWO = """rule x: float[A,K], y: float[B,K], w: float[K,N]
  source matmul(x, w), matmul(y, w)
  target t = matmul(concat(x, y){axis=-2}, w);
    slice(t){axis=-2, start=0, stop=A}, slice(t){axis=-2, start=A, stop=A+B}"""
BELOW = """rule x: float[A,K], y: float[B,K], z: float[C,K], w: float[K,K]
  source matmul(matmul(x, w), w), matmul(y, w), matmul(z, w)
  target t = matmul(concat(matmul(x, w), y, z){axis=-2}, w); slice(t){axis=-2, start=0, stop=A},
    slice(t){axis=-2, start=A, stop=A+B}, slice(t){axis=-2, start=A+B, stop=A+B+C}"""


@pytest.mark.parametrize(("chains", "length", "count"), [(1, 6, 0), (3, 1, 1), (3, 2, 8), (2, 3, 0), (4, 2, 32)])
def test_of_many_outputs_none_is_computed_from_another(chains: int, length: int, count: int) -> None:
    """Chains of products with one matrix: two of a chain cannot be one."""
    lines = [f"a{i}0 = tanh(x{i})" for i in range(chains)]
    lines += [f"a{i}{k + 1} = tanh(matmul(a{i}{k}, w))" for i in range(chains) for k in range(length)]
    variables = ", ".join(f"x{i}: f32[1,8]" for i in range(chains))
    results = ", ".join(f"a{i}{length}" for i in range(chains))
    graph = f"graph({variables}, w: f32[8,8]) {{ {' '.join(lines)} return {results} }}"
    assert len(matches(THREE, graph)) == count
    index = GraphIndex(parse_graph(graph))
    every = [match for match in Matcher(read_rules(TWO)).matches(index) if not cyclic_path(match, index)]
    assert len(every) == math.comb(chains, 2) * length**2


def test_an_output_may_be_computed_from_another_where_the_rule_says_so() -> None:
    graph = """graph(x: f32[1,8], y: f32[1,8], w: f32[8,8]) {
      t = matmul(x, w)
      return matmul(t, w), t, matmul(y, w)
    }"""
    assert matches(BELOW, graph)
    assert not matches(THREE, graph)


def test_a_rule_whose_target_is_not_symmetric_keeps_both_orders() -> None:
    graph = "graph(x: f32[2,3], y: f32[2,3]) { return add(x, y) }"
    swap = """rule a: float[M,N], b: float[M,N]
      source add(a, b) target sub(a, mul(b, constant{value=-1.0, dtype=float}))"""
    merge = "rule a: float[M,N], b: float[M,N] source add(a, b) target add(mul(a, b), b)"
    symmetric = "rule a: float[M,N], b: float[M,N] source add(a, b) target mul(a, b)"
    assert [len(matches(rule, graph)) for rule in (swap, merge, symmetric)] == [2, 2, 1]


def test_around_finds_exactly_the_matches_that_contain_a_node() -> None:
    graph = parse_graph(products(4))
    matcher, index = Matcher(read_rules(MERGE)), GraphIndex(graph)
    everything = {matcher.as_found(match, index)[0]: match for match in matcher.matches(index)}
    for node in graph.nodes:
        found = {matcher.as_found(match, index)[0] for match in matcher.around(index, [node])}
        assert found == {identity for identity, match in everything.items() if node in match.nodes}


@pytest.mark.parametrize("every", [2, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["nasrnn", "inception_v3"])
def test_of_symmetric_matches_exactly_one_is_found_from_wherever_one_begins(name: str, every: int) -> None:
    module, args = zoo.get(name).make(0, small=True)
    index = GraphIndex(import_module(module, args).graph)
    rules = read_database()[::every]
    matcher, whole = Matcher(rules), Matcher(rules, keep_all=True)
    one, all_ = matcher.matches(index), whole.matches(index)
    found = {matcher.as_found(match, index)[0] for match in one}
    assert found == {matcher.as_found(match, index)[0] for match in all_}
    assert len(found) == len(one) < len(all_)
    for node in index.graph.nodes[:: len(index.graph.nodes) // 8]:
        near = {matcher.as_found(match, index)[0] for match in matcher.around(index, [node])}
        assert near == {matcher.as_found(match, index)[0] for match in whole.around(index, [node])}


@pytest.mark.parametrize("name", ["nasrnn", "resnext50_32x4d"])
def test_matches_that_compute_what_depends_on_weights_only_or_are_known_may_be_left_out(name: str) -> None:
    module, args = zoo.get(name).make(0, small=True)
    graph = import_module(module, args).graph
    # Something to match that is computed from weights, beside what is not: the weights of products, taken twice.
    weights = [
        n.inputs[1] for n in graph.nodes if n.op.name in ("matmul", "linear", "conv2d") and n.inputs[1].node.is_static
    ]
    doubled = {weight: make(Relu(), [make(Relu(), [weight]).value]).value for weight in weights}
    index = GraphIndex(graph.replace(doubled))
    matcher = Matcher(
        [*read_database(), *read_rules(f"{FACTOR} rule a: float[..B] source relu(relu(a)) target relu(a)")]
    )

    def is_running(match: Match) -> bool:
        return not all(node.is_static for node, _ in match.outputs)

    def identities(found: Sequence[Match]) -> list[Identity]:
        return [matcher.as_found(match, index)[0] for match in found]

    every = matcher.matches(index)
    running = identities(list(filter(is_running, every)))
    assert identities(matcher.matches(index, only_running=True)) == running
    assert 0 < len(running) < len(every)
    for node in index.graph.nodes[:: len(index.graph.nodes) // 8]:
        near = identities(list(filter(is_running, matcher.around(index, [node]))))
        assert identities(matcher.around(index, [node], only_running=True)) == near
        assert identities(matcher.around(index, [node], only_running=True, known=near[::2])) == near[1::2]


@pytest.mark.parametrize("name", ["bert_base", "nasrnn", "swin_t"])
def test_no_match_is_missed_for_where_matches_begin_or_when_rules_are_compiled(name: str) -> None:
    module, args = zoo.get(name).make(0, small=True)
    index = GraphIndex(import_module(module, args).graph)
    rules = read_database()[::2]
    matcher = Matcher(rules, keep_all=True)
    matcher.matches(parse_graph("graph(x: f32[4]) { return relu(x) }"))  # some are compiled before, some after it
    found = Counter(match.rule.id for match in matcher.matches(index))
    tried = Counter[str]()
    for pattern in map(compile_pattern, rules):
        root = pattern.outputs[0].number
        for node in index.graph.nodes:
            bound = embeddings(pattern, index, node, root)
            tried[pattern.rule.id] += sum(complete_match(pattern, embedding) is not None for embedding in bound)
    assert found == +tried
    assert found.total() > 10


def test_preconditions_that_tell_variables_apart_leave_no_symmetry() -> None:
    for condition, count in (("N-P >= 0", 2), ("N+P-4 >= 0", 1)):
        assert len(matches(MERGE + f"  where {condition}\n", products(2, sizes=(4, 4)))) == count


def test_a_pattern_without_a_common_operand_matches_anywhere() -> None:
    rule = "rule x: float[M], y: float[N] source relu(x), exp(y) target relu(x), exp(y)"
    graph = "graph(x: f32[2], y: f32[3]) { return relu(x), exp(y), relu(y) }"
    assert [bindings(match) for match in matches(rule, graph)] == ["x=x, y=y, M=2, N=3", "x=y, y=y, M=3, N=3"]


def test_matches_do_not_depend_on_what_was_matched_before() -> None:
    graph = parse_graph(products(5))
    matcher = Matcher(read_rules(MERGE + FACTOR + "\n" + SLICES))
    first = [bindings(match) for match in matcher.matches(graph)]
    matcher.matches(parse_graph(products(3)))
    assert [bindings(match) for match in matcher.matches(graph)] == first
    assert all(isinstance(match.values["a"].node.op, Weight) for match in matcher.matches(graph))


MERGE_THREE = """rule x: float[..G,M,K], a: float[K,N], b: float[K,N], c: float[K,N]
  source matmul(x, a), matmul(x, b), matmul(x, c)
  target matmul(x, a), matmul(x, c), matmul(x, b)
"""


@pytest.mark.parametrize("counts", [(1, 2, 3, 4), (4, 3, 2, 1)])
def test_where_to_begin_depends_on_how_many_nodes_read_an_operand(counts: Sequence[int]) -> None:
    matcher = Matcher(read_rules(MERGE + MERGE_THREE), keep_all=True)
    found = {count: matcher.matches(parse_graph(products(count, sizes=[4] * count))) for count in counts}
    of_three = {count: sum(len(match.nodes) == 3 for match in matches) for count, matches in found.items()}
    assert of_three == {1: 0, 2: 0, 3: 6, 4: 24}
    assert {count: len(matches) - of_three[count] for count, matches in found.items()} == {1: 0, 2: 2, 3: 6, 4: 12}


def test_inside_a_rule_readers_of_an_operand_may_be_one_node() -> None:
    rule = "rule a: float[M], b: float[M], c: float[M] source add(sub(a, b), exp(sub(a, c))) target sub(a, c)"
    graph = GraphIndex(parse_graph("graph(x: f32[4], y: f32[4]) { d = sub(x, y)  return add(d, exp(d)) }"))
    found = Matcher(read_rules(rule)).around(graph, graph.by_operator[Sub])
    assert [bindings(match) for match in found] == ["a=x, b=y, c=y, M=4"]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_where_to_begin_depends_on_the_number_of_operands_of_an_operand(order: tuple[int, int]) -> None:
    """The operator is the same with a bias and without."""
    biases = ("", ", bias")
    operands = "x: float[M,K], w: float[N,K]"
    rules = read_rules(
        f"rule {operands} source relu(linear(x, w)) target relu(matmul(x, permute(w){{order=[-1,-2]}}))\n"
        f"rule {operands}, bias: float[N] source relu(linear(x, w, bias)) target relu(add(linear(x, w), bias))"
    )
    matcher = Matcher(rules)
    for which in order:
        leaves = "x: f32[2,3], w: f32[4,3], bias: f32[4]"
        graph = parse_graph(f"graph({leaves}) {{ return relu(linear(x, w{biases[which]})) }}")
        assert [match.rule for match in matcher.matches(graph)] == [rules[which]]


@pytest.mark.parametrize(("number", "count"), [("6.0", 1), ("8.0", 0), ("6.5", 0)])
@pytest.mark.parametrize("order", ["div(sum(x){{axes=[-1]}}, {n})", "mul({n}, sum(x){{axes=[-1]}})"])
def test_a_symbol_stands_for_one_number_whether_it_is_a_size_or_not(order: str, number: str, count: int) -> None:
    source, body = order.format(n="constant{value=N, dtype=float}"), order.format(n="n")
    rule = f"rule x: float[M,2*N] source {source} target relu(mean(x){{axes=[-1]}})"
    graph = f"graph(x: f32[3,12]) {{ n = constant{{value={number}, dtype=f32}} return {body} }}"
    found = matches(rule, graph)
    assert len(found) == count
    assert all(isinstance(match.sizes["N"], int) for match in found), "a size is an integer"


@pytest.mark.parametrize(("number", "count"), [("12.0", 1), ("8.0", 0)])
def test_a_number_that_is_the_size_of_an_axis_is_a_size(number: str, count: int) -> None:
    rule = """rule x: float[M,N] source div(sum(x){axes=[-1]}, constant{value=N, dtype=float})
      target mean(slice(x){axis=-1, start=0, stop=N}){axes=[-1]}"""
    graph = f"""graph(x: f32[3,12]) {{ return div(sum(x){{axes=[-1]}}, constant{{value={number}, dtype=f32}}) }}"""
    found = matches(rule, graph)
    assert [match.sizes["N"] for match in found] == [12] * count
    assert all(isinstance(match.sizes["N"], int) for match in found)


def test_impure_nodes_are_left_alone() -> None:
    graph = """graph(x: f32[2]) {
      r = opaque#1(x){target="aten.rand_like.default", arguments=[$0], types=[f32[2]], is_pure=false}
      return relu(relu(r))
    }"""
    rule = "rule x: float[N] source relu(relu(x)) target relu(x)"
    found = matches(rule, graph)
    assert [match.values["x"].node.token for match in found] == [1]


@pytest.mark.parametrize(("more", "count"), [(0, 1), (3, 1), (-1, 1), (-2, 0), (-3, 0)])
def test_what_may_be_empty_for_some_of_the_sizes_that_a_model_leaves_open_never_matches(more: int, count: int) -> None:
    size = open_size(Open("x.0", 8, 2, None)) + more
    x = make(Input("x", TensorType(DType.F32, (size, 4)))).value
    relu = make(Relu(), [make(Relu(), [x]).value])
    (rule,) = read_rules("rule x: float[..B] source relu(relu(x)) target relu(x)")
    assert len(Matcher([rule]).matches(Graph((x.node,), relu.outputs))) == count


@pytest.mark.parametrize("number", ["C", "0.0", "-0.0"])
def test_a_number_stands_for_zero_of_one_sign(number: str) -> None:
    rule = """rule x: float[N]
      source add(mul(x, constant{value=C, dtype=float}), div(x, constant{value=C, dtype=float}))
      target sub(x, x)"""
    graph = (
        "graph(x: f32[2]) { return add(mul(x, constant{value=C, dtype=f32}), div(x, constant{value=D, dtype=f32})) }"
    )
    found = {
        (one, other)
        for one in ("0.0", "-0.0")
        for other in ("0.0", "-0.0")
        if matches(rule.replace("value=C", f"value={number}"), graph.replace("C", one).replace("D", other))
    }
    assert found == {(zero, zero) for zero in ("0.0", "-0.0") if number in ("C", zero)}


def test_where_to_begin_is_remembered_for_zero_of_one_sign() -> None:
    rule = "rule x: float[N] source div(x, constant{value=-0.0, dtype=float}) target sub(x, x)"
    matcher = Matcher(read_rules(rule))
    graphs = [f"graph(x: f32[2]) {{ return div(x, constant{{value={zero}, dtype=f32}}) }}" for zero in ("0.0", "-0.0")]
    assert [len(matcher.matches(parse_graph(graph))) for graph in graphs] == [0, 1]


@pytest.mark.parametrize(
    ("operator", "written", "zeros"),
    [
        ("rms_norm(x){axes=1, eps=C}", ["0.0", "-0.0"], [[1, 0], [0, 1]]),
        ("slice(x){axis=-1, start=C, stop=D}", ["0"], [[1, 0]]),
    ],
)
def test_a_name_stands_for_zero_of_one_sign_wherever_it_is(
    operator: str, written: list[str], zeros: list[list[int]]
) -> None:
    rule = f"rule x: float[N,M] source sub(constant{{value=C, dtype=float}}, {operator}) target {operator}"
    graph = f"graph(x: f32[2,3]) {{ return sub(constant{{value=Z, dtype=f32}}, {operator}) }}".replace("D", "2")
    found = [[matches(rule, graph.replace("C", one).replace("Z", zero)) for zero in ("0.0", "-0.0")] for one in written]
    assert [[len(some) for some in row] for row in found] == zeros


ROOT = "rule a: positive float[..B] source div(a, sqrt(a)) target sqrt(a)"
NOTHING = "rule a: nonnegative float[..B] source relu(a) target a"


@pytest.mark.parametrize(
    ("rule", "operand", "count"),
    [
        (ROOT, "x", 0),
        (ROOT, "relu(x)", 0),
        (ROOT, "exp(x)", 1),
        (ROOT, "p", 1),
        (ROOT, "n", 0),
        (ROOT, "add(mul(x, x), p)", 1),
        (NOTHING, "x", 0),
        (NOTHING, "mul(x, x)", 1),
        (NOTHING, "p", 1),
        (NOTHING, "n", 1),
        (NOTHING, "sub(n, p)", 0),
    ],
)
def test_a_variable_with_a_sign_stands_for_what_evidently_has_it(rule: str, operand: str, count: int) -> None:
    result = "div({0}, sqrt({0}))" if rule is ROOT else "relu({0})"
    inputs = "x: f32[4], p: positive f32[4], n: nonnegative f32[4]"
    assert len(matches(rule, f"graph({inputs}) {{ return {result.format(operand)} }}")) == count


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_where_to_begin_does_not_depend_on_signs_met_before(order: tuple[int, int]) -> None:
    """A rule is not tried in vain again where operators and types are the same; signs are no part of that."""
    matcher = Matcher(read_rules(ROOT))
    graphs = [parse_graph(f"graph(x: {sign} f32[4]) {{ return div(x, sqrt(x)) }}") for sign in ("", "positive")]
    assert [len(matcher.matches(graphs[place])) for place in order] == [*order]


@pytest.mark.parametrize("signs", [("", "positive"), ("positive", "")])
def test_signs_that_tell_variables_apart_leave_no_symmetry(signs: tuple[str, str]) -> None:
    a, b = signs
    rule = f"rule a: {a} float[N], b: {b} float[N] source log(mul(a, b)) target add(log(a), log(b))"
    (match,) = matches(rule, "graph(x: f32[4], p: positive f32[4]) { return log(mul(x, p)) }")
    assert {name: sign_of(value).label for name, value in match.values.items()} == {"a": a, "b": b}
