"""Subgraphs: all connected ones are found once, and forms are equal exactly for isomorphic ones."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import combinations

import networkx as nx
import pytest

from experiments.subgraphs import MOST_NEIGHBOURS, Dataflow, SubgraphForms, connected_sets, operator_name
from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, is_running, make
from taso_py.ir.operator import Constant, Input, Weight
from taso_py.ir.types import DType, TensorType
from taso_py.ops.elementwise import Add, Mul, Relu, Sigmoid, Sub
from taso_py.ops.table import parse_graph

TYPE = TensorType(DType.F32, (4,))


def form(text: str) -> str:
    """The form of all operators of a graph that run."""
    return SubgraphForms().of(Dataflow(parse_graph(text)).nodes)


@pytest.mark.parametrize("seed", range(8))
def test_connected_sets_are_found_once_each(seed: int) -> None:
    graph: nx.Graph[int] = nx.gnp_random_graph(9, 0.3, seed=seed)
    neighbours = [sum(1 << other for other in graph[vertex]) for vertex in graph]
    found = [frozenset(numbers) for numbers in connected_sets(neighbours, 4)]
    wanted = {
        frozenset(chosen)
        for size in (2, 3, 4)
        for chosen in combinations(graph, size)
        if nx.is_connected(graph.subgraph(chosen))
    }
    assert len(found) == len(set(found))
    assert set(found) == wanted
    assert wanted


def test_neighbours_read_each_other_and_hubs_have_none() -> None:
    readers = "\n".join(f"v{i} = linear(h, w{i})" for i in range(MOST_NEIGHBOURS))
    weights = "\n".join(f'w{i} = weight{{key="w{i}", type=f32[4,4]}}' for i in range(MOST_NEIGHBOURS))
    results = ", ".join(f"v{i}" for i in range(MOST_NEIGHBOURS))

    def dataflow(more: str, result: str) -> Dataflow:
        text = f"graph(x: f32[4]) {{\n{weights}\nh = relu(x)\n{readers}\n{more}return {results}{result}\n}}"
        return Dataflow(parse_graph(text))

    connected = dataflow("", "")
    assert len(connected.nodes) == MOST_NEIGHBOURS + 1
    (hub,) = (number for number, node in enumerate(connected.nodes) if isinstance(node.op, Relu))
    assert connected.neighbours[hub] == connected.mask(connected.nodes) - (1 << hub)
    assert all(around == 1 << hub for number, around in enumerate(connected.neighbours) if number != hub)
    assert not any(dataflow("more = sigmoid(h)\n", ", more").neighbours)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("graph(x: f32[4]) { return mul(x, sigmoid(x)) }", "mul(a, sigmoid(a))"),
        ("graph(x: f32[4], y: f32[4]) { return mul(x, sigmoid(y)) }", "mul(a, sigmoid(b))"),
        ("graph(x: f32[4], y: f32[4]) { return sub(relu(x), y) }", "sub(relu(a), b)"),
        (
            """graph(x: f32[4]) {
              w = weight{key="w", type=f32[4]}
              return add(mul(x, w), constant{value=2, dtype=f32})
            }""",
            "add(2, mul(a, w))",
        ),
        (
            "graph(x: f32[4]) { return mul(relu(x), constant{value=0.3, dtype=f32}) }",
            "mul(c, relu(a))",
        ),
        ("graph(x: f32[4]) { h = relu(x)\n return sigmoid(h), tanh(h) }", "t0 = relu(a); sigmoid(t0), tanh(t0)"),
        ("graph(x: f32[4]) { return relu(x), sigmoid(x) }", "relu(a), sigmoid(a)"),
        (
            "graph(x: f32[2,8]) { return softmax(reshape(x){shape=[2,4,2]}){axis=-2} }",
            "softmax(reshape(a){rank=2 to 3}){axis=-2}",
        ),
        ("graph(x: i64[4]) { return add(x, constant{value=1, dtype=i64}) }", "add(1, a){of=i64}"),
        (
            """graph(x: f32[4]) {
              return relu(opaque(x){target="aten.cumsum.default", arguments=[$0,0], types=[f32[4]]})
            }""",
            "relu(aten.cumsum(a))",
        ),
    ],
)
def test_what_forms_show(text: str, wanted: str) -> None:
    assert form(text) == wanted


@pytest.mark.parametrize(
    ("weight", "groups", "wanted"),
    [
        ("f32[8,4,1,1]", 1, "{1x1}"),
        ("f32[8,4,3,3]", 1, "{larger}"),
        ("f32[8,1,3,3]", 4, "{larger, depthwise}"),
        ("f32[8,2,1,1]", 2, "{1x1, grouped}"),
    ],
)
def test_convolutions_show_kernel_and_groups(weight: str, groups: int, wanted: str) -> None:
    text = f'graph(x: f32[1,4,9,9]) {{ w = weight{{key="w", type={weight}}}\n return conv2d(x, w){{groups={groups}}} }}'
    assert form(text) == f"conv2d(a, w){wanted}"


def random_sets(rng: random.Random, count: int) -> list[tuple[Node, ...]]:
    """Connected sets of nodes of random graphs."""
    found: list[tuple[Node, ...]] = []
    while len(found) < count:
        values = [make(Input(name, TYPE)).value for name in "xy"]
        values += [make(Weight("w", TYPE)).value, make(Constant(2.0, DType.F32)).value]
        for _ in range(6):
            op = rng.choice([Relu(), Sigmoid(), Add(), Mul(), Sub()])
            operands = [rng.choice(values) for _ in range(op.arity[1])]
            node = make(op, operands)
            if is_running(node):
                values.append(node.value)
        dataflow = Dataflow(Graph((), tuple(values)))
        sets = [chosen for chosen in connected_sets(dataflow.neighbours, 5) if len(chosen) > 1]
        found += [tuple(dataflow.nodes[number] for number in chosen) for chosen in rng.sample(sets, min(6, len(sets)))]
    return found


def labelled(nodes: Sequence[Node]) -> nx.MultiDiGraph[object]:
    """Nodes and their operands from outside as a graph whose edges have the position of operands, where it matters."""
    view: nx.MultiDiGraph[object] = nx.MultiDiGraph()
    for node in nodes:
        view.add_node(node, label=operator_name(node))
    for node in nodes:
        for position, value in enumerate(node.inputs):
            vertex: object = value.node
            if value.node not in nodes:
                is_variable = not value.node.is_static
                vertex = value if is_variable else (node, position)
                constant = "number" if isinstance(value.node.op, Constant) else "weight"
                view.add_node(vertex, label="variable" if is_variable else constant)
            view.add_edge(vertex, node, position=0 if node.op.commutative else position)
    return view


@pytest.mark.parametrize("seed", range(4))
def test_forms_are_equal_exactly_for_isomorphic_sets(seed: int) -> None:
    rng = random.Random(seed)
    sets, forms = random_sets(rng, 40), SubgraphForms()
    texts = [forms.of(rng.sample(nodes, len(nodes))) for nodes in sets]
    match_nodes = nx.algorithms.isomorphism.categorical_node_match("label", None)
    match_edges = nx.algorithms.isomorphism.categorical_multiedge_match("position", None)
    views = [labelled(nodes) for nodes in sets]
    equal = 0
    for (one, first), (other, second) in combinations(zip(texts, views, strict=True), 2):
        same = nx.is_isomorphic(first, second, node_match=match_nodes, edge_match=match_edges)
        assert (one == other) == same, (one, other)
        equal += same
    assert 0 < equal < len(sets) ** 2 / 4


def test_the_order_of_a_set_does_not_matter() -> None:
    nodes = random_sets(random.Random(9), 1)[0]
    forms = SubgraphForms()
    assert forms.of(nodes) == forms.of(nodes[::-1])
