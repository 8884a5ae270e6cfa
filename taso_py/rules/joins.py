"""Joins of many parts of one value along another axis: a view of that value in another order.

As the results of heads that are computed as a batch (:mod:`taso_py.rules.batches`) stand side by side. A rule says so
of two batches, and another one of a batch of one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, Value, is_running, make
from taso_py.ir.operator import Input, Operator
from taso_py.ops.movement import Concat, Permute, Reshape
from taso_py.rules.excerpt import ordered_matcher, replaced
from taso_py.rules.ruleset import RuleSet, StoredRule
from taso_py.rules.stacks import LEAST, Stack, stack, with_axis_moved
from taso_py.rules.substitution import Substitution

_KINDS = frozenset[type[Operator]]({Concat, Permute, Reshape})


def has_joins(graph: Graph) -> bool:
    """Return whether a graph has a join of enough parts of one value."""
    return any(map(_parts, graph.nodes))


class Joiner:
    """Rules by which batches that are joined along another axis are one batch."""

    def __init__(self, rules: Iterable[Substitution]) -> None:
        """Choose the rules that are needed; their order does not matter."""
        needed = [stored.rule for stored in RuleSet.of(rules).stored if stored.kinds <= _KINDS and _is_needed(stored)]
        self._matcher = ordered_matcher(needed)

    def sets(self, graph: Graph) -> Iterator[Sequence[Node]]:
        """Yield the joins of parts of one value, each by itself."""
        return ((root,) for root in graph.nodes if _parts(root))

    def leaves(self, roots: Sequence[Node]) -> Sequence[Value]:
        """Return the value that some are parts of."""
        parts = _parts(roots[0])
        return parts.leaves if parts else ()

    def derived(self, roots: Sequence[Node]) -> tuple[Sequence[Value], Sequence[Substitution]]:
        """Return what replaces a join, and the rules that say so; nothing if no rule does."""
        parts, op = _parts(roots[0]) if len(roots) == 1 else None, roots[0].op
        if parts is None or not isinstance(op, Concat):
            return (), ()
        used, members = dict[str, Substitution](), list[Value]()
        for value in parts.values:
            alone = make(Reshape((1, *value.type.dims)), [value]).value
            steps = [(_joined(alone, op.axis), value)]
            if members:
                before = _batch(members)
                pair = [_joined(before, op.axis), _joined(alone, op.axis)]
                steps.append((make(op, pair).value, _joined(_batch([before, alone]), op.axis)))
            members.append(alone)
            for source, target in steps:
                found = replaced(self._matcher, [source], levels=3)
                if found is None or tuple(found[1]) != (target,):
                    return (), ()
                used[found[0].id] = found[0]
        return [_joined(parts.whole, op.axis)], list(used.values())


def _parts(node: Node) -> Stack | None:
    """Return the operands of a join as parts of one value, in order; None if they are not, or are few."""
    if not isinstance(node.op, Concat) or not is_running(node) or len(node.inputs) < LEAST:
        return None
    if len({value.type for value in node.inputs}) > 1:
        return None
    found = stack(node.inputs, is_joined=False)
    return found if found.is_view else None


def _batch(members: Sequence[Value]) -> Value:
    """Return batches as one."""
    return members[0] if len(members) == 1 else make(Concat(-members[0].type.rank), members).value


def _joined(batch: Value, axis: int) -> Value:
    """Return the values of a batch, joined along one of their own axes."""
    count, *shape = batch.type.dims
    place = len(shape) + axis
    joined = Reshape((*shape[:place], count * shape[place], *shape[place + 1 :]))
    return make(joined, [with_axis_moved(batch, 0, place)]).value


def _is_needed(stored: StoredRule) -> bool:
    """Return whether a rule is about two batches that are joined along another axis, or about a batch of one."""
    ((source, _), *others), (target, _) = stored.rule.source.outputs, stored.rule.target.outputs[0]
    if others:
        return False
    if isinstance(source.op, Concat):
        is_one = isinstance(target.op, Reshape) and len(source.inputs) == 2
        return is_one and all(isinstance(value.node.op, Reshape) for value in source.inputs)
    return isinstance(source.op, Reshape) and isinstance(target.op, Input)
