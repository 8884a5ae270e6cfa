"""Partition of a graph into regions, cut at narrow points.

The running nodes are taken in topological order; a cut between two of them is narrow if few values cross it. A region
is a graph of its own: the values it reads from others are its inputs, those that others read are its outputs.

Invariant: regions come in topological order and hold every pure running node exactly once; impure nodes lie between
them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from math import inf
from typing import TypeAlias

from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, Value, is_running, make, remake
from taso_py.ir.operator import Constant, Input, Weight
from taso_py.ops.signs import sign_of

LEAST, USUAL, MOST = 8, 20, 240
"""The number of running nodes of a region: the least, the usual (not exceeded without need), and the most."""
NEAR = 60
"""Nodes further apart in the order of nodes are assumed to be unrelated."""
SHARED = 10.0
"""Relative cost of separating the readers of a weight: each region may need it merged with other weights."""
TRIES = 1000
_AVOID = 1000.0
"""The cost of a cut at a value that is to be avoided."""

_Pairs: TypeAlias = list[tuple[Value, Value]]
_State: TypeAlias = tuple[_Pairs, dict[Node, Node]]


@dataclass(frozen=True, eq=False)
class GraphRegion:
    """A part of a graph as a graph of its own."""

    graph: Graph
    inputs: tuple[Value, ...]
    """The values of the whole graph that the inputs stand for."""
    outputs: tuple[Value, ...]
    """The values of the whole graph that the outputs stand for."""


def cut(graph: Graph, avoid: Set[Value] = frozenset()) -> list[GraphRegion]:
    """Return the regions of a graph, cut at other values than those to avoid."""
    running = _deepest_first(graph)
    line = _Line(graph, running)
    regions: list[GraphRegion] = []
    for start, stop in _runs(running):
        ends = _cuts(line, start, stop, avoid)
        for begin, end in zip([start, *ends], [*ends, stop], strict=True):
            regions.append(_region(graph, running[begin:end], set(running[begin:end])))
    return regions


def _deepest_first(graph: Graph) -> list[Node]:
    """Return the running nodes, operands first, among operands the one with the longest computation first.

    So nodes that do not depend on a long computation come after it, next to their readers, and cross no cuts.
    """
    depth: dict[Node, int] = {}
    for node in graph.nodes:
        depth[node] = 1 + max((depth[operand] for operand, _ in node.inputs), default=0)
    order: list[Node] = []
    seen: set[Node] = set()
    stack = [(node, False) for node in [*(value.node for value in reversed(graph.outputs)), *reversed(graph.effects)]]
    while stack:
        node, operands_done = stack.pop()
        if operands_done:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            operands = [operand for operand, _ in node.inputs if operand not in seen and not operand.is_static]
            stack.append((node, True))
            stack += [(operand, False) for operand in sorted(operands, key=depth.__getitem__)]
    return list(filter(is_running, order))


def _runs(nodes: Sequence[Node]) -> Iterator[tuple[int, int]]:
    """Yield the ranges of consecutive pure nodes."""
    start = 0
    for place, node in enumerate(nodes):
        if node.token is not None:
            if start < place:
                yield start, place
            start = place + 1
    if start < len(nodes):
        yield start, len(nodes)


class _Line:
    """The running nodes in a row, the positions where each value is read, and the nodes that belong together."""

    def __init__(self, graph: Graph, nodes: Sequence[Node]) -> None:
        self.graph, self.nodes = graph, nodes
        self.place = {node: place for place, node in enumerate(nodes)}
        self.uses: dict[Value, list[int]] = {}
        for place, node in enumerate(nodes):
            for value in dict.fromkeys(node.inputs):
                if not isinstance(value.node.op, Constant):
                    self.uses.setdefault(value, []).append(place)
        self.separations = list(_separations(nodes, self.uses))


def _cuts(line: _Line, start: int, stop: int, avoid: Set[Value]) -> list[int]:
    """Return the cuts of a range of nodes: at the narrowest points, into regions that are not large."""
    price = [0.0, *_prices(line, start, stop, avoid), 0.0]
    best: list[tuple[float, int]] = [(0.0, 0)]
    for end in range(1, stop - start + 1):
        begins = range(max(0, end - MOST), end - LEAST + 1) if end < stop - start or end > LEAST else [0]
        ways = [(best[begin][0] + price[end] + ((end - begin) / USUAL) ** 2, begin) for begin in begins]
        best.append(min(ways, default=(inf, 0)))
    cuts: list[int] = []
    place = best[-1][1]
    while place > 0:
        cuts.append(start + place)
        place = best[place][1]
    return cuts[::-1]


def _prices(line: _Line, start: int, stop: int, avoid: Set[Value]) -> list[float]:
    """Return the cost of a cut before each node of a range but the first."""
    nodes, uses = line.nodes, line.uses
    alive = [value for node in nodes[:start] for value in node.outputs if value in uses and uses[value][-1] > start]
    prices: list[float] = []
    for place in range(start + 1, stop):
        alive = [v for v in (*alive, *nodes[place - 1].outputs) if v in uses and uses[v][-1] >= place]
        # To most of its readers, a value read long after it was made is like an input of the graph.
        crossing = [value for value in alive if uses[value][-1] - line.place[value.node] <= NEAR]
        prices.append(_width_price(line.graph, crossing) + _AVOID * sum(value in avoid for value in alive))
    for first, second, price in line.separations:
        for place in range(max(first, start) + 1, min(second, stop - 1) + 1):
            prices[place - start - 1] += price
    return prices


def _width_price(graph: Graph, crossing: Sequence[Value]) -> float:
    """Return the cost of a cut's width; zero if one value with several readers crosses, as between model blocks."""
    width = sum(1.0 if len(graph.users[node]) > 1 else 1.5 for node, _ in crossing)
    return max(2.0 * (width**2 - 1.0), 0.0)


def _separations(nodes: Sequence[Node], uses: Mapping[Value, Sequence[int]]) -> Iterator[tuple[int, int, float]]:
    """Yield pairs of readers of a value that belong together, and the cost of separating them.

    They are near each other. Readers of an activation might be merged if neither is computed from the other; readers of
    a weight might each be merged with others that read the same activation, and then the weight should have the same
    place in both.
    """
    before = _ancestors(nodes)
    merged = [_has_sibling(node, nodes, uses) for node in nodes]
    for value, places in uses.items():
        price = SHARED if value.node.is_static else 1.0
        for i, second in enumerate(places):
            for first in places[bisect_left(places, second - NEAR) : i]:
                is_independent = not before[second] >> first & 1
                if is_independent or (value.node.is_static and merged[first] and merged[second]):
                    yield first, second, price


def _has_sibling(node: Node, nodes: Sequence[Node], uses: Mapping[Value, Sequence[int]]) -> bool:
    """Return whether another node of the same operator reads one of the same activations."""
    read = (place for value in node.inputs if not value.node.is_static for place in uses.get(value, ()))
    return any(type(nodes[place].op) is type(node.op) and nodes[place] is not node for place in read)


def _ancestors(nodes: Sequence[Node]) -> list[int]:
    """Return, for each node, the nodes it is computed from as a bit set: bit ``i`` stands for node number ``i``."""
    known: dict[Node, int] = {}
    for place, node in enumerate(nodes):
        bits = 1 << place
        for operand, _ in node.inputs:
            bits |= known.get(operand, 0)
        known[node] = bits
    return [known[node] for node in nodes]


def _region(graph: Graph, nodes: Sequence[Node], inside: Set[Node]) -> GraphRegion:
    """Return the region that consists of some nodes."""
    new: dict[Value, Value] = {}
    inputs: dict[Value, Node] = {}
    for node in nodes:
        for value in node.inputs:
            if value not in new and not value.node.is_static:
                inputs[value] = make(Input(f"r{len(inputs)}", value.type, sign=sign_of(value)))
                new[value] = inputs[value].value
        image = remake(node, [new.get(value, value) for value in node.inputs])
        new.update({Value(node, output): Value(image, output) for output in range(len(node.types))})
    returned = set(graph.outputs)
    outputs = tuple(
        value
        for node in nodes
        for value in node.outputs
        if value in returned or any(user not in inside and value in user.inputs for user in graph.users[node])
    )
    return GraphRegion(Graph(tuple(inputs.values()), tuple(new[value] for value in outputs)), tuple(inputs), outputs)


def correspondence(one: Graph, other: Graph) -> dict[Node, Node] | None:
    """Return an isomorphism of two graphs that ignores inputs and weights, as a map of nodes; None if none is found.

    If operands of commutative operators look alike, both orders are tried, ``TRIES`` times in all.
    """
    if len(one.outputs) != len(other.outputs):
        return None
    forms, weights = _forms({}, one, other), _weights(one, other)
    first, second = (sorted(graph.outputs, key=lambda v: (forms[v.node], v.output)) for graph in (one, other))
    states: list[_State] = [(list(zip(first, second, strict=True)), {})]
    for _ in range(TRIES):
        if not states:
            return None
        pairs, found = states.pop()
        if _extend(pairs, found, forms, weights=weights, states=states):
            return found
    return None


def output_forms(graph: Graph, numbers: dict[object, int]) -> tuple[tuple[int, int], ...]:
    """Return a key that is equal for graphs that correspond to each other, and seldom for others.

    Args:
        graph: a graph.
        numbers: the numbers of known forms; use one dictionary for all graphs that are to be compared.
    """
    forms = _forms(numbers, graph)
    return tuple(sorted([(forms[value.node], value.output) for value in graph.outputs]))


def _extend(
    pairs: _Pairs,
    found: dict[Node, Node],
    forms: Mapping[Node, int],
    weights: Mapping[Node, Set[Node]],
    states: list[_State],
) -> bool:
    """Complete a correspondence; return false if it fails. Alternatives to try are added to ``states``."""

    def shared(operands: Sequence[Value]) -> int:
        return sum(len(weights[a.node] & weights[b.node]) for a, b in zip(left.node.inputs, operands, strict=True))

    taken = set(found.values())
    while pairs:
        left, right = pairs.pop()
        known = found.get(left.node)
        if known is right.node and left.output == right.output:
            continue
        if known is not None or right.node in taken or forms[left.node] != forms[right.node]:
            return False
        if left.output != right.output:
            return False
        found[left.node] = right.node
        taken.add(right.node)
        operands = right.node.inputs
        if left.node.op.commutative and len(operands) == 2:
            # The order that maps weights to themselves comes first: weights that regions share stay shared.
            operands, others = sorted((operands, operands[::-1]), key=shared, reverse=True)
            states.append(([*pairs, *zip(left.node.inputs, others, strict=True)], dict(found)))
        pairs += zip(left.node.inputs, operands, strict=True)
    return True


def _forms(numbers: dict[object, int], *graphs: Graph) -> Mapping[Node, int]:
    """Return numbers for nodes, equal if they are computed in the same way from leaves of the same types."""
    forms: dict[Node, int] = {}
    for node in (node for graph in graphs for node in graph.nodes):
        if node not in forms:
            forms[node] = numbers.setdefault(_form(node, forms), len(numbers))
    return forms


def _weights(*graphs: Graph) -> Mapping[Node, Set[Node]]:
    """Return the weights that each node is computed from."""
    weights: dict[Node, frozenset[Node]] = {}
    for node in (node for graph in graphs for node in graph.nodes):
        own = frozenset((node,)) if isinstance(node.op, Weight) else frozenset[Node]()
        weights[node] = own.union(*(weights[operand] for operand, _ in node.inputs))
    return weights


def _form(node: Node, forms: Mapping[Node, int]) -> object:
    if isinstance(node.op, Input | Weight):
        return type(node.op), node.types, node.is_static, sign_of(node.value)
    operands = [(forms[operand], output) for operand, output in node.inputs]
    return node.op.text, node.types, tuple(sorted(operands) if node.op.commutative else operands)
