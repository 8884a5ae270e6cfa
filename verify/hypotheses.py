"""Assumptions about the sizes and attributes of a rule, and obligations of its target.

Assumed, because the source was matched in a model that runs and the matcher refuses empty tensors: every dimension of
every value of the source is at least one; strides, dilations, kernels and groups are at least one, paddings at least
zero; slices stay inside, windows fit, pools are padded by at most half a window (PyTorch refuses all else). Assumed,
because it is checked where the rule is applied, and the rule is not applied where it fails
(:mod:`taso_py.rules.apply`): the target's slices stay inside, its windows fit, its kernels are enlarged and not shrunk.
The rule's own preconditions.

To be guaranteed: the strides and other attributes of the target are legal too. And both sides look up the same
integers among as many places: so all are within their extents if the source raises no error, and if it does, the target
does too.

Invariant: a hypothesis is true whenever the matcher applies the rule.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, Value
from taso_py.ir.operator import AttributeValue, Constant, Operator
from taso_py.ir.size import Dim, Poly, solve, symbol, symbols
from taso_py.ir.types import DType, Group, TensorType
from taso_py.ops.base import TensorOperator, plain_axis
from taso_py.ops.contraction import Baddbmm
from taso_py.ops.elementwise import LeakyRelu
from taso_py.ops.normalization import Attention, BatchNorm, GroupNorm, InstanceNorm, LayerNorm, RmsNorm
from taso_py.ops.selection import Gather, Take, origins
from taso_py.rules.substitution import Substitution, attribute_symbols
from verify.context import Context, coefficients
from verify.limits import Refused


def without_equalities(rule: Substitution) -> Substitution:
    """Return the rule with the equalities among its preconditions substituted: a size that one defines is replaced.

    Raises:
        Refused: they contradict the shapes, or are about numbers that are not integers.
    """
    nodes = (*rule.source.nodes, *rule.target.nodes)
    numbers = set[str]().union(*(number_symbols(node.op) for node in nodes))
    for condition in rule.preconditions:
        if not numbers.isdisjoint(symbols(condition.value)):
            raise Refused(f"a precondition on a number that need not be an integer: {condition}")
    while True:
        solutions = (solve(c.value, lambda _: True) for c in rule.preconditions if c.is_equality)
        solution = next((found for found in solutions if found is not None), None)
        if solution is None:
            return rule
        try:
            rule = rule.substitute(dict([solution]))
        except ValueError as error:
            raise Refused(f"a precondition contradicts the shapes: {error}") from error


def reachable_nodes(side: Graph) -> tuple[Node, ...]:
    """Return the nodes that a side computes with: a match does not bind a variable that is only declared."""
    return Graph((), side.outputs).nodes


def assumptions(rule: Substitution) -> Context:
    """Return the facts about the symbols of a rule.

    Raises:
        Refused: they contradict each other.
    """
    facts: list[Dim] = []
    lower: dict[str, int] = {}
    for condition in rule.preconditions:
        facts += [condition.value, -1 * condition.value] if condition.is_equality else [condition.value]
    for node in reachable_nodes(rule.source):
        for type_ in node.types:
            facts += _at_least_one(type_, lower)
        facts += legal(node)
        facts += fits(node)
    for node in reachable_nodes(rule.target):
        facts += fits(node)
    context = Context(lower, facts)
    context = context.with_facts(_positive_factors(context), [])
    if context.is_contradictory:
        raise Refused("the preconditions and shapes contradict each other")
    return context


def _positive_factors(context: Context) -> dict[str, int]:
    """Return symbols that are at least one because their product with positive ones is: ``G*O >= 1`` and ``G >= 1``."""
    found: dict[str, int] = {}
    for fact in context.facts:
        products = [monomial for monomial, _ in fact.terms if monomial]
        least = -coefficients(fact).get((), 0)
        if len(products) != 1 or least < 1 or coefficients(fact)[products[0]] < 0:
            continue
        unknown = [atom for atom in products[0] if not context.lower_bound((atom,))]
        if len(unknown) == 1 and isinstance(unknown[0], str):
            found[unknown[0]] = 1
    return found


def obligations(rule: Substitution) -> list[Dim]:
    """Return the integers that must not be negative for the target's attributes to be legal."""
    return [statement for node in reachable_nodes(rule.target) for statement in legal(node)]


def lookups(side: Graph) -> frozenset[tuple[Value, Dim, Dim]]:
    """Return what a side looks up: tensors of integers, each with the extent and how negative integers are taken.

    Every integer of such a tensor has to stand for a place within the extent, or the model raises an error.
    """
    return frozenset(
        (origin, plain_axis(node.inputs[0].type, node.op.axis), node.op.wraps)
        for node in reachable_nodes(side)
        if isinstance(node.op, Take | Gather)
        for origin in origins(node.inputs[1])
    )


def output_index(type_: TensorType, context: Context) -> tuple[tuple[Dim, ...], Context]:
    """Return an index for each axis of an output, and the context in which it is inside; a group is one axis."""
    index: list[Dim] = []
    lower: dict[str, int] = {}
    facts: list[Dim] = []
    for position, axis in enumerate(type_.shape):
        extent = symbol(f"..{axis.name}") if isinstance(axis, Group) else axis
        if extent == 1:
            index.append(0)
            continue
        name = f"@{position}"
        index.append(symbol(name))
        lower[name] = 0
        facts.append(extent - 1 - symbol(name))
    return tuple(index), context.with_facts(lower, facts)


def _at_least_one(type_: TensorType, lower: dict[str, int]) -> Iterator[Dim]:
    for axis in type_.shape:
        if isinstance(axis, Group):
            lower[f"..{axis.name}"] = 1
        elif isinstance(axis, Poly):
            yield axis - 1


def legal(node: Node) -> Iterator[Dim]:
    """Yield the integers that must not be negative for the attributes of a node's operator to be legal."""
    return node.op.legal() if isinstance(node.op, TensorOperator) else iter(())


def fits(node: Node) -> Iterator[Dim]:
    """Yield the integers that must not be negative for a node's operator to fit its operands."""
    types = [value.type for value in node.inputs]
    return node.op.fits(types) if isinstance(node.op, TensorOperator) else iter(())


def check_kinds(nodes: Sequence[Node]) -> None:
    """Refuse arithmetic on elements that are not real numbers, and numbers computed from symbols other than integers.

    A proof is about reals only, and the matcher can compute with integers only.

    Raises:
        Refused: there is such a node.
    """
    integers: set[str] = set()
    for node in nodes:
        integers.update(*(type_.symbols for type_ in node.types))
        integers |= set().union(*(attribute_symbols(v) for _, v in node.op.attributes)) - number_symbols(node.op)
    for node in nodes:
        for value in _numbers(node.op):
            if isinstance(value, Poly) and value.terms != ((tuple(value.symbols), 1),) and value.symbols - integers:
                raise Refused(f"{node.op.text}: a number is a symbol or computed from integers")
        if not isinstance(node.op, TensorOperator) or (node.op.is_movement and not node.op.fills):
            continue
        operands = node.inputs[:3] if node.op.name == "attention" else node.inputs
        types = [value.type.dtype for value in operands]
        if not all(dtype.is_floating or (node.op.reads_truth and dtype is DType.BOOL) for dtype in types):
            raise Refused(f"{node.op.name} of elements that are not floating-point numbers")


def number_symbols(op: Operator) -> set[str]:
    """Return the symbols in attributes that are real numbers."""
    return set().union(*map(attribute_symbols, _numbers(op)))


def _numbers(op: Operator) -> Iterator[AttributeValue]:
    match op:
        case Constant(value):
            yield value
        case BatchNorm(eps) | GroupNorm(_, eps) | InstanceNorm(eps) | LayerNorm(_, eps) | RmsNorm(_, eps):
            yield eps
        case Attention(number) | LeakyRelu(number):
            yield number
        case Baddbmm(beta, alpha):
            yield from (beta, alpha)
        case _:
            pass
