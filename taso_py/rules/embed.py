"""Embedding a pattern into a graph: all ways to bind its operators and variables, from one node on.

Invariant: an embedding that is yielded binds everything, and its outputs are distinct where the pattern's are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from taso_py.ir.node import Node, Value
from taso_py.rules.index import GraphIndex
from taso_py.rules.pattern import Bindings, Entrance, Pattern, Slot

_Agenda: TypeAlias = list[tuple[Slot, Value]]
"""What still has to be bound to what."""


def embeddings(pattern: Pattern, index: GraphIndex, node: Node, place: int) -> Iterator[Bindings]:
    """The embeddings that bind operator number ``place`` to ``node``."""
    start = Bindings(len(pattern.operators), len(pattern.variables))
    for bound in _extend(pattern, index, start, [(Slot(False, place, 0), Value(node, 0))], pattern.plans[place]):
        if _outputs_distinct(pattern, bound) and bound.settle(pattern.sizes):
            yield bound


def _extend(
    pattern: Pattern, index: GraphIndex, bound: Bindings, agenda: _Agenda, plan: Sequence[Entrance]
) -> Iterator[Bindings]:
    """Binds what is on the agenda and all below it, then goes on at the entrances of the plan."""
    while agenda:
        slot, value = agenda.pop()
        if slot.is_variable:
            if not bound.bind_variable(slot.index, pattern.types[slot.index], value):
                return
            continue
        known = bound.nodes[slot.index]
        if known is value.node and value.output == slot.output:
            continue
        operator = pattern.operators[slot.index]
        if known or value.output != slot.output or not bound.bind_node(slot.index, operator, value.node):
            return
        operands = value.node.inputs
        if operator.swappable and operands[0] != operands[1]:
            swapped = zip(operator.operands, reversed(operands), strict=True)
            yield from _extend(pattern, index, bound.copy(), [*agenda, *swapped], plan)
        agenda.extend(zip(operator.operands, operands, strict=True))
    if not plan:
        yield bound
        return
    entrance, rest = plan[0], plan[1:]
    for node in _candidates(index, bound, entrance):
        if type(node.op) is entrance.kind:
            yield from _extend(pattern, index, bound.copy(), [(Slot(False, entrance.index, 0), Value(node, 0))], rest)


def _candidates(index: GraphIndex, bound: Bindings, entrance: Entrance) -> Iterable[Node]:
    """The nodes that may be bound at an entrance."""
    slot = entrance.through
    if slot is None:
        return index.by_operator.get(entrance.kind, ())
    if slot.is_variable:
        value = bound.values[slot.index]
        return () if value is None else index.users[value.node]
    node = bound.nodes[slot.index]
    return () if node is None else index.users[node]


def _outputs_distinct(pattern: Pattern, bound: Bindings) -> bool:
    return len({bound.nodes[slot.index] for slot in pattern.outputs}) == len({slot.index for slot in pattern.outputs})
