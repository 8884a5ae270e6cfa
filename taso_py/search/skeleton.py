"""What graphs have in common that differ only in which weight is where.

Merging eight products in another order gives another graph with the same kernels on the same types; of such graphs
the search follows one. A skeleton forgets which weight a static value is, the order of concatenated operands, and where
slices begin and end.

Invariant: graphs with equal skeletons run the same operators on the same types, connected in the same way.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TypeAlias

from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, Value
from taso_py.ir.operator import Input
from taso_py.ops.movement import Concat, Slice

Skeleton: TypeAlias = tuple[tuple[int, int], ...]


class Skeletons:
    """Numbers skeletons; by the digests of nodes, so that it keeps no node alive."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._known: dict[str, int] = {}

    def of(self, graph: Graph) -> Skeleton:
        """The skeleton of a graph."""
        for node in graph.nodes:
            if node.digest not in self._known:
                self._known[node.digest] = self._numbers.setdefault(self._form(node), len(self._numbers))
        roots = [*graph.outputs, *(Value(node, -1) for node in graph.effects)]
        return tuple((self._known[node.digest], output) for node, output in roots)

    def _form(self, node: Node) -> Hashable:
        """A node in terms of its operands' skeletons."""
        if node.is_static:
            return node.types
        operands = [(self._known[operand.digest], output) for operand, output in node.inputs]
        if isinstance(node.op, Slice):
            return "slice", node.op.axis, node.op.step, node.types, operands[0]
        if isinstance(node.op, Concat) or node.op.commutative:
            operands.sort()
        return node.digest if isinstance(node.op, Input) else node.op.text, node.token, tuple(operands)
