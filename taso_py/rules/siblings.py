"""Siblings merged: many operators of a kind that read one value become one, by a rule for two of them.

As many products of one value, the heads of a network say, are one product with all weights, of which each is a slice;
so are the products with one weight of many values. A rule for two is applied again and again. That a concatenation in
a concatenation is one, and a slice of a slice, is taken for granted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar

from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, Value, make
from taso_py.ir.operator import Input, Operator
from taso_py.ops.movement import Concat, Slice
from taso_py.rules.excerpt import ordered_matcher, replaced
from taso_py.rules.index import MOST_SIBLINGS, GraphIndex, crowds
from taso_py.rules.match import Matcher
from taso_py.rules.ruleset import RuleSet
from taso_py.rules.stacks import LEAST, Order, flat
from taso_py.rules.substitution import Substitution


def has_siblings(graph: Graph) -> bool:
    """Return whether more operators of a kind read one value than are left to ordinary rules."""
    return any(map(crowds, graph.users.values()))


def has_few_siblings(graph: Graph) -> bool:
    """Return whether enough operators of a kind read one value that other lemmas might be about what they compute."""
    return any(crowds(readers, FewMerger.most) for readers in graph.users.values())


class Merger:
    """Rules that merge two operators."""

    most: ClassVar[int] = MOST_SIBLINGS
    """The most operators that are not merged."""

    def __init__(self, rules: Iterable[Substitution]) -> None:
        """Choose the rules that are needed; their order does not matter."""
        alike = (stored.rule for stored in RuleSet.of(rules).stored if len(stored.kinds) == 1)
        self._matcher = ordered_matcher(filter(merges, alike), keep_all=True)
        self._kinds = {type(rule.source.outputs[0].node.op) for rule in self._matcher.rules}

    def sets(self, graph: Graph) -> Iterator[Sequence[Node]]:
        """Yield the sets of nodes that can be one, of many that read one value; none is computed from another."""
        index, order, readers = GraphIndex(graph), Order(graph), dict[tuple[Operator, int, Value], list[Node]]()
        for node in graph.nodes:
            if type(node.op) in self._kinds and not node.is_static:
                for place, value in enumerate(node.inputs):
                    readers.setdefault((node.op, place, value), []).append(node)
        for nodes in readers.values():
            if len(nodes) > self.most:
                apart = list[Node]()
                for node in order.sorted(nodes):
                    if all(index.is_apart(node, other) for other in apart):
                        apart.append(node)
                merging = _Merging(self._matcher, apart[0])
                merged = [node for node in apart[1:] if merging.add(node)]
                if len(merged) >= self.most:
                    yield apart[0], *merged

    def leaves(self, roots: Sequence[Node]) -> Sequence[Value]:
        """Return what some of these nodes read."""
        return list(dict.fromkeys(value for root in roots for value in root.inputs))

    def derived(self, roots: Sequence[Node]) -> tuple[Sequence[Value], Sequence[Substitution]]:
        """Return slices that replace nodes, and the rules that say so; nothing if one cannot be merged with others."""
        merging = _Merging(self._matcher, roots[0])
        is_merged = len(roots) > 1 and all(merging.add(node) for node in roots[1:])
        return (merging.slices, merging.used) if is_merged else ((), ())


class FewMerger(Merger):
    """Rules that merge two operators, for those that ordinary rules can merge as well."""

    most = LEAST - 1


class _Merging:
    """A node, and others merged with it one after the other."""

    def __init__(self, matcher: Matcher, node: Node) -> None:
        self._matcher, self._whole, self._parts = matcher, node.value, list[Slice]()
        self.used: list[Substitution] = []
        """The rules that were applied."""

    @property
    def slices(self) -> Sequence[Value]:
        """The slices that the nodes are, in order."""
        return [make(part, [self._whole]).value for part in self._parts]

    def add(self, node: Node) -> bool:
        """Merge another node, and return whether a rule says how."""
        found = replaced(self._matcher, [self._whole, node.value], levels=1)
        if found is None:
            return False
        rule, (first, second) = found
        before, part = first.node.op, second.node.op
        if not isinstance(before, Slice) or not isinstance(part, Slice) or before.start != 0:
            return False
        if self._parts and before.axis != self._parts[0].axis:
            return False
        self._parts += [part] if self._parts else [before, part]
        self._whole = flat(first.node.inputs[0])
        self.used.append(rule)
        return True


def merges(rule: Substitution) -> bool:
    """Return whether a rule leads from two operators of a kind to slices of one, which follow each other."""
    if len(rule.source.outputs) != 2 or len(rule.source.nodes) != len(rule.source.inputs) + 2:
        return False
    (one, _), (first, _), (second, _) = rule.source.outputs[0], *rule.target.outputs
    if not isinstance(first.op, Slice) or not isinstance(second.op, Slice) or first.inputs != second.inputs:
        return False
    whole = first.inputs[0].node
    given = [
        part for value in whole.inputs for part in (value.node.inputs if isinstance(value.node.op, Concat) else [value])
    ]
    is_one = type(whole.op) is type(one.op) and all(isinstance(part.node.op, Input) for part in given)
    return is_one and first.op.axis == second.op.axis and first.op.stop == second.op.start
