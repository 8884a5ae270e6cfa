"""Operators of a kind that have nothing in common, as one of a batch; sums and joins of the parts of what it gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from taso_py.ir.graph import Graph
from taso_py.ir.node import make
from taso_py.ops.elementwise import Add
from taso_py.ops.table import parse_graph
from taso_py.rules.apply import apply
from taso_py.rules.lemma import LEMMA, Lemmas
from taso_py.rules.substitution import Substitution
from taso_py.rules.verdict import Numerics, Outcome
from taso_py.search.backtracking import search
from taso_py.search.result import Limits
from taso_py.search.rolling import roll_up
from tests.rules.examples import assert_follows, assert_replayed, lemmas, rules, running
from tests.search.examples import FakeCost
from verify import check, prove

MOST_TO_PROVE = 5
"""The prover takes graphs of up to a hundred operators."""
LAYER = "linear(x{0}, w{0}, b{0})"


def members(
    count: int, done: str = LAYER, data: str = "3,4", weight: str = "5,4", bias: str = "5", part: str = "", of: str = ""
) -> Graph:
    """What is computed of values by weights, of each by its own; the values may be parts of one."""
    places = range(count)
    inputs = f"y: f32[{of}]" if of else ", ".join(f"x{i}: f32[{data}]" for i in places)
    weights = "".join(
        f'w{i} = weight{{key="w.{i}", type=f32[{weight}]}} b{i} = weight{{key="b.{i}", type=f32[{bias}]}} '
        for i in places
    )
    taken = "".join(f"x{i} = {part.format(i, i * 3, i * 3 + 3, i * 4, i * 4 + 4, i + 1)} " for i in places if of)
    results = ", ".join(f"tanh({done.format(i)})" for i in places)
    return parse_graph(f"graph({inputs}) {{ {weights} {taken} return {results} }}")


def assert_true(lemma: Substitution) -> None:
    """Fail if random numbers tell the sides of a lemma apart, or if they would not tell it from a wrong one."""
    assert check(lemma).outcome is not Outcome.REFUTED
    wrong = make(Add(), [lemma.target.outputs[0], lemma.target.outputs[0]]).value
    assert check(replace(lemma, target=Graph(lemma.source.inputs, (wrong,)))).outcome is Outcome.REFUTED


def parts(count: int, shape: Sequence[int], done: str, order: Sequence[int] = ()) -> Graph:
    """What is computed of the elements of a batch of values of a shape."""
    sizes = ",".join(map(str, shape))
    taken = [
        f"reshape(slice(x){{axis={-len(shape) - 1}, start={i}, stop={i + 1}}}){{shape=[{sizes}]}}"
        for i in order or range(count)
    ]
    return parse_graph(f"graph(x: f32[{count},{sizes}], y: f32[{sizes}]) {{ return {done.format(*taken)} }}")


def total(count: int) -> str:
    """The sum of values, one added after the other."""
    return "{0}" if count == 1 else f"add({total(count - 1)}, {{{count - 1}}})"


@pytest.mark.parametrize(
    ("graph", "left"),
    [
        (members(3), ["concat", "matmul", "add"]),
        (members(12), ["concat", "matmul", "add"]),
        (members(4, "linear(x{0}, w{0})"), ["concat", "matmul"]),
        (members(4, "linear(x{0}, w{0})", data="1,3,4"), ["concat", "matmul"]),
        (members(4, data="1,3,4"), ["concat", "matmul", "add"]),
        (members(4, "matmul(x{0}, w{0})", weight="4,5"), ["concat", "matmul"]),
    ],
)
def test_layers_with_nothing_in_common_are_one_product(graph: Graph, left: list[str]) -> None:
    (match,) = lemmas(graph)
    after = apply(graph, match)
    assert after is not None
    assert [name for name in running(after) if name != "tanh"] == left
    assert match.rule.numerics is Numerics.REORDER
    assert match.rule.proof == LEMMA
    assert prove(match.rule).outcome is Outcome.PROVED or len(graph.outputs) > MOST_TO_PROVE


@pytest.mark.parametrize(
    ("done", "weight", "bias", "left"),
    [
        (LAYER, "5,4", "5", ["matmul", "add"]),
        ("mul(x{0}, w{0})", "4", "5", ["mul"]),
        ("div(x{0}, w{0})", "3,1", "5", ["div"]),
        ("sub(w{0}, x{0})", "3,4", "5", ["sub"]),
        ("layer_norm(x{0}, w{0}, b{0}){{axes=1, eps=0.1}}", "4", "4", ["layer_norm", "mul", "add"]),
    ],
)
@pytest.mark.parametrize(
    ("of", "part"),
    [
        ("3,20", "slice(y){{axis=-1, start={3}, stop={4}}}"),
        ("15,4", "slice(y){{axis=-2, start={1}, stop={2}}}"),
        ("5,3,4", "reshape(slice(y){{axis=-3, start={0}, stop={5}}}){{shape=[3,4]}}"),
        ("3,5,4", "reshape(slice(y){{axis=-2, start={0}, stop={5}}}){{shape=[3,4]}}"),
        ("3,4,5", "reshape(slice(y){{axis=-1, start={0}, stop={5}}}){{shape=[3,4]}}"),
    ],
)
def test_parts_of_one_value_are_not_copied(
    done: str, weight: str, bias: str, left: list[str], of: str, part: str
) -> None:
    (match,) = lemmas(members(5, done, weight=weight, bias=bias, of=of, part=part))
    assert len(match.outputs) == 5
    copied = [node for node in match.rule.target.nodes if node.op.name == "concat"]
    assert all(f"[{of}]" not in value.node.inputs[0].type.text for node in copied for value in node.inputs)
    assert set(running(match.rule.target)) == {*left, "concat"}
    assert prove(match.rule).outcome is Outcome.PROVED


@pytest.mark.parametrize(
    "graph",
    [
        members(2),
        members(4, "linear(x0, w{0}, b{0})"),
        members(4, "linear(x{0}, w0, b{0})"),
        members(4, "mul(x{0}, w{0})", weight="3,4"),
        members(4, data="2,3,4"),
    ],
)
def test_what_is_few_or_shared_or_would_only_be_copied_stays(graph: Graph) -> None:
    assert not lemmas(graph)


def test_parts_with_gaps_are_copied() -> None:
    taken = "x0 = slice(y){axis=-1, start=0, stop=4} x1 = slice(y){axis=-1, start=4, stop=12, step=2} "
    taken += "x2 = slice(y){axis=-1, start=12, stop=16} "
    weights = "".join(f'w{i} = weight{{key="w.{i}", type=f32[5,4]}} ' for i in range(3))
    (match,) = lemmas(
        parse_graph(
            f"graph(y: f32[3,16]) {{ {taken} {weights} return linear(x0, w0), linear(x1, w1), linear(x2, w2) }}"
        )
    )
    assert [type_.text for node in match.rule.source.inputs for type_ in node.types] == ["f32[3,4]"] * 3 + [
        "f32[5,4]"
    ] * 3


def test_layers_one_after_the_other_are_no_batch() -> None:
    layers = "".join(f'w{i} = weight{{key="w.{i}", type=f32[4,4]}} x{i + 1} = linear(x{i}, w{i}) ' for i in range(9))
    assert not lemmas(parse_graph(f"graph(x0: f32[3,4]) {{ {layers} return x9 }}"))


def test_members_are_in_the_order_of_their_names() -> None:
    graph = members(12)
    (match,) = lemmas(replace(graph, outputs=graph.outputs[::-1]))
    assert [node.inputs[1].node.op.text.split('"')[1] for node, _ in match.outputs] == [f"w.{i}" for i in range(12)]


@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 3, 4)])
@pytest.mark.parametrize("order", [(), (3, 0, 4, 1, 2)])
def test_a_sum_of_parts_is_one_over_an_axis(shape: Sequence[int], order: Sequence[int]) -> None:
    (match,) = lemmas(parts(5, shape, total(5), order))
    sizes = ",".join(map(str, shape))
    assert match.rule.statement.partition("target ")[2] == f"sum(v0){{axes=[{-len(shape) - 1}]}}"
    assert match.rule.source.inputs[0].types[0].text == f"f32[5,{sizes}]"
    assert match.rule.numerics is Numerics.REORDER
    assert_true(match.rule)


@pytest.mark.parametrize(
    "done",
    [
        "add(add({0}, {1}), add({2}, y))",
        "add(constant{{value=1.0, dtype=f32}}, add(add({0}, {1}), {2}))",
        "add(add(y, {0}), add(y, add({1}, {2})))",
    ],
)
def test_other_addends_are_added_as_often_as_before(done: str) -> None:
    (match,) = lemmas(parts(3, (2, 3), done))
    assert running(match.rule.target).count("sum") == 1
    assert running(match.rule.target).count("add") == done.count("add") - 2
    assert_true(match.rule)


@pytest.mark.parametrize(
    "done",
    ["add({0}, {1})", "add(add({0}, {1}), {1})", "add(add({0}, {0}), {0})", "add(tanh(add({0}, {1})), {2})"],
)
def test_few_parts_and_those_added_twice_are_no_sum_over_an_axis(done: str) -> None:
    assert not lemmas(parts(3, (2, 3), done))


def test_a_sum_that_is_added_twice_counts_twice() -> None:
    graph = parse_graph(
        "graph(x: f32[4,3]) {"
        + "".join(f" e{i} = reshape(slice(x){{axis=-2, start={i}, stop={i + 1}}}){{shape=[3]}}" for i in range(4))
        + " t = add(e0, e1) return add(add(t, e2), add(t, e3)) }"
    )
    assert all(assert_true(match.rule) is None for match in lemmas(graph))


@pytest.mark.parametrize(
    ("shape", "axis"), [((4,), -1), ((3, 4), -1), ((3, 4), -2), ((2, 3, 4), -1), ((2, 3, 4), -2), ((2, 3, 4), -3)]
)
def test_a_join_of_parts_is_a_view(shape: Sequence[int], axis: int) -> None:
    joined = f"concat({{0}}, {{1}}, {{2}}){{{{axis={axis}}}}}"
    (match,) = lemmas(parts(3, shape, joined))
    assert not running(match.rule.target)
    assert match.rule.numerics is Numerics.EXACT
    assert_true(match.rule)
    assert not lemmas(parts(3, shape, joined, order=(0, 2, 1)))
    assert not lemmas(parts(3, shape, joined.replace("{1}", "{0}")))


@pytest.mark.parametrize(
    "graph", [members(5), parts(5, (3, 4), total(5)), parts(5, (3, 4), "concat({0}, {1}, {2}){{axis=-1}}")]
)
def test_a_lemma_follows_from_its_rules_and_no_others(graph: Graph) -> None:
    (match,) = lemmas(graph)
    assert_follows(match)


def test_an_ensemble_is_three_products_and_its_trace_is_replayed() -> None:
    """No step pays by itself: the parts that the first layer's results are taken apart to cost more than it gains."""
    layers = "".join(
        f'w{i} = weight{{key="w.{i}", type=f32[4,4]}} v{i} = weight{{key="v.{i}", type=f32[2,4]}} '
        f"t{i} = linear(relu(linear(x{i}, w{i})), v{i}) "
        for i in range(5)
    )
    inputs = ", ".join(f"x{i}: f32[3,4]" for i in range(5))
    graph = parse_graph(f"graph({inputs}) {{ {layers} return {total(5).format(*(f't{i}' for i in range(5)))} }}")
    cost = FakeCost({"slice": 1.0, "reshape": 1.0})
    found = search(graph, rules(), cost, Limits(seconds=60.0)).best
    assert running(found.graph) == ["concat", "matmul", "relu", "matmul", "sum"]
    assert_replayed(graph, found)


def test_gates_of_two_layers_are_two_products_and_one_sum() -> None:
    """A few products of one value are left to ordinary rules unless other lemmas are about what they lead to."""
    names = range(4)
    weights = "".join(f'{n}{i} = weight{{key="{n}.{i}", type=f32[8,8]}} ' for n in "wu" for i in names)
    sums = ", ".join(f"tanh(add(matmul(x, w{i}), matmul(h, u{i})))" for i in names)
    products = ", ".join(f"tanh(matmul(x, w{i}))" for i in names)
    cell, only = (parse_graph(f"graph(x: f32[3,8], h: f32[3,8]) {{ {weights} return {r} }}") for r in (sums, products))
    cost = FakeCost({"slice": 0.1})
    *_, (_, end) = roll_up(cell, Lemmas(rules()), cost, Limits())
    assert sorted(running(end)) == ["add", "matmul", "matmul", *["tanh"] * 4]
    assert not list(roll_up(only, Lemmas(rules()), cost, Limits()))
    assert search(only, rules(), cost).best.seconds < cost.graph_cost(only)
