"""Applying substitutions: the target on concrete operands, and the graph in which it stands for the source.

Invariant: whatever does not fit is no match: types that differ, operators that refuse their operands (or might, for
some of the sizes a model leaves open), empty dimensions, replacements that would be computed from what they replace.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from taso_py.ir.errors import ShapeError, TasoError
from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, Value, make
from taso_py.ir.operator import Input, Operator
from taso_py.ir.size import Dim, is_never_negative
from taso_py.ir.types import DType
from taso_py.ops.base import TensorOperator
from taso_py.rules.index import GraphIndex
from taso_py.rules.match import Match
from taso_py.rules.pattern import Size
from taso_py.rules.substitution import attribute_symbols, key


def instantiate(match: Match) -> tuple[Value, ...] | None:
    """The target's outputs on what the match has bound, or None if they cannot stand for the source's."""
    try:
        outputs = concrete_side(match, match.rule.target)
    except (TasoError, ValueError, ZeroDivisionError):
        return None
    if any(new.type != old.type for new, old in zip(outputs, match.outputs, strict=True)):
        return None
    return outputs


def concrete_side(match: Match, side: Graph) -> tuple[Value, ...]:
    """The outputs of one side of the match's rule, made of the values, sizes and element type that the match holds.

    Raises:
        TasoError, ValueError, ZeroDivisionError: an operator does not accept them, perhaps only for some of the sizes
            that the model leaves open, or would give an empty tensor.
    """
    built: dict[Node, Node] = {}

    def moved(value: Value) -> Value:
        op = value.node.op
        return match.values[op.key] if isinstance(op, Input) else Value(built[value.node], value.output)

    for node in side.nodes:
        if not isinstance(node.op, Input):
            built[node] = make(_concrete(node.op, match), [moved(value) for value in node.inputs])
            if any(0 in type_.shape for type_ in built[node].types):
                raise ShapeError(f"{node.op.name} gives an empty tensor")
            if not _accepts(built[node], match):
                raise ShapeError(f"{node.op.name} may not fit its operands")
    return tuple(moved(value) for value in side.outputs)


def _accepts(node: Node, match: Match) -> bool:
    """Whether the operator of a new node surely accepts its operands.

    Where a size is a symbol, shape inference cannot say; but what the source demands holds wherever the model runs.
    """
    open_ = [demand for demand in _demands(node) if not isinstance(demand, int) or demand < 0]
    if not open_:
        return True
    known = [0, *(demand for matched in match.nodes for demand in _demands(matched))]
    return all(any(is_never_negative(demand - fact) for fact in known) for demand in open_)


def _demands(node: Node) -> list[Dim]:
    """The integers that must not be negative if an operator is to make sense where it stands."""
    if not isinstance(node.op, TensorOperator):
        return []
    return [*node.op.legal(), *node.op.fits([value.type for value in node.inputs])]


def replacements(match: Match, index: GraphIndex) -> Mapping[Value, Value] | None:
    """What each replaced value becomes, or None if the match cannot be applied in the graph or would change nothing."""
    if len(match.outputs) > 1 and _is_circular(match, index):
        return None
    targets = instantiate(match)
    return None if targets is None or targets == match.outputs else dict(zip(match.outputs, targets, strict=True))


def apply(graph: Graph, match: Match) -> Graph | None:
    """The graph after the substitution, or None if it cannot be applied or would change nothing."""
    found = replacements(match, GraphIndex(graph))
    return None if found is None else graph.replace(found)


def _is_circular(match: Match, index: GraphIndex) -> bool:
    """Whether an operand of the target is computed from a value that is replaced.

    Only rules with several outputs can come to this: merging two products of which one feeds the other. Nodes being
    immutable, no cycle would arise, but the value that was to be replaced would stay alive.
    """
    target = match.rule.target
    returned = {node for node, _ in target.outputs}
    used = [n for n, readers in target.users.items() if isinstance(n.op, Input) and (readers or n in returned)]
    operands = [match.values[key(node)].node for node in used]
    return index.depends(operands, [node for node, _ in match.outputs])


def _concrete(op: Operator, match: Match) -> Operator:
    names, is_generic = _mentions(op)
    if not names and not is_generic:
        return op
    # Equal numbers of different kinds are written differently (1 and 1.0), so the kind is part of what is remembered.
    bound = tuple((name, match.sizes[name], type(match.sizes[name])) for name in names)
    return _specialize(op, bound, match.dtype)


@lru_cache(maxsize=4096)
def _mentions(op: Operator) -> tuple[tuple[str, ...], bool]:
    """The sizes that an operator of a rule mentions, and whether it mentions the element type."""
    values = [value for _, value in op.attributes]
    return tuple(sorted(set[str]().union(*map(attribute_symbols, values)))), DType.FLOAT in values


@lru_cache(maxsize=4096)
def _specialize(op: Operator, bound: tuple[tuple[str, Size, type[Size]], ...], dtype: DType | None) -> Operator:
    concrete = op.substitute({name: size for name, size, _ in bound})
    generic = {name: dtype for name, value in op.attributes if value is DType.FLOAT and dtype is not None}
    return replace(concrete, **generic) if generic else concrete
