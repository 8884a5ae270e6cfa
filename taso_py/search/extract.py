"""Extraction: the cheapest graph that an e-graph represents.

A value that several nodes read is paid for once, so the cost of an e-class is that of the set of e-classes below it,
each with the node chosen for it. The optimal choice is hard to find (Stepp 2011); here a node is chosen for an e-class
if it is cheaper than the one before, given the present choices below it, until nothing changes.

Invariant: an extracted graph has the original's inputs, and outputs and effects that are equal by the e-graph.
"""

from __future__ import annotations

from collections.abc import Mapping

from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, Value, make
from taso_py.search.cost import Cost
from taso_py.search.egraph import EGraph

_Parts = dict[Value, tuple[float, int]]
"""The e-classes that something is computed from, itself included, with the seconds and number of nodes of each."""
PASSES = 20
"""The most passes over all nodes that improve a choice; it converges long before. A first choice may take more."""


def choose_nodes(egraph: EGraph, cost: Cost) -> Mapping[Value, Node]:
    """Return the node chosen for every e-class, by its representative."""
    prices = {node: cost.node_cost(node) for node in egraph.nodes}
    totals: dict[Value, tuple[float, int]] = {}
    parts: dict[Value, _Parts] = {}
    chosen: dict[Value, Node] = {}
    looks = 0
    while True:
        looks, changed, before = looks + 1, False, len(chosen)
        for node, price in prices.items():
            below = [parts.get(value) for value in node.inputs]
            united: _Parts = {}
            for part in below:
                united.update(part or {})
            if None in below:
                continue
            for value in map(egraph.find, node.outputs):
                if value in united:
                    continue
                own = {**united, value: (price, 1)}
                total = sum(seconds for seconds, _ in own.values()), len(own)
                if value not in totals or total < totals[value]:
                    totals[value], parts[value], chosen[value] = total, own, node
                    changed = True
        if not changed or (looks >= PASSES and len(chosen) == before):
            return chosen


def extract_graph(egraph: EGraph, graph: Graph, chosen: Mapping[Value, Node]) -> Graph | None:
    """Return the graph that consists of chosen nodes; None if one is computed from itself.

    Args:
        egraph: the e-graph.
        graph: the graph whose inputs, outputs and effects are wanted; its values are in the e-graph.
        chosen: a node for every e-class.
    """
    made: dict[Value, Value] = {}
    roots = [*graph.outputs, *(value for node in graph.effects for value in (*node.outputs, *node.inputs))]
    for root in map(egraph.find, roots):
        if not _make(egraph, chosen, root, made):
            return None
    effects = (make(node.op, [made[egraph.find(value)] for value in node.inputs], node.token) for node in graph.effects)
    return Graph(graph.inputs, tuple(made[egraph.find(value)] for value in graph.outputs), tuple(effects))


def _make(egraph: EGraph, chosen: Mapping[Value, Node], root: Value, made: dict[Value, Value]) -> bool:
    """Build the value of an e-class and all below it; return false if it would be computed from itself."""
    waiting, open_ = [root], set[Value]()
    while waiting:
        value = waiting[-1]
        if value in made:
            waiting.pop()
            continue
        node = chosen.get(value)
        if node is None:
            return False
        missing = [operand for operand in node.inputs if operand not in made]
        if missing:
            if value in open_:
                return False
            open_.add(value)
            waiting += missing
            continue
        waiting.pop()
        new = make(node.op, [made[operand] for operand in node.inputs], node.token)
        for old, result in zip(node.outputs, new.outputs, strict=True):
            if chosen.get(egraph.find(old)) is node:
                made[egraph.find(old)] = result
    return True
