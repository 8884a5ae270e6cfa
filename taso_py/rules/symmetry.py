"""Symmetries of rules: exchanges of variables under which a rule says the same.

Two matrix products on one operand may be merged in either order; only one of the two matches is worth following.

Invariant: under a symmetry the preconditions and signs are unchanged, the source too up to the order of its outputs,
and the target except for the order of concatenated operands and the bounds of slices that follow it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from taso_py.ir.graph import Graph, topological
from taso_py.ir.node import Node, Value
from taso_py.ir.operator import Input, Operator
from taso_py.ir.size import substitute
from taso_py.ops.movement import Concat, Slice
from taso_py.ops.signs import sign_of
from taso_py.rules.embed import embeddings
from taso_py.rules.index import GraphIndex
from taso_py.rules.pattern import MARK, Bindings, Pattern, Size


@dataclass(frozen=True)
class Symmetry:
    """A permutation of a pattern: operator ``i`` to ``operators[i]``, variable ``i`` to ``variables[i]``."""

    operators: tuple[int, ...]
    variables: tuple[int, ...]


def symmetries(pattern: Pattern) -> list[Symmetry]:
    """Return the symmetries of a rule except the identity."""
    index = GraphIndex(Graph((), pattern.rule.source.outputs))
    root = pattern.outputs[0].number
    onto = [bound for node in pattern.nodes for bound in embeddings(pattern, index, node, root)]
    found = [symmetry for bound in onto if (symmetry := _symmetry(pattern, bound)) is not None]
    return [symmetry for symmetry in found if list(symmetry.variables) != sorted(symmetry.variables)]


def orbit(moves: Iterable[Symmetry], operator: int) -> frozenset[int]:
    """Return an operator and those it can be exchanged with; the moves form a group, with or without the identity."""
    return frozenset((operator, *(move.operators[operator] for move in moves)))


def least_first(moves: Sequence[Symmetry], path: Sequence[int]) -> Mapping[int, Sequence[int]]:
    """Return, for operators bound in this order, those bound before whose nodes must not come later.

    Of matches that differ by a symmetry at least one keeps this order: the one in which the first operator's node comes
    as early as possible, then the second's, and so on (Grochow and Kellis, Network motif discovery using subgraph
    enumeration and symmetry-breaking, RECOMB 2007).
    """
    before: dict[int, list[int]] = {}
    for operator in path:
        for other in orbit(moves, operator) - {operator}:
            before.setdefault(other, []).append(operator)
        moves = [move for move in moves if move.operators[operator] == operator]
    return before


def _symmetry(pattern: Pattern, onto: Bindings) -> Symmetry | None:
    """Return the symmetry given by an embedding of a pattern into its own source, or None."""
    nodes = [node for node in onto.nodes if node is not None]
    values = [value for value in onto.values if value is not None]
    if sorted(map(_digest, nodes)) != sorted(map(_digest, pattern.nodes)):
        return None
    if any(not isinstance(value.node.op, Input) for value in values) or len(set(values)) < len(values):
        return None
    operators = tuple(pattern.nodes.index(node) for node in nodes)
    variables = tuple(pattern.variables.index(value.node) for value in values)
    found = Symmetry(operators, variables)
    signs = [sign_of(node.value) for node in pattern.variables]
    if [signs[place] for place in variables] != signs:
        return None
    return found if _keeps_preconditions(pattern, onto) and _keeps_target(pattern, found, onto) else None


def _digest(node: Node) -> str:
    return node.digest


def _keeps_preconditions(pattern: Pattern, onto: Bindings) -> bool:
    sizes = {name.removeprefix(MARK): size for name, size in onto.integers().items()}
    conditions = pattern.rule.preconditions
    return {replace(c, value=substitute(c.value, sizes)) for c in conditions} == set(conditions)


def _keeps_target(pattern: Pattern, found: Symmetry, onto: Bindings) -> bool:
    source, target = pattern.rule.source.outputs, pattern.rule.target.outputs
    moved = {node: pattern.variables[place] for node, place in zip(pattern.variables, found.variables, strict=True)}
    sizes = {name.removeprefix(MARK): size for name, size in onto.sizes.items()}
    images = [Value(pattern.nodes[found.operators[slot.number]], slot.output) for slot in pattern.outputs]
    if set(source) != set(images):
        return False
    plain = _forms(target, {}, {})
    return _forms(target, moved, sizes) == [plain[source.index(image)] for image in images]


def _forms(outputs: Sequence[Value], moved: Mapping[Node, Node], sizes: Mapping[str, Size]) -> list[str]:
    """Return the outputs as texts that hide the order of concatenated operands and the bounds of slices."""
    texts: dict[Node, str] = {}
    for node in topological(value.node for value in outputs):
        operands = [f"{texts[value.node]}.{value.output}" for value in node.inputs]
        if isinstance(node.op, Concat) or node.op.commutative:
            operands.sort()
        name = moved.get(node, node).digest if isinstance(node.op, Input) else _name(node.op, sizes)
        texts[node] = f"{name}({', '.join(operands)})"
    return [f"{texts[value.node]}.{value.output}" for value in outputs]


def _name(op: Operator, sizes: Mapping[str, Size]) -> str:
    return f"slice along {op.axis} by {op.step}" if isinstance(op, Slice) else op.substitute(sizes).text
