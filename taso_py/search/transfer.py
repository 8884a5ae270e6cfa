"""Transfer of results found for one region to the whole graph, and to regions of the same structure.

Invariant: a transferred step is the same substitution on the same operators; only leaves differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from taso_py.ir.node import Node, Value, remake
from taso_py.rules.match import Match


class Transfer:
    """Replacement of the leaves of graphs by values."""

    def __init__(self, leaves: Mapping[Node, Value]) -> None:
        """Create a transfer; leaves that are not mentioned stay as they are."""
        self._leaves = leaves
        self._known: dict[Node, Node] = {}

    def value(self, value: Value) -> Value:
        """Return a value with its leaves replaced."""
        leaf = self._leaves.get(value.node)
        return leaf if leaf is not None else Value(self._node(value.node), value.output)

    def match(self, match: Match) -> Match:
        """Return a match with the leaves of its nodes and values replaced."""
        return replace(
            match,
            nodes=tuple(map(self._node, match.nodes)),
            values={name: self.value(value) for name, value in match.values.items()},
            outputs=tuple(map(self.value, match.outputs)),
        )

    def _node(self, node: Node) -> Node:
        stack = [node]
        while stack:
            top = stack[-1]
            waiting = [v.node for v in top.inputs if v.node not in self._leaves and v.node not in self._known]
            if top in self._known or not waiting:
                stack.pop()
            if waiting:
                stack += waiting
            elif top not in self._known:
                self._known[top] = remake(top, [self.value(value) for value in top.inputs])
        return self._known[node]
