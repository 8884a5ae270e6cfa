"""Application of substitutions: the target on concrete operands, and the graph with the source replaced by it.

Invariant: whatever does not fit is no match: types that differ, operators that refuse their operands, dimensions that
are empty (or might be any of these for some values of a model's open sizes), and replacements that would depend on the
values that they replace.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from taso_py.ir.errors import ShapeError, TasoError
from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, Value, make, make_as
from taso_py.ir.operator import Input, Operator
from taso_py.ir.size import Dim, Poly, is_never_negative
from taso_py.ir.types import DType
from taso_py.ops.base import TensorOperator
from taso_py.rules.index import GraphIndex
from taso_py.rules.match import Match
from taso_py.rules.pattern import Size
from taso_py.rules.substitution import Recipe, attribute_symbols, key

MOST_RECIPES = 512
"""Most recipes cached per rule: a process may see models of ever new sizes."""


def instantiate(match: Match) -> tuple[Value, ...] | None:
    """Return the target's outputs on what the match has bound, or None if they cannot replace the source's."""
    known, key = match.rule.recipes, _recipe_key(match)
    if key is not None and key in known:
        outputs = _from_recipe(match, known[key])
    else:
        try:
            nodes = _build(match, match.rule.target)
        except (TasoError, ValueError, ZeroDivisionError):
            nodes = None
        if key is not None:
            if len(known) >= MOST_RECIPES:
                known.clear()
            known[key] = None if nodes is None else tuple([(node.op, node.types) for node in nodes.values()])
        outputs = None if nodes is None else _outputs(match, match.rule.target, nodes)
    if outputs is None or any(new.type != old.type for new, old in zip(outputs, match.outputs, strict=True)):
        return None
    return outputs


def _recipe_key(match: Match) -> Hashable | None:
    """Return everything that determines the target's operators and types; None where a model leaves sizes open.

    There an operator's constraints on open sizes may follow from other nodes of the source, which differ from match to
    match.
    """
    types = [node.types[output] for node, output in match.values.values()]
    sizes = tuple(match.sizes.items())
    if any(isinstance(size, Poly) for _, size in sizes) or not all(type_.is_concrete for type_ in types):
        return None
    return match.dtype, sizes, _kinds(match.sizes.values()), tuple([type_.text for type_ in types])


def _kinds(sizes: Iterable[Size]) -> Hashable:
    """Return a key that separates equal numbers with different text: 1 and 1.0, 0.0 and -0.0."""
    return tuple([str(size) if type(size) is float else int for size in sizes])


def _from_recipe(match: Match, recipe: Recipe | None) -> tuple[Value, ...] | None:
    """Return the target's outputs built from a recipe, without repeating what follows from types alone."""
    if recipe is None:
        return None
    target, built = match.rule.target, dict[Node, Node]()
    steps = iter(recipe)
    for node in target.nodes:
        if not isinstance(node.op, Input):
            op, types = next(steps)
            built[node] = make_as(op, [_image(value, match, built) for value in node.inputs], types)
    return _outputs(match, target, built)


def concrete_side(match: Match, side: Graph) -> tuple[Value, ...]:
    """Return the outputs of one side of the match's rule, built with the values, sizes and element type of the match.

    Raises:
        TasoError, ValueError, ZeroDivisionError: an operator does not accept them, perhaps only for some of the sizes
            that the model leaves open, or might give an empty tensor.
    """
    return _outputs(match, side, _build(match, side))


def _build(match: Match, side: Graph) -> dict[Node, Node]:
    """Build the operators of a side; raises what :func:`concrete_side` raises."""
    built: dict[Node, Node] = {}
    for node in side.nodes:
        if not isinstance(node.op, Input):
            new = make(_concrete(node.op, match), [_image(value, match, built) for value in node.inputs])
            if any(type_.may_be_empty for type_ in new.types):
                raise ShapeError(f"{node.op.name} may give an empty tensor")
            if not _accepts(new, match):
                raise ShapeError(f"{node.op.name} may not fit its operands")
            built[node] = new
    return built


def _outputs(match: Match, side: Graph, built: Mapping[Node, Node]) -> tuple[Value, ...]:
    return tuple([_image(value, match, built) for value in side.outputs])


def _image(value: Value, match: Match, built: Mapping[Node, Node]) -> Value:
    """Return the graph's value for a value of a rule."""
    node, output = value
    new = built.get(node)
    return match.values[key(node)] if new is None else Value(new, output)


def _accepts(node: Node, match: Match) -> bool:
    """Return whether the operator of a new node provably accepts its operands.

    Where a size is a symbol, shape inference cannot decide; but the constraints of the source hold wherever the model
    runs.
    """
    open_ = [demand for demand in _demands(node) if not isinstance(demand, int) or demand < 0]
    if not open_:
        return True
    known = [0, *(demand for matched in match.nodes for demand in _demands(matched))]
    return all(any(is_never_negative(demand - fact) for fact in known) for demand in open_)


def _demands(node: Node) -> list[Dim]:
    """Return the integers that must not be negative for an operator to be legal on its operands."""
    if not isinstance(node.op, TensorOperator):
        return []
    return [*node.op.legal(), *node.op.fits([value.type for value in node.inputs])]


def replacements(match: Match, index: GraphIndex) -> Mapping[Value, Value] | None:
    """Return the new value of each replaced value; None if the match cannot be applied or would change nothing."""
    return None if cyclic_path(match, index) else acyclic_replacements(match)


def acyclic_replacements(match: Match) -> Mapping[Value, Value] | None:
    """Return the new value of each replaced value, for a match known not to be circular; None as above."""
    targets = instantiate(match)
    return None if targets is None or targets == match.outputs else dict(zip(match.outputs, targets, strict=True))


def apply(graph: Graph, match: Match) -> Graph | None:
    """Return the graph after the substitution, or None if it cannot be applied or would change nothing."""
    found = replacements(match, GraphIndex(graph))
    return None if found is None else graph.replace(found)


def cyclic_path(match: Match, index: GraphIndex) -> Sequence[Node]:
    """Return a path of nodes from a replaced value to an operand of the target; empty if there is none.

    Only rules with several outputs can have one: merging two products of which one feeds the other. Nodes being
    immutable, no cycle would arise, but the value that was to be replaced would stay alive.
    """
    if len(match.outputs) == 1:
        return ()
    target, place = match.rule.target, index.place
    returned = {node for node, _ in target.outputs}
    used = [n for n, readers in target.users.items() if isinstance(n.op, Input) and (readers or n in returned)]
    replaced = {node for node, _ in match.outputs}
    first = min([place[node] for node in replaced])
    reader: dict[Node, Node | None] = dict.fromkeys([match.values[key(node)].node for node in used])
    stack = list(reader)
    while stack:
        node = stack.pop()
        if node in replaced:
            return _path_from(node, reader)
        if place[node] > first:  # a node before all replaced ones depends on none of them
            for operand, _ in node.inputs:
                if operand not in reader:
                    reader[operand] = node
                    stack.append(operand)
    return ()


def _path_from(node: Node | None, reader: Mapping[Node, Node | None]) -> Sequence[Node]:
    """Return a node, its reader, the reader's reader, and so on."""
    way: list[Node] = []
    while node is not None:
        way.append(node)
        node = reader[node]
    return way


def _concrete(op: Operator, match: Match) -> Operator:
    names, is_generic = _mentions(op)
    if not names and not is_generic:
        return op
    bound = {name: match.sizes[name] for name in names}
    return _specialize(op, op.text, tuple(bound.items()), _kinds(bound.values()), match.dtype)


@lru_cache(maxsize=4096)
def _mentions(op: Operator) -> tuple[tuple[str, ...], bool]:
    """Return the sizes that an operator of a rule mentions, and whether it mentions the element type."""
    values = [value for _, value in op.attributes]
    return tuple(sorted(set[str]().union(*map(attribute_symbols, values)))), DType.FLOAT in values


@lru_cache(maxsize=4096)
def _specialize(
    op: Operator, text: str, bound: tuple[tuple[str, Size], ...], kinds: Hashable, dtype: DType | None
) -> Operator:
    """Return the operator with sizes and element type filled in; text and kinds separate operators that are equal."""
    concrete = op.substitute(dict(bound))
    generic = {name: dtype for name, value in op.attributes if value is DType.FLOAT and dtype is not None}
    return replace(concrete, **generic) if generic else concrete
