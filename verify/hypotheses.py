"""What may be assumed about the sizes and attributes of a rule, and what its target has to guarantee.

Assumed, because the source was matched in a model that runs and the matcher refuses empty tensors: every dimension of
every value of the source is at least one; strides, dilations, kernels and groups are at least one, paddings at least
zero; slices stay inside, windows fit, pools are padded by at most half a window (PyTorch refuses all else). Assumed,
because the matcher infers the target on the concrete sizes and does not apply the rule where that fails: the
target's slices stay inside, its windows fit, its kernels are enlarged and not shrunk. The rule's own preconditions.

To be guaranteed: the strides and so on of the target are legal too, as inference does not look at them.

Invariant: a hypothesis is true whenever the matcher applies the rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from taso_py.ir.graph import Graph
from taso_py.ir.node import Node
from taso_py.ir.operator import AttributeValue, Constant, Input, Operator
from taso_py.ir.size import Dim, Poly, solve, symbol
from taso_py.ir.types import Group, TensorType
from taso_py.ops.base import TensorOperator
from taso_py.ops.contraction import Conv2d
from taso_py.ops.movement import Enlarge, Slice
from taso_py.ops.normalization import Attention, BatchNorm, LayerNorm, RmsNorm
from taso_py.ops.pooling import AdaptiveAvgPool2d, AvgPool2d, MaxPool2d
from taso_py.rules.substitution import Substitution, attribute_symbols
from verify.context import Context, coefficients
from verify.limits import Refused


def solved(rule: Substitution) -> Substitution:
    """The rule with the equalities among its preconditions used up: a size that one defines is replaced everywhere.

    Raises:
        TasoError: they contradict the shapes.
    """
    while True:
        solutions = (solve(c.value, lambda _: True) for c in rule.preconditions if c.is_equality)
        solution = next((found for found in solutions if found is not None), None)
        if solution is None:
            return rule
        try:
            rule = rule.substitute(dict([solution]))
        except ValueError as error:
            raise Refused(f"a precondition contradicts the shapes: {error}") from error


def reached(side: Graph) -> tuple[Node, ...]:
    """The nodes that a side computes with: a match says nothing of a variable that is only declared."""
    return Graph((), side.outputs).nodes


def assumptions(rule: Substitution) -> Context:
    """The facts about the symbols of a rule.

    Raises:
        Refused: they contradict each other.
    """
    facts: list[Dim] = []
    lower: dict[str, int] = {}
    for condition in rule.preconditions:
        facts += [condition.value, -1 * condition.value] if condition.is_equality else [condition.value]
    for node in reached(rule.source):
        for type_ in node.types:
            facts += _at_least_one(type_, lower)
        facts += _legal(node)
        facts += _inside(node)
    for node in reached(rule.target):
        facts += _inside(node)
    context = Context(lower, facts)
    context = context.extended(_positive_factors(context), [])
    if context.is_contradictory:
        raise Refused("the preconditions and shapes contradict each other")
    return context


def _positive_factors(context: Context) -> dict[str, int]:
    """Symbols that are at least one because their product with others, which are, is: ``G*O >= 1`` and ``G >= 1``."""
    found: dict[str, int] = {}
    for fact in context.facts:
        products = [monomial for monomial, _ in fact.terms if monomial]
        least = -coefficients(fact).get((), 0)
        if len(products) != 1 or least < 1 or coefficients(fact)[products[0]] < 0:
            continue
        unknown = [atom for atom in products[0] if not context.least((atom,))]
        if len(unknown) == 1 and isinstance(unknown[0], str):
            found[unknown[0]] = 1
    return found


def obligations(rule: Substitution) -> list[Dim]:
    """The integers that must not be negative if the target's attributes are to be legal."""
    return [statement for node in reached(rule.target) for statement in _legal_attributes(node)]


def output_index(type_: TensorType, context: Context) -> tuple[tuple[Dim, ...], Context]:
    """An index for each axis of an output, and the context in which it is inside; a group is one axis."""
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
    return tuple(index), context.extended(lower, facts)


def _at_least_one(type_: TensorType, lower: dict[str, int]) -> Iterator[Dim]:
    for axis in type_.shape:
        if isinstance(axis, Group):
            lower[f"..{axis.name}"] = 1
        elif isinstance(axis, Poly):
            yield axis - 1


def _legal(node: Node) -> Iterator[Dim]:
    yield from _legal_attributes(node)
    match node.op:
        case AvgPool2d(kernel, _, padding):
            yield from (k - 2 * p for k, p in zip(kernel, padding, strict=True))
        case MaxPool2d(kernel, _, padding, dilation):
            yield from (d * (k - 1) + 1 - 2 * p for k, p, d in zip(kernel, padding, dilation, strict=True))
        case _:
            pass


def _legal_attributes(node: Node) -> Iterator[Dim]:
    match node.op:
        case Conv2d(stride, padding, dilation, groups):
            yield from _at_least(1, (*stride, *dilation, groups))
            yield from padding
        case AvgPool2d(kernel, stride, padding):
            yield from _at_least(1, (*kernel, *stride))
            yield from padding
        case MaxPool2d(kernel, stride, padding, dilation):
            yield from _at_least(1, (*kernel, *stride, *dilation))
            yield from padding
        case AdaptiveAvgPool2d(size):
            yield from _at_least(1, size)
        case Slice(step=step):
            yield step - 1
        case _:
            pass


def _at_least(least: int, values: Iterable[Dim]) -> Iterator[Dim]:
    return (value - least for value in values)


def _inside(node: Node) -> Iterator[Dim]:
    """What shape inference checks of concrete sizes."""
    types = [value.type for value in node.inputs]
    match node.op:
        case Slice(axis, start, stop):
            yield from (start, stop - start, _axis(types[0], axis) - stop)
        case Enlarge(kernel):
            yield from (k - _axis(types[0], axis) for k, axis in zip(kernel, (-2, -1), strict=True))
        case Conv2d(_, padding, dilation):
            kernel = (_axis(types[1], -2), _axis(types[1], -1))
            yield from _span(types[0], kernel, padding, dilation)
        case AvgPool2d(kernel, _, padding):
            yield from _span(types[0], kernel, padding, (1, 1))
        case MaxPool2d(kernel, _, padding, dilation):
            yield from _span(types[0], kernel, padding, dilation)
        case _:
            pass


def _span(x: TensorType, kernel: Sequence[Dim], padding: Sequence[Dim], dilation: Sequence[Dim]) -> Iterator[Dim]:
    for axis, k, p, d in zip((-2, -1), kernel, padding, dilation, strict=True):
        yield _axis(x, axis) + 2 * p - d * (k - 1) - 1


def _axis(type_: TensorType, axis: int) -> Dim:
    found = type_.shape[axis]
    if isinstance(found, Group):
        raise Refused("an operator changes an axis group")
    return found


def check_kinds(nodes: Sequence[Node]) -> None:
    """Refuses arithmetic on elements that are not real numbers, and numbers computed from what are not integers.

    A proof speaks of reals only, and the matcher can compute with integers only.

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
        if isinstance(node.op, Input) or not isinstance(node.op, TensorOperator) or node.op.name in _MOVES:
            continue
        operands = node.inputs[:3] if node.op.name == "attention" else node.inputs
        if not all(value.type.dtype.is_floating for value in operands):
            raise Refused(f"{node.op.name} of elements that are not floating-point numbers")


_MOVES = frozenset(["concat", "slice", "permute", "reshape", "expand", "contiguous"])


def number_symbols(op: Operator) -> set[str]:
    """The symbols in attributes that are real numbers."""
    return set().union(*map(attribute_symbols, _numbers(op)))


def _numbers(op: Operator) -> Iterator[AttributeValue]:
    match op:
        case Constant(value):
            yield value
        case BatchNorm(eps) | LayerNorm(_, eps) | RmsNorm(_, eps):
            yield eps
        case Attention(scale):
            yield scale
        case _:
            pass
