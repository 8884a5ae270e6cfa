"""Layered drawings of graphs, from operands to results, for a template.

Layers are by longest paths, the order within a layer by the mean position of neighbours (Sugiyama, Tagawa and Toda
1981); an edge across several layers has a passage (a dummy node) in each.

Invariant: boxes do not overlap, and equal graphs give equal drawings.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import networkx as nx

from taso_py.ir.node import Node
from taso_py.ir.operator import Constant, Input, Weight
from taso_py.ir.types import TensorType

LETTER, LINE = 6.1, 14.0
"""Width of a character and height of a line, in pixels."""
WIDEST = 40
"""Most characters in a line of a box."""
TAIL = 23
"""Characters kept from the end of a long name, which says more than its beginning."""
GAP_X, GAP_Y = 16.0, 30.0
PASSAGE = 8.0
"""Width of an edge's passage through a layer."""
SWEEPS = 6
ALIKE = 3
NAMED = 3
"""Most weights that a box names, in lines of their own, if their names do not fit one line."""

_Key: TypeAlias = "Node | tuple[int, int]"
"""A box, or an edge's passage: the number of the edge and the layer."""


@dataclass(frozen=True)
class Box:
    """A box for an operator or an operand from outside."""

    x: float
    y: float
    width: float
    height: float
    lines: tuple[str, ...]
    state: str
    """``removed``, ``added``, ``same``, or ``outside`` for nodes around the drawn ones."""
    title: str


@dataclass(frozen=True)
class Drawing:
    """A drawing of a graph."""

    width: float
    height: float
    boxes: tuple[Box, ...]
    paths: tuple[str, ...]
    """Edges as SVG paths."""


def draw(nodes: Iterable[Node], state: Callable[[Node], str]) -> Drawing:
    """Return a drawing of some nodes of a graph and the edges between them; readers name their weights and numbers.

    `ALIKE` or more nodes with equal operators and operands, except for weights and attributes, share a box.
    """
    chosen = [node for node in nodes if not isinstance(node.op, Weight | Constant)]
    boxes = _grouped(chosen, state)
    edges = [
        (boxes[v.node][0], members[0])
        for node, members in boxes.items()
        for v in node.inputs
        if v.node in boxes and boxes[v.node][0] is not members[0]
    ]
    heads = [node for node in chosen if boxes[node][0] is node]
    labels = {node: _label(boxes[node]) for node in heads}
    layers, routes = _layers(heads, list(dict.fromkeys(edges)))
    _order(layers, routes)
    places, width, height = _place(layers, labels)
    drawn = tuple(Box(*places[node], labels[node], state(node), _title(boxes[node])) for node in heads)
    return Drawing(width, height, drawn, tuple(_path([places[key] for key in route]) for route in routes))


def _grouped(nodes: Sequence[Node], state: Callable[[Node], str]) -> dict[Node, list[Node]]:
    """Return for each node those that share its box, the first one first; ``nodes`` has operands before readers."""
    within = set(nodes)
    depth: dict[Node, int] = {}
    for node in nodes:
        depth[node] = max((depth[v.node] + 1 for v in node.inputs if v.node in depth), default=0)
    found: dict[Node, list[Node]] = {}
    for layer in range(max(depth.values(), default=-1) + 1):
        alike: dict[object, list[Node]] = {}
        for node in (node for node in nodes if depth[node] == layer):
            operands = frozenset(found[v.node][0] for v in node.inputs if v.node in within)
            mark = None if operands else node
            alike.setdefault((node.op.name, node.types, state(node), operands, mark), []).append(node)
        for members in alike.values():
            for node in members:
                found[node] = members if len(members) >= ALIKE else [node]
    return found


def _label(members: Sequence[Node]) -> tuple[str, ...]:
    node = members[0]
    if isinstance(node.op, Input):
        return _short(node.op.key), _type(node.types[0])
    target: object = getattr(node.op, "target", None)
    named = list(dict.fromkeys(name for member in members for name in _operands(member)))
    attributes = {member.op.attributes_text for member in members if target is None}
    lines = [
        f"{target or node.op.name}" + (f" × {len(members)}" if len(members) > 1 else ""),
        attributes.pop() if len(attributes) == 1 else "",
        *map(_type, node.types[:1]),
        *_listed(named),
        "at build time" if node.is_static else "",
    ]
    return tuple(_short(line) for line in lines if line)


def _operands(node: Node) -> list[str]:
    """Return the weights and numbers that a node reads, which have no boxes of their own."""
    return [
        value.node.op.key if isinstance(value.node.op, Weight) else str(value.node.op.value)
        for value in node.inputs
        if isinstance(value.node.op, Weight | Constant)
    ]


def _listed(names: Sequence[str]) -> list[str]:
    """Return names in one line if they fit, else the first ones in a line each."""
    if len(", ".join(names)) <= WIDEST:
        return [", ".join(names)]
    more = len(names) - NAMED
    return [*map(elide, names[:NAMED]), *([f"and {more} more"] if more > 0 else [])]


def elide(text: str) -> str:
    """Return a name that fits a line; longer ones lose their middle, since the ends distinguish them."""
    return text if len(text) <= WIDEST else f"{text[: WIDEST - TAIL - 1]}…{text[-TAIL:]}"


def _title(members: Sequence[Node]) -> str:
    return "\n".join(
        f"{node.op.text}: {', '.join(type_.text for type_ in node.types)}"
        + "".join(f"\n    {name}" for name in _operands(node))
        for node in members
    )


def _type(type_: TensorType) -> str:
    return _short(type_.text)


def _short(text: str) -> str:
    return textwrap.shorten(text, WIDEST, placeholder="…") if " " in text[:WIDEST] else elide(text)


def _layers(nodes: Sequence[Node], edges: Sequence[tuple[Node, Node]]) -> tuple[list[list[_Key]], list[list[_Key]]]:
    """Return the layers, and for each edge the boxes and passages on its way."""
    graph: nx.DiGraph[Node] = nx.DiGraph()
    graph.add_nodes_from(nodes)
    graph.add_edges_from(edges)
    depth: dict[Node, int] = {}
    for node in nx.lexicographical_topological_sort(graph, key=list(nodes).index):
        depth[node] = max((depth[operand] + 1 for operand in graph.predecessors(node)), default=0)
    for node in reversed(nodes):
        # Nodes without operands are placed right before their first reader, not at the top.
        if graph.in_degree(node) == 0 and graph.out_degree(node):
            depth[node] = min(depth[reader] for reader in graph.successors(node)) - 1
    layers: list[list[_Key]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for node in nodes:
        layers[depth[node]].append(node)
    routes: list[list[_Key]] = []
    for number, (operand, reader) in enumerate(edges):
        passages: list[_Key] = [(number, layer) for layer in range(depth[operand] + 1, depth[reader])]
        for passage, layer in zip(passages, range(depth[operand] + 1, depth[reader]), strict=True):
            layers[layer].append(passage)
        routes.append([operand, *passages, reader])
    return layers, routes


def _order(layers: list[list[_Key]], routes: Sequence[Sequence[_Key]]) -> None:
    """Sort each layer by the mean position of neighbours, sweeping down and up."""
    above: dict[_Key, list[_Key]] = {}
    below: dict[_Key, list[_Key]] = {}
    for route in routes:
        for upper, lower in pairwise(route):
            above.setdefault(lower, []).append(upper)
            below.setdefault(upper, []).append(lower)
    for sweep in range(SWEEPS):
        neighbours = below if sweep % 2 else above
        for layer in reversed(layers) if sweep % 2 else layers:
            at = {key: place / max(len(row) - 1, 1) for row in layers for place, key in enumerate(row)}
            layer.sort(
                key=lambda key, at=at, near=neighbours: _mean([at[other] for other in near.get(key, [])], at[key])
            )


def _mean(places: Sequence[float], otherwise: float) -> float:
    return sum(places) / len(places) if places else otherwise


def _place(
    layers: Sequence[Sequence[_Key]], labels: Mapping[Node, tuple[str, ...]]
) -> tuple[dict[_Key, tuple[float, float, float, float]], float, float]:
    """Return left, top, width and height of all boxes and passages, and the size of the drawing."""

    def size(key: _Key) -> tuple[float, float]:
        if not isinstance(key, Node):
            return PASSAGE, 0.0
        return max(map(len, labels[key])) * LETTER + 18, len(labels[key]) * LINE + 10

    widths = [sum(size(key)[0] for key in layer) + GAP_X * (len(layer) - 1) for layer in layers]
    width = max(widths, default=0.0)
    places: dict[_Key, tuple[float, float, float, float]] = {}
    y = 4.0
    for layer, own in zip(layers, widths, strict=True):
        tallest = max((size(key)[1] for key in layer), default=0.0)
        x = 4.0 + (width - own) / 2
        for key in layer:
            w, h = size(key)
            places[key] = (round(x, 1), round(y + (tallest - h) / 2, 1), round(w, 1), h)
            x += w + GAP_X
        y += tallest + GAP_Y
    return places, round(width + 8, 1), round(y - GAP_Y + 4, 1)


def _path(route: Sequence[tuple[float, float, float, float]]) -> str:
    """Return a curve from the bottom of the first box to the top of the last, through the passages between."""
    x, y, w, h = route[0]
    text, at = f"M{x + w / 2:.1f},{y + h:.1f}", (x + w / 2, y + h)
    for x, y, w, _ in route[1:]:
        to = (x + w / 2, y)
        half = (at[1] + to[1]) / 2
        text += f"C{at[0]:.1f},{half:.1f} {to[0]:.1f},{half:.1f} {to[0]:.1f},{to[1]:.1f}"
        at = to
    return text
