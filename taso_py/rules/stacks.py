"""Stacks: values of one type, one after the other along a first axis.

Invariant: each value is a part of the stack; that this is so is taken for granted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import pairwise

from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, Value, make, remake
from taso_py.ops.layout import permuted
from taso_py.ops.movement import Concat, Reshape, Slice
from taso_py.rules.rows import adjoin

LEAST = 3
"""The fewest values of which what is computed becomes one."""


@dataclass(frozen=True)
class Stack:
    """Values as parts of one."""

    whole: Value
    """The values, along their own first axis or along one that they lack."""
    leaves: Sequence[Value]
    """The values themselves, or the one that they are parts of."""
    values: Sequence[Value]
    """The values."""
    is_joined: bool
    """True if the axis is the first of the values' own."""

    @property
    def is_view(self) -> bool:
        """True if nothing is copied: the values are adjacent parts of one, in order."""
        return len(self.leaves) < len(self.values)

    def part(self, place: int) -> Value:
        """Return the value at a place as a part of the stack."""
        like = self.values[place].type.dims
        length = like[0] if self.is_joined else 1
        taken = make(Slice(-self.whole.type.rank, place * length, (place + 1) * length), [self.whole]).value
        return taken if self.is_joined else make(Reshape(like), [taken]).value


def stack(values: Sequence[Value], *, is_joined: bool) -> Stack:
    """Return the stack of two or more values of one type.

    Args:
        values: the values.
        is_joined: whether they are joined along their own first axis.
    """
    shape, number, parts = values[0].type.dims, len(values), list(map(slice_of, values))
    first = _first_of_adjacent(parts)
    if first is None:
        alone = values if is_joined else [make(Reshape((1, *shape)), [value]).value for value in values]
        return Stack(make(Concat(-alone[0].type.rank), alone).value, values, values, is_joined)
    (whole,), place, length = parts[0].node.inputs, parts[0].type.rank + first.axis, first.stop - first.start
    found = _view(whole, replace(first, stop=first.start + number * length))
    if place:
        before, after = parts[0].type.dims[:place], parts[0].type.dims[place + 1 :]
        split = found if length == 1 else make(Reshape((*before, number, length, *after)), [found]).value
        found = with_axis_moved(split, place, 0)
    found = _view(found, Reshape((number * shape[0], *shape[1:]) if is_joined else (number, *shape)))
    return Stack(found, [whole], values, is_joined)


def is_at_hand(values: Sequence[Value]) -> bool:
    """Return whether the stack of some values is no copy made in each run, but a view, or computed of weights."""
    is_static = all(value.node.is_static for value in values)
    return is_static or _first_of_adjacent(list(map(slice_of, values))) is not None


def _first_of_adjacent(parts: Sequence[Value]) -> Slice | None:
    """Return the first of slices of one value of which each begins where the one before ends; None for other values."""
    first = parts[0].node.op
    if not isinstance(first, Slice) or not all(adjoin(*pair, first.axis) for pair in pairwise(parts)):
        return None
    return first


class Order:
    """The order of nodes by the parts that they read, and by the names of weights and inputs.

    Those with operands of equal types are together. A graph has no order of its own for what has nothing in common.
    """

    def __init__(self, graph: Graph) -> None:
        """Create the order of the nodes of a graph."""
        self._graph = graph

    @cached_property
    def _places(self) -> Mapping[Node, int]:
        """The places of leaves by name, and of static nodes by the first leaf that they are computed from."""
        leaves = sorted((node for node in self._graph.nodes if not node.inputs), key=_in_words_and_numbers)
        places = {node: place for place, node in enumerate(leaves)}
        for node in self._graph.nodes:
            if node.is_static and node.inputs:
                places[node] = min([places[operand] for operand, _ in node.inputs])
        return places

    def sorted(self, nodes: Iterable[Node]) -> list[Node]:
        """Return nodes in this order."""
        return sorted(nodes, key=self._key)

    def _key(self, node: Node) -> tuple[Sequence[str], Sequence[int]]:
        operands, found = operands_of(node), list[int]()
        for value in operands:
            part = slice_of(value).node.op
            start = part.start if isinstance(part, Slice) else self._places.get(value.node, len(self._places))
            found.append(start if isinstance(start, int) else 0)
        return [value.type.text for value in operands], found


def _in_words_and_numbers(leaf: Node) -> list[str | int]:
    """Return the parts of a leaf's text such that the tenth layer comes after the second."""
    return _words_and_numbers(leaf.op.text)


@lru_cache(maxsize=4096)
def _words_and_numbers(text: str) -> list[str | int]:
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", text)]


def operands_of(node: Node) -> Sequence[Value]:
    """Return the operands of a node; by their types, and by what they are parts of, if their order does not matter."""
    return sorted(node.inputs, key=_kind) if node.op.commutative else node.inputs


def _kind(value: Value) -> tuple[str, str]:
    """Return the type of a value, and what tells the value that it is part of from others."""
    part = slice_of(value).node
    return value.type.text, part.inputs[0].node.digest if isinstance(part.op, Slice) else ""


def flat(value: Value) -> Value:
    """Return a value computed of concatenations without others of the same axis in them."""
    operands = list[Value]()
    for operand in value.node.inputs:
        op, parts = operand.node.op, list[Value]()
        for part in operand.node.inputs if isinstance(op, Concat) else ():
            parts += part.node.inputs if part.node.op == op else [part]
        operands.append(make(op, parts).value if parts else operand)
    return remake(value.node, operands).value


def with_axis_moved(value: Value, place: int, to: int) -> Value:
    """Return a value with the axis at a place at another one, and the others in order."""
    rank = value.type.rank
    order = [axis for axis in range(-rank, 0) if axis != place - rank]
    order.insert(to, place - rank)
    return permuted(value, order)


def _view(value: Value, view: Slice | Reshape) -> Value:
    """Return a view of a value; the value if that is all of it."""
    seen = make(view, [value]).value
    return value if seen.type == value.type else seen


def slice_of(value: Value) -> Value:
    """Return the slice that a value is, or is a reshaped one of; the value that is reshaped if that is no slice."""
    while isinstance(value.node.op, Reshape):
        (value,) = value.node.inputs
    return value
