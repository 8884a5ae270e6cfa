"""What substitutions changed, followed from graph to graph, and how it is drawn."""

from __future__ import annotations

from collections.abc import Iterable

from taso_py.ir.graph import Graph
from taso_py.ir.node import Node
from taso_py.ops.table import parse_graph
from taso_py.report.difference import ChangedRegion, GraphDifference, difference
from taso_py.report.drawing import WIDEST, draw, elide
from taso_py.report.optimization_page import MOST_NODES, changes
from taso_py.rules.apply import apply
from taso_py.rules.match import Match, Matcher
from taso_py.rules.substitution import Substitution
from taso_py.rules.text import read_rules

(MERGE,) = read_rules("""rule x: float[..G,M,K], a: float[N,K], b: float[P,K]
  source linear(x, a), linear(x, b)
  target t = linear(x, concat(a, b){axis=-2}); slice(t){axis=-1, start=0, stop=N}, slice(t){axis=-1, start=N, stop=N+P}
  numerics REORDER
""")
TWICE = """graph(x: f32[2,3], y: f32[2,3]) {
  v0 = linear(x, weight{key="a", type=f32[4,3]})
  v1 = relu(linear(x, weight{key="b", type=f32[4,3]}))
  v2 = add(tanh(v0), v1)
  v3 = linear(y, weight{key="c", type=f32[5,3]})
  v4 = linear(y, weight{key="d", type=f32[4,3]})
  return v2, concat(v3, v4){axis=-1}
}"""


def applied(text: str, rule: Substitution = MERGE) -> GraphDifference:
    """The difference that applying a rule wherever it fits makes, each match of an original node once."""
    before = parse_graph(text)
    steps: list[tuple[Match, Graph]] = []
    graph = before
    while len(steps) < 4:
        linears = {node for node in before.nodes if node.op.name == "linear"}
        matches = [m for m in Matcher([rule]).matches(graph) if set(m.nodes) <= linears]
        after = next(((m, g) for m in matches if (g := apply(graph, m)) is not None), None)
        if after is None:
            break
        steps.append(after)
        graph = after[1]
    return difference(before, steps)


def names(nodes: Iterable[Node]) -> list[str]:
    return [node.op.name for node in nodes]


def test_what_follows_a_change_stays() -> None:
    found = applied(TWICE)
    assert [names(region.removed) for region in found.regions] == [["linear", "linear"]] * 2
    assert [names(region.added) for region in found.regions] == [["concat", "linear", "slice", "slice"]] * 2
    kept = [node for node in found.stayed if node.inputs]
    assert sorted(names(kept)) == ["add", "concat", "relu", "tanh"]
    assert all(node.op == found.stayed[node].op and node is not found.stayed[node] for node in kept)


def test_every_operator_stayed_went_or_came() -> None:
    found = applied(TWICE)
    removed = {node for region in found.regions for node in region.removed}
    added = {node for region in found.regions for node in region.added}
    for graph, changed, kept in (
        (found.before, removed, set(found.stayed.values())),
        (found.after, added, set(found.stayed)),
    ):
        operators = {node for node in graph.nodes if node.inputs}
        assert operators <= changed | kept
        assert not changed & kept


def test_without_steps_nothing_changed() -> None:
    graph = parse_graph(TWICE)
    found = difference(graph, [])
    assert found.regions == ()
    assert set(found.stayed) == set(graph.nodes)
    assert changes(found) == []


def test_a_small_graph_is_drawn_whole() -> None:
    (change,) = changes(applied(TWICE))
    assert (change.removed, change.added, change.count) == (4, 8, 1)
    states = {box.lines[0]: box.state for box in change.before.boxes}
    assert states == {
        "x": "outside", "y": "outside", "linear": "removed", "relu": "same", "tanh": "same", "add": "same",
        "concat": "same",
    }  # fmt: skip
    assert {box.lines[0] for box in change.after.boxes if box.state == "added"} == {"linear", "slice", "concat"}


def test_alike_parts_of_a_large_graph_are_drawn_once() -> None:
    pairs = "\n".join(
        f'  p{i} = linear(x{i}, weight{{key="a{i}", type=f32[4,3]}})\n'
        f'  q{i} = linear(x{i}, weight{{key="b{i}", type=f32[4,3]}})\n'
        f"  r{i} = mul(tanh(sigmoid(relu(add(p{i}, q{i})))), q{i})"
        for i in range(4)
    )
    inputs = ", ".join(f"x{i}: f32[2,3]" for i in range(4))
    text = f"graph({inputs}) {{\n{pairs}\n  return {', '.join(f'r{i}' for i in range(4))}\n}}"
    (change,) = changes(applied(text))
    assert change.count == 4
    assert (change.removed, change.added) == (2, 4)
    # The part, the input that it reads, and what reads it; nothing else.
    assert sorted(box.lines[0] for box in change.before.boxes) == ["add", "linear", "linear", "mul", "x0"]


def overlaps(text: str) -> bool:
    boxes = draw(parse_graph(text).nodes, lambda _: "same").boxes
    return any(
        a is not b and a.x < b.x + b.width and b.x < a.x + a.width and a.y < b.y + b.height and b.y < a.y + a.height
        for a in boxes
        for b in boxes
    )


def test_boxes_do_not_overlap_and_operands_are_above() -> None:
    assert not overlaps(TWICE)
    graph = parse_graph(TWICE)
    drawing = draw(graph.nodes, lambda _: "same")
    top = {box.lines[0]: box.y for box in drawing.boxes}
    assert top["x"] < top["linear"] < top["relu"] < top["add"]
    assert all(box.x >= 0 and box.x + box.width <= drawing.width for box in drawing.boxes)
    assert all(box.y >= 0 and box.y + box.height <= drawing.height for box in drawing.boxes)
    assert drawing == draw(graph.nodes, lambda _: "same")


def test_many_alike_operators_are_one_box() -> None:
    weights = [f'linear(x, weight{{key="w{i}", type=f32[4,3]}})' for i in range(3)]
    text = f"graph(x: f32[2,3]) {{\n  return {', '.join(weights)}\n}}"
    drawing = draw(parse_graph(text).nodes, lambda _: "same")
    assert [box.lines for box in drawing.boxes] == [("x", "f32[2,3]"), ("linear × 3", "f32[2,4]", "w0, w1, w2")]
    assert len(drawing.paths) == 1


def test_a_long_name_is_cut_in_its_middle_and_told_whole_on_pointing() -> None:
    keys = [
        f"transformer_blocks.11.self_attention.{name}_projection.weight" for name in ("query", "key", "value", "out")
    ]
    weights = [f'linear(x, weight{{key="{key}", type=f32[4,3]}})' for key in keys]
    drawing = draw(parse_graph(f"graph(x: f32[2,3]) {{\n  return {', '.join(weights)}\n}}").nodes, lambda _: "same")
    box = drawing.boxes[1]
    assert box.lines[2:] == (*map(elide, keys[:3]), "and 1 more")
    assert all(len(line) <= WIDEST for line in box.lines)
    assert all(line.startswith("transformer_") and line.endswith("_projection.weight") for line in box.lines[2:5])
    assert len(set(box.lines[2:5])) == 3
    assert all(key in box.title for key in keys)
    assert elide("a" * WIDEST) == "a" * WIDEST


def test_a_graph_of_some_hundred_operators_is_drawn_in_readable_parts() -> None:
    """No picture grows with the graph, and none is so wide that its letters shrink."""
    rows = [f'  v{i} = relu(linear(v{i - 1}, weight{{key="w{i}", type=f32[3,3]}}))' for i in range(1, 151)]
    before = parse_graph("graph(v0: f32[2,3]) {\n" + "\n".join(rows) + "\n  return v150\n}")
    changed = tuple(node for node in before.nodes if node.inputs)
    (change,) = changes(GraphDifference(before, before, {}, (ChangedRegion(changed, changed),)))
    assert change.is_cut
    assert change.removed == 300
    assert len(change.before.boxes) <= MOST_NODES + 2
    assert change.before.width < 640
