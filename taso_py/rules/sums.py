"""Sums of many parts of one value, added one by one, as one sum over an axis.

As the results of an ensemble's members are added, or of experts, once these are a batch (:mod:`taso_py.rules.batches`).
A rule adds one more value to the sum of others. That sums may be added in any order is taken for granted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set

from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, Value, is_running, make, remake
from taso_py.ir.operator import Input
from taso_py.ops.elementwise import Add
from taso_py.ops.movement import Concat, Slice
from taso_py.ops.reduction import Sum
from taso_py.rules.backwards import Backwards
from taso_py.rules.ruleset import RuleSet
from taso_py.rules.stacks import LEAST, Stack, flat, slice_of, stack
from taso_py.rules.substitution import Substitution, operator_count


def has_sums(graph: Graph) -> bool:
    """Return whether a graph has a sum of enough parts of one value."""
    return any(_sums(graph))


class Adder:
    """Rules by which a sum with one more addend is one over an axis."""

    def __init__(self, rules: Iterable[Substitution]) -> None:
        """Choose the rules that are needed; their order does not matter."""
        stored = (stored for stored in RuleSet.of(rules).stored if stored.kinds >= {Sum, Concat})
        needed = [one.rule for one in stored if _leads_to_addition(one.rule)]
        self._first = Backwards(rule for rule in needed if operator_count(rule.target) == 1)
        """Rules of two values; the others are of a sum and a value."""
        self._more = Backwards(rule for rule in needed if operator_count(rule.target) > 1)

    def sets(self, graph: Graph) -> Iterator[Sequence[Node]]:
        """Yield the sums of parts of one value, each by itself."""
        return ((root,) for root in _sums(graph))

    def leaves(self, roots: Sequence[Node]) -> Sequence[Value]:
        """Return what a sum is computed from: the value that addends are parts of, and other addends."""
        parts, others = _split(roots[0])
        return list(dict.fromkeys([*parts.leaves, *others])) if parts else ()

    def derived(self, roots: Sequence[Node]) -> tuple[Sequence[Value], Sequence[Substitution]]:
        """Return what replaces a sum, and the rules that say so; nothing if no rule does."""
        parts, others = _split(roots[0]) if len(roots) == 1 else (None, ())
        if parts is None:
            return (), ()
        first, *more = parts.values
        used, total, backwards = dict[str, Substitution](), first, self._first
        for value in more:
            found = backwards.replaced(make(Add(), [total, value]).value, levels=2)
            if found is None:
                return (), ()
            rule, of_joined = found
            used[rule.id], backwards = rule, self._more
            total = remake(of_joined.node, [flat(of_joined.node.inputs[0])]).value
        total = remake(total.node, [parts.whole]).value
        for other in others:
            total = make(Add(), [total, other]).value
        return [total], list(used.values())


def _sums(graph: Graph) -> Iterator[Node]:
    """Yield the outermost of additions whose addends are parts of one value."""
    inner = set[Node]()
    for node in reversed(graph.nodes):
        if is_running(node) and node not in inner and isinstance(node.op, Add):
            addends, added = _addends(node)
            inner |= added
            if _parts(addends):
                yield node


def _addends(root: Node) -> tuple[Sequence[Value], Set[Node]]:
    """Return the values that a node is the sum of, and the nodes by which these are added, each once.

    All are of the node's type, or numbers.
    """
    found, waiting, added = list[Value](), [root.value], set[Node]()
    while waiting:
        value = waiting.pop()
        is_inner = isinstance(value.node.op, Add) and value.node not in added
        if is_inner and all(operand.type == root.types[0] or not operand.type.rank for operand in value.node.inputs):
            added.add(value.node)
            waiting += value.node.inputs
        else:
            found.append(value)
    return found, added


def _split(root: Node) -> tuple[Stack | None, Sequence[Value]]:
    """Return the addends of a node that are parts of one value, stacked, and the others, each as often as it is one."""
    others = list(_addends(root)[0])
    parts = _parts(others)
    for value in parts.values if parts else ():
        others.remove(value)
    return parts, others


def _parts(addends: Sequence[Value]) -> Stack | None:
    """Return the stack of the most of some values that are adjacent parts of one; None if they are few."""
    of_one = dict[tuple[Value, int], dict[int, Value]]()
    for value in addends:
        part = slice_of(value).node
        if isinstance(part.op, Slice) and isinstance(part.op.start, int):
            of_one.setdefault((part.inputs[0], part.op.axis), {})[part.op.start] = value
    most = max(of_one.values(), key=len, default={})
    found = stack([most[start] for start in sorted(most)], is_joined=False) if len(most) >= LEAST else None
    return found if found is not None and found.is_view else None


def _leads_to_addition(rule: Substitution) -> bool:
    """Return whether a rule leads from the sum of joined values to one value, or the sum of others, and one more."""
    source, target = rule.source.outputs[0].node, rule.target.outputs[0].node
    is_of_joined = isinstance(source.op, Sum) and isinstance(source.inputs[0].node.op, Concat)
    is_addition = isinstance(target.op, Add) and all(isinstance(v.node.op, Input | Sum) for v in target.inputs)
    return is_of_joined and is_addition
