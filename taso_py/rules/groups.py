"""Groups: convolutions that have nothing in common become one of as many groups, and their batch norms one.

As those of the members of an ensemble, each with weights of its own, by their images joined along the channels. A rule
for two of them is applied again and again; that a part of what is joined is a slice of it is taken for granted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, Value, make
from taso_py.ops.contraction import Conv2d
from taso_py.ops.movement import Concat, Slice
from taso_py.ops.normalization import BatchNorm
from taso_py.rules.batches import alike
from taso_py.rules.excerpt import ordered_matcher, replaced
from taso_py.rules.ruleset import RuleSet
from taso_py.rules.stacks import LEAST, flat
from taso_py.rules.substitution import Substitution

_CHANNEL = -3
"""The axis of an image's channels."""
_KINDS = (Conv2d, BatchNorm)
"""The operators that become one."""


def has_groups(graph: Graph) -> bool:
    """Return whether a graph has enough convolutions or batch norms alike that have nothing in common."""
    return any(_of_channels(graph))


class Grouper:
    """Rules by which two convolutions, or batch norms, joined, are one."""

    def __init__(self, rules: Iterable[Substitution]) -> None:
        """Choose the rules that are needed; their order does not matter."""
        kinds = [{kind, Concat} for kind in _KINDS]
        needed = [stored.rule for stored in RuleSet.of(rules).stored if stored.kinds in kinds and _groups(stored.rule)]
        self._matcher = ordered_matcher(needed)

    def sets(self, graph: Graph) -> Iterator[Sequence[Node]]:
        """Yield the sets of nodes that may be one, operands first."""
        return _of_channels(graph)

    def leaves(self, roots: Sequence[Node]) -> Sequence[Value]:
        """Return what some of these nodes read."""
        return list(dict.fromkeys(value for root in roots for value in root.inputs))

    def derived(self, roots: Sequence[Node]) -> tuple[Sequence[Value], Sequence[Substitution]]:
        """Return slices that replace nodes, and the rules that say so; nothing if no rule does."""
        if len(roots) < LEAST or not all(isinstance(root.op, _KINDS) for root in roots):
            return (), ()
        whole, used = roots[0].value, dict[str, Substitution]()
        for root in roots[1:]:
            found = replaced(self._matcher, [make(Concat(_CHANNEL), [whole, root.value]).value], levels=2)
            if found is None:
                return (), ()
            rule, (joined,) = found
            whole, used[rule.id] = flat(joined), rule
        values, stop = list[Value](), 0
        for root in roots:
            start, stop = stop, stop + root.value.type.dims[_CHANNEL]
            values.append(make(Slice(_CHANNEL, start, stop), [whole]).value)
        return values, list(used.values())


def _of_channels(graph: Graph) -> Iterator[Sequence[Node]]:
    """Yield the sets of nodes that are alike and read nothing in common, none computed from another."""
    return (nodes for nodes in alike(graph) if isinstance(nodes[0].op, _KINDS))


def _groups(rule: Substitution) -> bool:
    """Return whether a rule leads from two operators that have nothing in common, joined, to one."""
    (source, *others), (target, *_) = rule.source.outputs, rule.target.outputs
    operands = [value for joined in source.node.inputs for value in joined.node.inputs]
    is_of_two = not others and len(source.node.inputs) == 2 and len(set(operands)) == len(operands)
    return is_of_two and isinstance(source.node.op, Concat) and isinstance(target.node.op, _KINDS)
