"""Graphs as pictures: operators in layers from operands to results, drawn by a template.

Layers by longest path, order within a layer by the mean place of the neighbours (Sugiyama, Tagawa and Toda 1981); an
edge that passes layers is led through a place of its own in each.

Invariant: boxes do not overlap, and the same graph gives the same picture.
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
"""Width of a letter and height of a line, in pixels."""
WIDEST = 40
"""Letters in a line of a box at most."""
TAIL = 23
"""Letters of the end of a name that is too long; the end says more than the beginning."""
GAP_X, GAP_Y = 16.0, 30.0
PASSAGE = 8.0
"""Width of the place that an edge takes in a layer that it passes."""
SWEEPS = 6
ALIKE = 3
NAMED = 3
"""Weights that a box names, a line each, where their names do not fit one line."""

_Key: TypeAlias = "Node | tuple[int, int]"
"""A box, or the passage of an edge: the edge's number and the layer."""


@dataclass(frozen=True)
class Box:
    """An operator, or an operand from outside."""

    x: float
    y: float
    width: float
    height: float
    lines: tuple[str, ...]
    state: str
    """``removed``, ``added``, ``same``, or ``outside`` for an operand or reader that belongs to the surroundings."""
    title: str


@dataclass(frozen=True)
class Drawing:
    """A picture."""

    width: float
    height: float
    boxes: tuple[Box, ...]
    paths: tuple[str, ...]
    """Edges, as SVG has paths."""


def draw(nodes: Iterable[Node], state: Callable[[Node], str]) -> Drawing:
    """A picture of some nodes of a graph and the edges between them; weights and numbers are named in their readers.

    At least `ALIKE` nodes that compute the same from the same operands, but for weights and attributes, are one box.
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
    """For each node, those that share its box, the first of them first; ``nodes`` has operands before readers."""
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
    """The weights and numbers that a node reads, which have no boxes of their own."""
    return [
        value.node.op.key if isinstance(value.node.op, Weight) else str(value.node.op.value)
        for value in node.inputs
        if isinstance(value.node.op, Weight | Constant)
    ]


def _listed(names: Sequence[str]) -> list[str]:
    """Names in a line if they fit; else the first in a line each."""
    if len(", ".join(names)) <= WIDEST:
        return [", ".join(names)]
    more = len(names) - NAMED
    return [*map(elided, names[:NAMED]), *([f"and {more} more"] if more > 0 else [])]


def elided(text: str) -> str:
    """A name that fits a line; of a longer one the middle is left out, since its ends tell it from others."""
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
    return textwrap.shorten(text, WIDEST, placeholder="…") if " " in text[:WIDEST] else elided(text)


def _layers(nodes: Sequence[Node], edges: Sequence[tuple[Node, Node]]) -> tuple[list[list[_Key]], list[list[_Key]]]:
    """The layers, and for each edge the boxes and passages that it goes through."""
    graph: nx.DiGraph[Node] = nx.DiGraph()
    graph.add_nodes_from(nodes)
    graph.add_edges_from(edges)
    depth: dict[Node, int] = {}
    for node in nx.lexicographical_topological_sort(graph, key=list(nodes).index):
        depth[node] = max((depth[operand] + 1 for operand in graph.predecessors(node)), default=0)
    for node in reversed(nodes):
        # What has no operands here stands right before its first reader, not at the top.
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
    """Puts what belongs together near each other, layer by layer, down and up."""
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
    """Left, top, width and height of everything, and the size of the picture."""

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
    """A curve from the bottom of the first box to the top of the last, through the passages between."""
    x, y, w, h = route[0]
    text, at = f"M{x + w / 2:.1f},{y + h:.1f}", (x + w / 2, y + h)
    for x, y, w, _ in route[1:]:
        to = (x + w / 2, y)
        half = (at[1] + to[1]) / 2
        text += f"C{at[0]:.1f},{half:.1f} {to[0]:.1f},{half:.1f} {to[0]:.1f},{to[1]:.1f}"
        at = to
    return text
