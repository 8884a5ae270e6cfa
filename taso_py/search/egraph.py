"""E-graphs: classes of equal values (e-classes), and matching of rules modulo that equality.

The nodes of an e-graph (Nelson and Oppen 1980; Willsey et al., POPL 2021) are interned nodes whose operands are the
representatives of their e-classes. Interning makes equal nodes one, which is the congruence that an e-graph has to
maintain. Types, attributes and preconditions are those of concrete nodes, checked by the same code that matches rules
in graphs. An e-graph library would need an equally general encoding of them (symbolic sizes, axis groups,
floating-point attributes), and could not tell afterwards which match at which nodes led to a result.

Invariant: values of one e-class have one type and are equal for all inputs, if the rules that were applied are true.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, Value, make
from taso_py.ir.operator import Operator
from taso_py.rules.match import Match, complete_match
from taso_py.rules.pattern import Bindings, OperandRef, Pattern

_Agenda: TypeAlias = list[tuple[OperandRef, Value]]


class EGraph:
    """E-classes of values, each named by one of its values, the representative."""

    def __init__(self) -> None:
        self._parent: dict[Value, Value] = {}
        self._members: dict[Value, dict[Node, None]] = {}
        self._readers: dict[Value, dict[Node, None]] = {}
        self.nodes: dict[Node, None] = {}
        """All nodes whose operands are representatives, in insertion order."""

    def __len__(self) -> int:
        return len(self.nodes)

    def find(self, value: Value) -> Value:
        """Return the representative of a value's e-class."""
        while (parent := self._parent[value]) != value:
            self._parent[value] = value = self._parent[parent]
        return value

    def members(self, representative: Value) -> Sequence[Node]:
        """Return the nodes that compute the values of an e-class."""
        return tuple(self._members[representative])

    def canonical(self, node: Node) -> Node:
        """Return a node, whose operands are in the e-graph, with representatives as operands."""
        operands = [self.find(value) for value in node.inputs]
        return node if list(node.inputs) == operands else make(node.op, operands, node.token)

    def class_of(self, value: Value, known: dict[Node, Node | None] | None = None) -> Value | None:
        """Return the e-class of a value that need not be in the e-graph itself; None if no equal value is known.

        ``known`` remembers the canonical forms of nodes between calls, as long as nothing is added.
        """
        forms = {} if known is None else known
        waiting = [value.node]
        while waiting:
            node = waiting[-1]
            missing = [operand for operand, _ in node.inputs if operand not in forms]
            waiting += missing
            if not missing:
                waiting.pop()
                forms[node] = self._form(node, forms)
        form = forms[value.node]
        return None if form is None else self.find(Value(form, value.output))

    def _form(self, node: Node, forms: dict[Node, Node | None]) -> Node | None:
        operands: list[Value] = []
        for operand, output in node.inputs:
            form = forms[operand]
            if form is None:
                return None
            operands.append(self.find(Value(form, output)))
        form = make(node.op, operands, node.token)
        return form if form in self.nodes else None

    def add(self, value: Value) -> Value:
        """Add a value and everything that it is computed from; return its representative."""
        waiting = [value]
        while waiting:
            top = waiting[-1]
            missing = [operand for operand in top.node.inputs if operand not in self._parent]
            waiting += missing
            if not missing:
                waiting.pop()
                if top not in self._parent:
                    self._insert(top.node)
        return self.find(value)

    def _insert(self, node: Node) -> None:
        """Add a node to the e-class of its canonical form."""
        form = self.canonical(node)
        if form not in self.nodes:
            self.nodes[form] = None
            for value in form.outputs:
                self._parent[value] = value
                self._members[value], self._readers[value] = {form: None}, {}
            for value in form.inputs:
                self._readers[value][form] = None
        if form is not node:
            self._parent.update((Value(node, output), Value(form, output)) for output in range(len(node.types)))

    def union(self, one: Value, other: Value) -> bool:
        """Merge two e-classes, and those of all nodes that become congruent; return false if they were one already."""
        if self.find(one) == self.find(other):
            return False
        waiting = [(one, other)]
        while waiting:
            kept, merged = map(self.find, waiting.pop())
            if kept == merged:
                continue
            if len(self._readers[kept]) < len(self._readers[merged]):
                kept, merged = merged, kept
            self._parent[merged] = kept
            self._members[kept].update(self._members.pop(merged))
            for reader in self._readers.pop(merged):
                waiting += self._renew(reader)
        return True

    def _renew(self, reader: Node) -> Iterable[tuple[Value, Value]]:
        """Replace a node whose operands are no longer representatives; yield pairs of values that are equal now."""
        if reader not in self.nodes:
            return
        del self.nodes[reader]
        for value in reader.outputs:
            self._members[self.find(value)].pop(reader, None)
        for value in reader.inputs:
            self._readers.get(self.find(value), {}).pop(reader, None)
        form = self.canonical(reader)
        if form in self.nodes:
            yield from zip(reader.outputs, form.outputs, strict=True)
            return
        self.nodes[form] = None
        for old, new in zip(reader.outputs, form.outputs, strict=True):
            representative = self.find(old)
            self._parent[new] = representative
            self._members[representative][form] = None
        for value in form.inputs:
            self._readers[value][form] = None

    def by_operator(self) -> dict[type[Operator], list[Node]]:
        """Return the nodes by the class of their operator."""
        found: dict[type[Operator], list[Node]] = {}
        for node in self.nodes:
            found.setdefault(type(node.op), []).append(node)
        return found

    def matches(self, pattern: Pattern, root: Node) -> Iterator[Match]:
        """Yield the matches of a rule with one output whose root is a node; variables are bound to representatives."""
        start = Bindings(len(pattern.operators), len(pattern.variables))
        slot = pattern.outputs[0]
        for bound in self._bind(pattern, start, slot, node=root, agenda=[]):
            if bound.settle(pattern.sizes):
                match = complete_match(pattern, bound)
                if match is not None:
                    yield match

    def _bind(
        self, pattern: Pattern, bound: Bindings, slot: OperandRef, node: Node, agenda: _Agenda
    ) -> Iterator[Bindings]:
        """Bind an operator to a node, then everything on the agenda and below it."""
        bound, operator = bound.copy(), pattern.operators[slot.number]
        if not bound.bind_node(slot.number, operator, node):
            return
        orders = [node.inputs]
        if operator.swappable and node.inputs[0] != node.inputs[1]:
            orders.append(node.inputs[::-1])
        for operands in orders:
            yield from self._extend(pattern, bound.copy(), [*agenda, *zip(operator.operands, operands, strict=True)])

    def _extend(self, pattern: Pattern, bound: Bindings, agenda: _Agenda) -> Iterator[Bindings]:
        while agenda:
            slot, value = agenda.pop()
            if slot.is_variable:
                if not bound.bind_variable(slot.number, pattern.types[slot.number], self.find(value)):
                    return
                continue
            known = bound.nodes[slot.number]
            if known is None:
                for node in self.members(self.find(value)):
                    yield from self._bind(pattern, bound, slot, node=node, agenda=agenda)
                return
            if self.find(Value(known, slot.output)) != self.find(value):
                return
        yield bound


def egraph_of(graph: Graph) -> EGraph:
    """Return the e-graph of all values of a graph, each in an e-class of its own."""
    made = EGraph()
    for node in graph.nodes:
        if node.types:
            made.add(Value(node, 0))
    return made
