"""Embedding of a pattern into a graph: all ways to bind its operators and variables, starting at one node.

Invariant: an embedding that is yielded binds everything, and its outputs are distinct where the pattern's are. Where
there are more than two of them, none is computed from another: such a match would be circular, and a chain of layers
that share weights has as many of them as it has sets of layers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from taso_py.ir.node import Node, Value
from taso_py.rules.index import GraphIndex, is_crowded
from taso_py.rules.pattern import Bindings, JoinPoint, OperandRef, Pattern, PatternOperator

_Agenda: TypeAlias = list[tuple[OperandRef, Value]]
"""References of the pattern still to be bound, each with its value in the graph."""


def embeddings(
    pattern: Pattern,
    index: GraphIndex,
    node: Node,
    place: int,
    before: Mapping[int, Sequence[int]] | None = None,
    only_running: bool = False,
    in_crowds: bool = False,
) -> Iterator[Bindings]:
    """Yield the embeddings that bind operator number ``place`` to ``node``.

    Args:
        pattern: the pattern.
        index: the graph.
        node: the node to begin at.
        place: the number of the operator.
        before: for operators at join points, those bound earlier whose nodes must not come later in the graph.
        only_running: whether to require that at least one of the outputs depends on more than weights.
        in_crowds: whether to bind three outputs or more to some of more than ``MOST_SIBLINGS`` that read one value.
    """
    start = Bindings(len(pattern.operators), len(pattern.variables))
    embedding = _Embedding(pattern, index, before or {}, only_running, in_crowds)
    for bound in embedding.extend(start, [(OperandRef(False, place, 0), Value(node, 0))], pattern.plans[place]):
        if only_running and _is_static(pattern, bound):
            continue
        if _outputs_distinct(pattern, bound) and bound.settle(pattern.sizes):
            yield bound


def may_begin(pattern: Pattern, node: Node, place: int) -> bool:
    """Return whether operator number ``place`` and its operands may be bound to a node and its operands.

    This depends only on the operators of both, on their types and those of what the operands read, and on which
    operands are equal; most attempts that fail do so here.
    """
    operator, bound = pattern.operators[place], Bindings(len(pattern.operators), len(pattern.variables))
    if not bound.bind_node(place, operator, node):
        return False
    if not operator.swappable:
        return _binds_operands(pattern, bound, operator, node.inputs)
    orders = node.inputs, node.inputs[::-1]
    return any(_binds_operands(pattern, bound.copy(), operator, operands) for operands in orders)


def _binds_operands(pattern: Pattern, bound: Bindings, operator: PatternOperator, operands: Sequence[Value]) -> bool:
    """Bind an operator's operands to some values as far as possible; return whether all could be bound."""
    for slot, value in zip(operator.operands, operands, strict=True):
        place = slot.number
        if slot.is_variable:
            fits = bound.bind_variable(place, pattern.types[place], value)
        elif bound.nodes[place] is not None:
            fits = bound.nodes[place] is value.node and value.output == slot.output
        else:
            fits = value.output == slot.output and bound.bind_node(place, pattern.operators[place], value.node)
            fits = fits and _types_fit(pattern, bound, pattern.operators[place], value.node.inputs)
        if not fits:
            return False
    return True


def _types_fit(pattern: Pattern, bound: Bindings, operator: PatternOperator, operands: Sequence[Value]) -> bool:
    """Return whether the variables that an operator reads have types that fit some values."""
    orders = (operands, operands[::-1]) if operator.swappable else (operands,)
    return any(_types_fit_in_order(pattern, bound.copy(), operator, order) for order in orders)


def _types_fit_in_order(pattern: Pattern, bound: Bindings, operator: PatternOperator, order: Sequence[Value]) -> bool:
    return all(
        bound.bind_type(pattern.types[slot.number], value.type)
        for slot, value in zip(operator.operands, order, strict=True)
        if slot.is_variable
    )


class _Embedding:
    """One pattern's embedding in progress."""

    def __init__(
        self,
        pattern: Pattern,
        index: GraphIndex,
        before: Mapping[int, Sequence[int]],
        only_running: bool,
        in_crowds: bool,
    ) -> None:
        self._operators, self._types, self._index, self._before = pattern.operators, pattern.types, index, before
        self._roots, self._is_parallel = pattern.roots, pattern.is_parallel
        self._shared = frozenset() if in_crowds else pattern.shared
        self._running = pattern.root if only_running else None
        """The operator that may not be bound to what depends on weights only, if there is one."""

    def extend(self, bound: Bindings, agenda: _Agenda, plan: Sequence[JoinPoint]) -> Iterator[Bindings]:
        """Bind the agenda and everything below it, then continue at the plan's join points."""
        while agenda:
            slot, value = agenda.pop()
            place = slot.number
            if slot.is_variable:
                if not bound.bind_variable(place, self._types[place], value):
                    return
                continue
            known = bound.nodes[place]
            if known is value.node and value.output == slot.output:
                continue
            operator = self._operators[place]
            if known or value.output != slot.output or not bound.bind_node(place, operator, value.node):
                return
            operands = value.node.inputs
            if operator.swappable and operands[0] != operands[1]:
                swapped = zip(operator.operands, reversed(operands), strict=True)
                yield from self.extend(bound.copy(), [*agenda, *swapped], plan)
            agenda.extend(zip(operator.operands, operands, strict=True))
        if not plan:
            yield bound
            return
        join_point, rest = plan[0], plan[1:]
        for node in self._candidates(bound, join_point):
            yield from self.extend(bound.copy(), [(OperandRef(False, join_point.index, 0), Value(node, 0))], rest)

    def _candidates(self, bound: Bindings, join_point: JoinPoint) -> Iterable[Node]:
        """Return the nodes that may be bound at a join point; most others are excluded before anything is bound."""
        kind, place = join_point.kind, self._index.place
        nodes = [node for node in _possible_nodes(self._index, bound, join_point) if type(node.op) is kind]
        if join_point.index == self._running:
            nodes = [node for node in nodes if not node.is_static]
        operator = self._operators[join_point.index]
        if not operator.swappable:
            nodes = [node for node in nodes if _may_read(node, operator, bound)]
        if join_point.index in self._roots:
            taken = [node for node in map(bound.nodes.__getitem__, self._roots) if node is not None]
            shared = (_readers(self._index, bound, slot) for slot in self._shared)
            if taken and self._shared and is_crowded(kind, shared):
                return ()
            nodes = [node for node in nodes if node not in taken]
            if self._is_parallel:
                apart = self._index.is_apart
                nodes = [node for node in nodes if all(apart(node, other) for other in taken)]
        for operator in self._before.get(join_point.index, ()):
            earlier = bound.nodes[operator]
            if earlier is not None:
                nodes = [node for node in nodes if place[node] >= place[earlier]]
        return nodes


def _may_read(node: Node, operator: PatternOperator, bound: Bindings) -> bool:
    """Return whether the operands of a node are those of an operator, as far as these are bound."""
    for slot, value in zip(operator.operands, node.inputs, strict=False):
        if slot.is_variable:
            known = bound.values[slot.number]
            if known is not None and known != value:
                return False
        elif bound.nodes[slot.number] not in (None, value.node):
            return False
    return True


def _possible_nodes(index: GraphIndex, bound: Bindings, join_point: JoinPoint) -> Iterable[Node]:
    """Return the nodes that read the reference a join point continues from."""
    slot = join_point.through
    return index.by_operator.get(join_point.kind, ()) if slot is None else _readers(index, bound, slot)


def _readers(index: GraphIndex, bound: Bindings, slot: OperandRef) -> Sequence[Node]:
    """Return the nodes that read what a reference is bound to; none if it is not bound."""
    if slot.is_variable:
        value = bound.values[slot.number]
        return () if value is None else index.users[value.node]
    node = bound.nodes[slot.number]
    return () if node is None else index.users[node]


def _is_static(pattern: Pattern, bound: Bindings) -> bool:
    """Return whether everything that a complete embedding computes depends on weights only."""
    return all(node is not None and node.is_static for node in map(bound.nodes.__getitem__, pattern.roots))


def _outputs_distinct(pattern: Pattern, bound: Bindings) -> bool:
    return len({bound.nodes[root] for root in pattern.roots}) == len(pattern.roots)
