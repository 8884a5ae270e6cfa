"""Batches: many operators of a kind that have nothing in common become one, of their operands stacked.

As the layers of the members of an ensemble, or of experts, are one product of two batches of matrices, of which each is
an element. A rule says so of one element; that a value is an element of a stack that it is in is taken for granted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import TypeAlias

from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, Value, is_running, remake
from taso_py.ir.operator import Operator
from taso_py.ir.types import TensorType
from taso_py.ops.movement import Slice
from taso_py.rules.backwards import Backwards
from taso_py.rules.rows import VIEWS
from taso_py.rules.ruleset import RuleSet
from taso_py.rules.stacks import LEAST, Order, Stack, is_at_hand, operands_of, slice_of, stack
from taso_py.rules.substitution import Substitution

_LEVELS = 3
"""The operators of an element of a stack to which an operator is applied: that, a view, and a slice."""

_Alike: TypeAlias = tuple[int, Operator, tuple[TensorType, ...]]
"""The depth in a graph, the operator, and the types of the operands of nodes that are alike."""


def has_batches(graph: Graph) -> bool:
    """Return whether a graph has enough operators alike that have nothing in common."""
    return bool(alike(graph))


class Batcher:
    """Rules by which an operator of elements of stacks is an element of an operator of stacks."""

    def __init__(self, rules: Iterable[Substitution]) -> None:
        """Choose the rules that are needed; their order does not matter."""
        of_slices = (stored.rule for stored in RuleSet.of(rules).stored if Slice in stored.kinds)
        self._backwards = Backwards(filter(_leads_to_parts, of_slices))

    def sets(self, graph: Graph) -> Iterator[Sequence[Node]]:
        """Yield the sets of nodes that may be one, operands first."""
        return (nodes for nodes in alike(graph) if type(nodes[0].op) in self._backwards.kinds)

    def leaves(self, roots: Sequence[Node]) -> Sequence[Value]:
        """Return what some of these nodes are computed from: what they read, or what that is part of."""
        return list(dict.fromkeys(leaf for one in _stacks(roots) for leaf in one.leaves))

    def derived(self, roots: Sequence[Node]) -> tuple[Sequence[Value], Sequence[Substitution]]:
        """Return elements of a value that replace nodes, and the rules that say so; nothing if no rule does."""
        if len(roots) < LEAST or len({(root.op, _types(root)) for root in roots}) > 1:
            return (), ()
        values, used = list[Value](), dict[str, Substitution]()
        stacks = _stacks(roots)
        for place in range(len(roots)):
            operands = [one.part(place) for one in stacks]
            found = self._backwards.replaced(remake(roots[0], operands).value, _LEVELS)
            if found is None:
                return (), ()
            rule, element = found
            used[rule.id] = rule
            values.append(element)
        return values, list(used.values())


@lru_cache(maxsize=1)
def alike(graph: Graph) -> Sequence[Sequence[Node]]:
    """Return the sets of nodes that are alike, none computed from another, and read nothing in common.

    What takes no longer than a copy of its operands is left out unless these need not be copied. The last result is
    kept, since several kinds of lemmas ask for it, each whether there are any and then for all.
    """
    return tuple(_alike(graph))


def _alike(graph: Graph) -> Iterator[Sequence[Node]]:
    order, depths, sets = Order(graph), dict[Node, int](), dict[_Alike, list[Node]]()
    for node in graph.nodes:
        depth = depths[node] = 1 + max((depths[operand] for operand, _ in node.inputs), default=0)
        if is_running(node) and len(node.inputs) > 1 and node.token is None and len(node.types) == 1:
            sets.setdefault((depth, node.op, _types(node)), []).append(node)
    for nodes in sets.values():
        reads = [value for node in nodes for value in node.inputs]
        if len(nodes) < LEAST or len(set(reads)) < len(reads):
            continue
        ordered = order.sorted(nodes)
        if ordered[0].op.is_contraction or all(map(is_at_hand, _places(ordered))):
            yield ordered


def _types(node: Node) -> tuple[TensorType, ...]:
    return tuple([value.type for value in operands_of(node)])


def _stacks(roots: Iterable[Node]) -> Sequence[Stack]:
    """Return the stacks of the operands of nodes that are alike, in their order; batches are joined to one."""
    return [stack(values, is_joined=any(value.type.rank > 2 for value in values)) for values in _places(roots)]


def _places(roots: Iterable[Node]) -> Iterator[Sequence[Value]]:
    """Yield the first operands of nodes that are alike, the second ones, and so on."""
    return zip(*map(operands_of, roots), strict=True)


def _leads_to_parts(rule: Substitution) -> bool:
    """Return whether a rule leads from a part of something to an operator of parts."""
    (source, *others), target = rule.source.outputs, rule.target.outputs[0].node
    is_of_parts = not others and len(target.inputs) > 1 and all(map(_is_part, (source, *target.inputs)))
    return is_of_parts and type(target.op) not in VIEWS


def _is_part(value: Value) -> bool:
    """Return whether a value is a slice, or a reshaped one."""
    return isinstance(slice_of(value).node.op, Slice)
