"""Excerpts of graphs: values computed by their uppermost operators, of variables in place of what is below these.

Invariant: a rule that replaces the values of an excerpt replaces those that it was made from by the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, Value, make, remake
from taso_py.ir.operator import Input
from taso_py.rules.apply import instantiate
from taso_py.rules.index import GraphIndex
from taso_py.rules.match import Matcher
from taso_py.rules.substitution import Substitution


def ordered_matcher(rules: Iterable[Substitution], *, keep_all: bool = False) -> Matcher:
    """Return a matcher that tries rules by their identifiers, in whatever order they are given."""
    return Matcher(sorted(rules, key=lambda rule: rule.id), keep_all=keep_all)


def replaced(matcher: Matcher, values: Sequence[Value], levels: int) -> tuple[Substitution, Sequence[Value]] | None:
    """Return what a rule puts in place of values, and the rule: the first that matches their uppermost operators.

    Args:
        matcher: the rules.
        values: the values, in the order of the rule's outputs.
        levels: the number of operators from a value down that a rule may match.
    """
    excerpt, origins = _excerpt(values, levels)
    for match in matcher.at(GraphIndex(Graph((), excerpt)), excerpt[0].node):
        if match.outputs != excerpt:
            continue
        nodes = tuple(origins[node.value].node for node in match.nodes)
        bound = {name: origins[found] for name, found in match.values.items()}
        targets = instantiate(replace(match, nodes=nodes, values=bound, outputs=tuple(values)))
        if targets is not None:
            return match.rule, targets
    return None


def images(roots: Iterable[Node], leaves: Mapping[Value, Value]) -> Mapping[Node, Node]:
    """Return the nodes that nodes are computed by from some values, each as it is with others in place of these."""
    found: dict[Node, Node] = {}
    stack = [*roots]
    while stack:
        node = stack[-1]
        waiting = [v.node for v in node.inputs if v not in leaves and v.node not in found]
        if waiting:
            stack += waiting
            continue
        stack.pop()
        if node not in found:
            operands = [leaves[v] if v in leaves else Value(found[v.node], v.output) for v in node.inputs]
            found[node] = remake(node, operands)
    return found


def _excerpt(values: Sequence[Value], levels: int) -> tuple[tuple[Value, ...], Mapping[Value, Value]]:
    """Return values computed by their uppermost operators, and what the values of this excerpt stand for."""
    kept, level = dict[Node, None](), [node for node, _ in values]
    for _ in range(levels):
        kept.update(dict.fromkeys(level))
        level = [v.node for node in level for v in node.inputs if v.node.inputs and v.node.token is None]
    leaves: dict[Value, Value] = {}
    for node in kept:
        for operand in node.inputs:
            if operand.node not in kept and operand not in leaves:
                leaves[operand] = make(Input(f"v{len(leaves)}", operand.type)).value
    found = images([node for node, _ in values], leaves)
    origins = {image: leaf for leaf, image in leaves.items()}
    for node, image in found.items():
        origins |= {now: Value(node, now.output) for now in image.outputs}
    return tuple(Value(found[node], output) for node, output in values), origins
