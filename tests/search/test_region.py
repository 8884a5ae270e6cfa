"""Regions: where graphs are cut, and which regions are the same."""

import pytest

from taso_py.ir.graph import Graph
from taso_py.ir.text import print_graph
from taso_py.ops.signs import sign_of
from taso_py.ops.table import parse_graph
from taso_py.search.region import LEAST, GraphRegion, correspondence, cut, output_forms
from tests.search.examples import products, recurrent


def blocks(count: int, width: int = 6) -> Graph:
    """Blocks of parallel branches on one value, each block ending in a sum."""
    lines: list[str] = []
    for block in range(count):
        source = f"h{block}"
        lines += [f"b{i} = relu(tanh({source}))" if i % 2 else f"b{i} = exp({source})" for i in range(width)]
        lines.append("s = add(b0, b1)")
        lines += [f"s = add(s, b{i})" for i in range(2, width)]
        lines.append(f"h{block + 1} = add(s, {source})")
    body = "\n".join(lines)
    return parse_graph(f"graph(h0: f32[4]) {{ {body} return h{count} }}")


def put_together(graph: Graph, regions: list[GraphRegion]) -> int:
    """How many nodes that run the regions hold, after checking that each reads only what was computed before."""
    known = {node.value for node in graph.inputs}
    for region in regions:
        assert {value for value in region.inputs if not value.node.inputs} <= known
        assert all(value in known for value in region.inputs)
        known |= set(region.outputs)
    assert set(graph.outputs) <= known
    return sum(bool(node.inputs) and not node.is_static for region in regions for node in region.graph.nodes)


@pytest.mark.parametrize("graph", [blocks(1), blocks(5), recurrent(3), products(4)])
def test_regions_hold_every_node_once_and_come_in_order(graph: Graph) -> None:
    running = sum(bool(node.inputs) and not node.is_static for node in graph.nodes)
    assert put_together(graph, cut(graph)) == running


def test_blocks_are_cut_where_a_single_value_crosses_and_are_the_same() -> None:
    regions = cut(blocks(6))
    assert len(regions) == 6
    assert all(len(region.inputs) == len(region.outputs) == 1 for region in regions)
    assert all(correspondence(regions[0].graph, region.graph) is not None for region in regions)


def test_cuts_may_be_avoided() -> None:
    graph = blocks(6)
    first = cut(graph)
    avoid = frozenset(value for region in first for value in region.outputs if value not in graph.outputs)
    again = cut(graph, avoid)
    assert put_together(graph, again) == put_together(graph, first)
    assert avoid.isdisjoint(value for region in again for value in region.outputs)


def test_products_on_one_input_stay_together() -> None:
    assert len(cut(products(60))) == 1


def test_nodes_that_are_not_pure_lie_between_regions() -> None:
    chain = "relu(" * LEAST + "{}" + ")" * LEAST
    graph = parse_graph(
        f"""graph(x: f32[2]) {{
          a = {chain.format("x")}
          r = opaque#0(a){{target="aten.rand_like.default", arguments=[$0], types=[f32[2]], is_pure=false}}
          return {chain.format("r")}
        }}"""
    )
    before, after = cut(graph)
    assert before.outputs[0].node is after.inputs[0].node.inputs[0].node
    assert "opaque" not in print_graph(before.graph) + print_graph(after.graph)


LINE = (
    "graph(x: f32[2,4], y: f32[2,4]) {{ a = weight{{key={}, type=f32[4,4]}} b = weight{{key={}, type=f32[4,4]}} {} }}"
)


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (LINE.format('"a"', '"b"', "return add(matmul(x, a), matmul(y, b)), relu(x)"), True),
        (LINE.format('"c"', '"d"', "return add(matmul(x, a), matmul(y, b)), relu(y)"), True),
        (LINE.format('"c"', '"d"', "return add(matmul(y, b), matmul(x, a)), relu(x)"), True),
        (LINE.format('"c"', '"d"', "return add(matmul(x, a), matmul(y, a)), relu(x)"), False),
        (LINE.format('"c"', '"d"', "return add(matmul(x, a), matmul(y, b)), relu(matmul(x, a))"), False),
        (LINE.format('"c"', '"d"', "return add(matmul(x, a), matmul(y, b)), tanh(x)"), False),
        (LINE.format('"c"', '"d"', "return add(matmul(x, a), matmul(y, b)), relu(x), relu(y)"), False),
    ],
)
def test_regions_that_differ_in_inputs_and_weights_only_correspond(other: str, same: bool) -> None:
    one = parse_graph(LINE.format('"a"', '"b"', "return add(matmul(x, a), matmul(y, b)), relu(x)"))
    found = correspondence(one, parse_graph(other))
    assert (found is not None) == same
    # So it is told apart from most that differ before a correspondence is tried.
    numbers: dict[object, int] = {}
    is_alike = output_forms(one, numbers) == output_forms(parse_graph(other), numbers)
    assert is_alike == (same or "y, a" in other)
    if found is not None:
        assert all(type(node.op) is type(there.op) and node.types == there.types for node, there in found.items())


def test_inputs_of_regions_have_the_signs_of_what_they_stand_for() -> None:
    graph = blocks(5)
    for region in cut(graph):
        signs = [sign_of(value) for value in region.inputs]
        assert [sign_of(leaf.value) for leaf in region.graph.inputs] == signs


def test_regions_that_read_values_of_other_signs_do_not_correspond() -> None:
    graphs = [parse_graph(f"graph(x: {sign} f32[4]) {{ return relu(x) }}") for sign in ("nonnegative", "positive")]
    assert correspondence(graphs[0], graphs[0]) is not None
    assert correspondence(graphs[0], graphs[1]) is None
    numbers: dict[object, int] = {}
    assert output_forms(graphs[0], numbers) != output_forms(graphs[1], numbers)
