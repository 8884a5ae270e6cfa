"""Canonical forms of graphs, equal for graphs that differ only in which weight is where.

Merging eight products in another order gives another graph with the same kernels on the same types; of such graphs the
search follows one. A canonical form abstracts from which weight a static value is (but not from numbers: rules ask for
1.0 or 0.5), from the order of concatenated operands, and from the bounds of slices. It is computed before a graph is
built, from that of the graph before.

Invariant: graphs with equal canonical forms run the same operators on the same types, connected in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, Value, is_static
from taso_py.ir.operator import Constant, Input
from taso_py.ops.movement import Concat, Slice
from taso_py.search.rewire import readers

CanonicalForm: TypeAlias = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class GraphForm:
    """The canonical form of a graph, and the forms of its nodes that it consists of."""

    canonical: CanonicalForm
    forms: Mapping[Node, int]
    """Numbers of node forms; after a change, only those of nodes that are new or have another form now."""


class CanonicalForms:
    """Numbering of node forms, by content, so that it keeps no node alive."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}

    def of(self, graph: Graph) -> GraphForm:
        """Return the canonical form of a graph."""
        forms: dict[Node, int] = {}
        for node in graph.nodes:
            operands = [(forms[operand], output) for operand, output in node.inputs]
            forms[node] = self._form(node, operands, node.is_static)
        return GraphForm(_canonical_form(graph, lambda value: (forms[value.node], value.output)), forms)

    def after(
        self, graph: Graph, form: Callable[[Node], int | None], replaced: Mapping[Value, Value], first: int
    ) -> GraphForm:
        """Return the canonical form of a graph in which values are replaced.

        Args:
            graph: the graph before.
            form: returns the form of its nodes, None for other nodes.
            replaced: maps values to their replacements.
            first: the position of the first replaced value in the graph's order, or any before it.
        """
        new: dict[Node, int] = {}
        static: dict[Node, bool] = {}

        def standing(value: Value) -> tuple[int, int]:
            known = form(value.node)
            return new[value.node] if known is None else known, value.output

        def moved(value: Value) -> tuple[int, int]:
            now = replaced.get(value)
            if now is not None:
                return standing(now)
            return (changed[value.node], value.output) if value.node in changed else standing(value)

        def depends_on_weights(value: Value) -> bool:
            now = replaced.get(value)
            return static.get(value.node, value.node.is_static) if now is None else now.node.is_static

        for node in _created(replaced, form):
            new[node] = self._form(node, [standing(value) for value in node.inputs], node.is_static)
        changed: dict[Node, int] = {}
        affected = {node for node, _ in replaced}
        for node in readers(graph, affected, first):
            static[node] = is_static(node.op, map(depends_on_weights, node.inputs))
            number = self._form(node, [moved(value) for value in node.inputs], static[node])
            if number != form(node):
                changed[node] = number
                affected.add(node)
        return GraphForm(_canonical_form(graph, moved), {**new, **changed})

    def _form(self, node: Node, operands: list[tuple[int, int]], depends_on_weights: bool) -> int:
        """Return the number of a node's form, from the forms of its operands."""
        key: Hashable
        if depends_on_weights:
            key = node.op.text if isinstance(node.op, Constant) else node.types
        elif isinstance(node.op, Slice):
            key = "slice", node.op.axis, node.op.step, node.types, operands[0]
        elif isinstance(node.op, Input):
            key = node.digest
        else:
            if isinstance(node.op, Concat) or node.op.commutative:
                operands.sort()
            key = node.op.text, node.token, tuple(operands)
        return self._numbers.setdefault(key, len(self._numbers))


def _canonical_form(graph: Graph, form: Callable[[Value], tuple[int, int]]) -> CanonicalForm:
    return tuple([form(value) for value in (*graph.outputs, *(Value(node, 0) for node in graph.effects))])


def _created(replaced: Mapping[Value, Value], form: Callable[[Node], int | None]) -> list[Node]:
    """Return the nodes of the replacing values that have no form yet, operands first."""
    order = dict[Node, None]()
    stack = [node for node, _ in replaced.values() if form(node) is None]
    while stack:
        node = stack[-1]
        waiting = [operand for operand, _ in node.inputs if operand not in order and form(operand) is None]
        if waiting:
            stack += waiting
        else:
            order[node] = None
            stack.pop()
    return list(order)
