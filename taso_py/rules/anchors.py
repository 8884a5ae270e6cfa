"""Nodes at which matches may start: rules filed by what a node and its operands must be.

Rules are filed under the outline of each operator that a match may start at: its kind, and those of its operands. A
node is compared with the few outlines first, and only with the rules of those that it fits; nodes whose operators and
types are equal are compared once.

Invariant: no rule that has a match which starts at a node is left out, and rules come in the order of their numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Generic, TypeAlias, TypeVar

from taso_py.ir.node import Node
from taso_py.ir.operator import Operator
from taso_py.ir.types import TensorType
from taso_py.rules.embed import may_begin
from taso_py.rules.index import GraphIndex
from taso_py.rules.pattern import Application, Outline, Pattern, Readers, application

Item = TypeVar("Item")
_Operand: TypeAlias = tuple[str, tuple[TensorType, ...], tuple[TensorType, ...], int, int]
"""Text of an operand's operator, the types of what it reads and yields, the output read, and its first position."""
_Form: TypeAlias = tuple[str, tuple[TensorType, ...], tuple[_Operand, ...]]
"""A node's operator, its result types and its operands."""
_Readers: TypeAlias = frozenset[tuple[Application, int]]
"""Applications that read a node, each with its count, capped at the most that any rule requires."""
_Surroundings: TypeAlias = tuple[_Form, tuple[_Readers, ...]]
"""A node's form, and the readers of its operands and then of the node."""


@dataclass(frozen=True, slots=True)
class _Anchor(Generic[Item]):
    """An operator of a rule."""

    number: int
    """The number of the rule."""
    pattern: Pattern
    place: int
    """The number of the operator in the pattern."""
    item: Item

    @property
    def readers(self) -> Sequence[Readers]:
        """The readers that its operands and it must have."""
        return self.pattern.readers[self.place]


class _Kind(Generic[Item]):
    """The operators of rules that nodes of one kind may fit, and what is known of such nodes."""

    def __init__(self) -> None:
        self._filed: dict[Outline, list[_Anchor[Item]]] = {}
        self._fitting: dict[_Form, Sequence[_Anchor[Item]]] = {}
        self._known: dict[_Surroundings, Sequence[tuple[Item, int]]] = {}

    def add(self, anchor: _Anchor[Item]) -> None:
        """Add an operator; what was known of nodes is forgotten."""
        self._filed.setdefault(anchor.pattern.outlines[anchor.place], []).append(anchor)
        self._fitting.clear()
        self._known.clear()

    def at(self, node: Node, form: _Form, readers: tuple[_Readers, ...]) -> Sequence[tuple[Item, int]]:
        """Return what :meth:`Anchors.at` does for a node of this kind."""
        known = self._known.get((form, readers))
        if known is None:
            fitting = [anchor for anchor in self._fit(node, form) if _has_readers(anchor.readers, readers)]
            known = self._known[form, readers] = [(anchor.item, anchor.place) for anchor in fitting]
        return known

    def _fit(self, node: Node, form: _Form) -> Sequence[_Anchor[Item]]:
        """Return the operators that a node of a form fits, whatever reads it."""
        known = self._fitting.get(form)
        if known is None:
            applied = application(node)
            compared = chain.from_iterable(anchors for outline, anchors in self._filed.items() if outline.fits(applied))
            fitting = [anchor for anchor in compared if may_begin(anchor.pattern, node, anchor.place)]
            known = self._fitting[form] = sorted(fitting, key=lambda anchor: (anchor.number, anchor.place))
        return known


class Anchors(Generic[Item]):
    """Operators of rules by what a node must be to start a match there, each with an item of the caller's."""

    def __init__(self) -> None:
        self._kinds: dict[type[Operator], _Kind[Item]] = {}
        self._most = 1
        """Most readers of one kind that any rule requires."""

    def add(self, item: Item, pattern: Pattern, place: int, number: int) -> None:
        """Add an operator of the rule of some number."""
        anchor = _Anchor(number, pattern, place, item)
        counts = chain.from_iterable(needed.counts.values() for needed in anchor.readers)
        self._most = max(self._most, max(counts, default=1))
        self._kinds.setdefault(type(pattern.operators[place].op), _Kind()).add(anchor)

    def at(self, node: Node, index: GraphIndex) -> Sequence[tuple[Item, int]]:
        """Return the items of the rules of which a match may start at a node, each with the operator's number."""
        kind = self._kinds.get(type(node.op))
        if kind is None:
            return ()
        inputs = node.inputs
        operands = tuple(
            [
                (n.op.text, tuple([value.type for value in n.inputs]), n.types, output, inputs.index((n, output)))
                for n, output in inputs
            ]
        )
        form = node.op.text, node.types, operands
        readers = tuple([self._readers(n, index) for n in (*[n for n, _ in inputs], node)])
        return kind.at(node, form, readers)

    def _readers(self, node: Node, index: GraphIndex) -> _Readers:
        readers = Counter(map(application, index.users[node]))
        return frozenset([(reader, min(self._most, count)) for reader, count in readers.items()])


def _has_readers(needed: Sequence[Readers], readers: Sequence[_Readers]) -> bool:
    """Return whether a node's operands, and then the node, have the readers that the pattern requires."""
    return all(_are_there(wanted, there) for wanted, there in zip(needed, readers, strict=True))


def _are_there(needed: Readers, there: _Readers) -> bool:
    """Return whether the readers of one value include those required."""
    return all(
        sum(number for (other, _), number in there if other is kind) >= count for kind, count in needed.counts.items()
    ) and all(any(outline.fits(reader) for reader, _ in there) for outline in needed.outlines)
