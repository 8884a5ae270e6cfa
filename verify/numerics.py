"""The numerics class of a proved rule: how close its two sides are in floating point.

Three things decide. First, the level at which the proof succeeds (:class:`verify.laws.ProofLevel`):

- MOVEMENT: elementwise functions are uninterpreted, and whatever adds up several elements (products of matrices,
  convolutions, means, normalizations) is opaque and equal only to itself on the same operands. Both sides then compute
  the same operations on the same numbers: EXACT. Maxima and relu are opened, as they only choose.
- TERMS: both sides add up equal products, without a product ever being distributed over a sum: REORDER.
- ALGEBRA: distributivity, factoring, cancelling, laws of functions: REASSOCIATE.

Second, differences that do not show in real numbers, found from the operators of both sides; each raises the class of a
proof above MOVEMENT: products with zeros that only one side computes (ZERO_TERMS), scales on another side of a
contraction, regrouped products of several factors and split formulas with exponentials or normalizations (RANGE), masks
(MASK). These tests compare sets of operators, and of factors, and are meant to err upwards. Third, the caller's cap.

A product is regrouped if the target multiplies a product that the source does not form: ``(x*y)*z`` as ``x*(y*z)``, as
``y*z`` may overflow, or vanish, where the source is in range. Sums are ignored here: ``(x+y)*z`` as ``x*z + y*z``
multiplies equal factors, and REASSOCIATE covers the different sums in between, also those in contractions: ``(AB)C`` as
``A(BC)``.

Invariant: when in doubt, the higher class.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from taso_py.ir.graph import Graph
from taso_py.ir.node import Node
from taso_py.ir.operator import Constant, Input, Operator
from taso_py.ir.traits import Rounding
from taso_py.ops.base import TensorOperator
from taso_py.ops.contraction import Conv2d
from taso_py.ops.pooling import AvgPool2d
from taso_py.rules.substitution import Substitution
from taso_py.rules.verdict import Numerics
from verify.laws import INVERSES, POLES, ProofLevel

_MOST = 64
"""Most products that a value is tracked as; a value of more is a factor by itself."""


class _Number(NamedTuple):
    """A scale that is not a variable."""

    operator: str


_Product: TypeAlias = frozenset[tuple[Hashable, int]]
"""Factors, most of them nodes, with their multiplicities."""
_Products: TypeAlias = frozenset[_Product]

_OF_LEVEL = {
    ProofLevel.MOVEMENT: Numerics.EXACT,
    ProofLevel.TERMS: Numerics.REORDER,
    ProofLevel.ALGEBRA: Numerics.REASSOCIATE,
}


def classify(rule: Substitution, level: ProofLevel) -> Numerics:
    """Return the numerics class of a rule that is proved at ``level``, the lowest at which it is."""
    if level is ProofLevel.MOVEMENT:
        return Numerics.EXACT
    source, target = Graph((), rule.source.outputs), Graph((), rule.target.outputs)
    found = [_OF_LEVEL[level]]
    if _differ(source, target, _is_function):
        found.append(Numerics.REASSOCIATE)
    if _multiplies_zeros(source, target):
        found.append(Numerics.ZERO_TERMS)
    if _moves_scale(source, target) or (level is ProofLevel.ALGEBRA and _has_exponentials(source, target)):
        found.append(Numerics.RANGE)
    if level is ProofLevel.ALGEBRA and _squares(source) != _squares(target):
        found.append(Numerics.RANGE)
    if _changes_masked(source, target):
        found.append(Numerics.MASK)
    return max(found)


def _is_function(op: Operator) -> bool:
    """Return whether an operator's kernel rounds differently from its written-out definition.

    A relu is its definition; an operator that is written with relus may not round at all, where sums in its definition
    do.
    """
    if not isinstance(op, TensorOperator) or op.accumulates or op.multiplies:
        return False
    return op.rounding is Rounding.ANY or not op.applies <= {op.name}


def _is_exponential(op: Operator) -> bool:
    return "exp" in op.applies


def _is_formula(op: Operator) -> bool:
    """Return whether an operator leaves the range of its operands by more than sums and products do."""
    return _is_exponential(op) or not POLES.isdisjoint(op.applies)


def _is_product(op: Operator) -> bool:
    return op.multiplies and op.is_elementwise


def _is_scale(op: Operator) -> bool:
    """Return whether an operator scales its operand, or computes a scale."""
    return (op.multiplies and not op.accumulates) or (op.is_elementwise and not INVERSES.isdisjoint(op.applies))


def _is_average(op: Operator) -> bool:
    """Return whether an operator divides by a number of elements, which is a scale but not a variable."""
    return op.accumulates and not op.multiplies and op.rounding is Rounding.ANY


def _has_factors(op: Operator) -> bool:
    """Return whether elements have the factors of operands at the same index, summed up or chosen."""
    return op.is_elementwise and not (op.multiplies or _is_function(op))


def _names(graph: Graph, holds: Callable[[Operator], bool]) -> set[str]:
    return {node.op.name for node in graph.nodes if holds(node.op)}


def _differ(source: Graph, target: Graph, holds: Callable[[Operator], bool]) -> bool:
    return _names(source, holds) != _names(target, holds)


def _multiplies_zeros(source: Graph, target: Graph) -> bool:
    """Return whether padding, enlarged kernels, a constant zero, or a forgotten variable make products with zero."""
    return (
        any(_makes_zeros(node) for graph in (source, target) for node in graph.nodes)
        or set(_windows(source)) != set(_windows(target))
        or _variables(source) != _variables(target)
    )


def _makes_zeros(node: Node) -> bool:
    return node.op.fills or (isinstance(node.op, Constant) and node.op.value == 0)


def _windows(graph: Graph) -> Iterator[tuple[object, ...]]:
    for node in graph.nodes:
        if isinstance(node.op, Conv2d) and node.op.padding != (0, 0):
            yield (*node.inputs[1].type.shape[-2:], *node.op.padding)
        elif isinstance(node.op, AvgPool2d) and node.op.padding != (0, 0):
            yield (*node.op.kernel, *node.op.padding)


def _variables(graph: Graph) -> set[Node]:
    return {node for node in graph.nodes if isinstance(node.op, Input)}


def _moves_scale(source: Graph, target: Graph) -> bool:
    """Return whether a factor changes its position around a contraction or product chain, or a formula changes.

    A factor changes its position if it comes before a contraction on one side and after it, or at another operand, on
    the other.
    """
    return _differ(source, target, _is_formula) or _places(source) != _places(target) or _regroups(source, target)


def _has_exponentials(source: Graph, target: Graph) -> bool:
    """Return whether there are exponentials, which the proof may have split."""
    return bool(_names(source, _is_exponential) | _names(target, _is_exponential))


def _places(graph: Graph) -> set[Hashable]:
    """Return, for each contraction, the scales before each operand and those after the result.

    A scale is identified by its operator and the variables that are multiplied; after a contraction, by those that its
    result is multiplied with. Numbers are scales too where they come before a product; a move of one is detected there.
    """
    variables = _scaling(graph)
    above: dict[Node, frozenset[Hashable]] = {}
    for node in graph.nodes:
        scale = frozenset(((node.op.name, variables[node]),) if _is_scale(node.op) else _numbers(node))
        above[node] = scale.union(*(above[value.node] for value in node.inputs))
    below: dict[Node, frozenset[Hashable]] = {node: frozenset() for node in graph.nodes}
    for node in reversed(graph.nodes):
        for place, value in enumerate(node.inputs):
            others = tuple(variables[other.node] for at, other in enumerate(node.inputs) if at != place)
            scale = frozenset(((node.op.name, others),) if _is_scale(node.op) else ())
            below[value.node] |= below[node] | scale
    contractions = [node for node in graph.nodes if node.op.accumulates]
    found = {
        (n.op.name, tuple(_relevant_scales(n, above[value.node]) for value in n.inputs), below[n]) for n in contractions
    }
    return {(name, before, after) for name, before, after in found if after or any(before)}


def _relevant_scales(node: Node, scales: frozenset[Hashable]) -> frozenset[Hashable]:
    """Return the scales before a contraction that count: a sum of averages overflows no sooner than either."""
    return scales if node.op.multiplies else frozenset(scale for scale in scales if not isinstance(scale, _Number))


def _numbers(node: Node) -> tuple[_Number, ...]:
    """Return the number that a node multiplies by, if any: one over a count, or two if a value is added to itself."""
    is_doubled = node.op.name == "add" and len(set(node.inputs)) == 1
    return (_Number(node.op.name),) if is_doubled or _is_average(node.op) else ()


def _scaling(graph: Graph) -> dict[Node, frozenset[Node] | None]:
    """Return the variables that each node is computed from; None for those with contractions, which may be merged."""
    found: dict[Node, frozenset[Node] | None] = {}
    for node in graph.nodes:
        inner = [found[value.node] for value in node.inputs]
        own = frozenset((node,) if isinstance(node.op, Input) else ())
        is_contracted = node.op.accumulates or None in inner
        found[node] = None if is_contracted else own.union(*(some for some in inner if some is not None))
    return found


def _regroups(source: Graph, target: Graph) -> bool:
    """Return whether the target multiplies a product of factors that the source multiplies nowhere.

    Products that only the source multiplies further do no harm: where they overflow, the target may not.
    """
    before, after = _factors(source), _factors(target)
    known = _Products().union(*before.values())
    return any(not after[node] <= known for node in _multiplied(target) if _is_product(node.op))


def _multiplied(graph: Graph) -> set[Node]:
    """Return the nodes whose elements are multiplied, perhaps after being moved or added up."""
    found: set[Node] = set()
    for node in reversed(graph.nodes):
        if node.op.multiplies or (node in found and not _is_function(node.op)):
            found.update(value.node for value in node.inputs)
    return found


def _factors(graph: Graph) -> dict[Node, _Products]:
    """Return, for each node, the products that its elements are sums of, or chosen from.

    A value that is neither sum nor product is a factor by itself, so that moved or reduced factors are different ones:
    elements must agree.
    """
    found: dict[Node, _Products] = {}
    for node in graph.nodes:
        products = _products(node, [found[value.node] for value in node.inputs])
        found[node] = products if len(products) <= _MOST else _single_factor(node)
    return found


def _products(node: Node, operands: Sequence[_Products]) -> _Products:
    """Return the products of a node, given its operands'; one has no factors, and zero has no products."""
    if _has_factors(node.op):
        return _Products().union(*operands)
    if node.op.name == "mul":
        return _times(*operands)
    if node.op.name == "div":
        return _times(operands[0], _inverse(operands[1]))
    if isinstance(node.op, Constant) and node.op.value in (-1, 0, 1):
        return _Products([_Product()] if node.op.value else [])
    return _single_factor(node)


def _single_factor(factor: Hashable) -> _Products:
    return _Products([_Product([(factor, 1)])])


def _times(left: _Products, right: _Products) -> _Products:
    counts = (Counter(dict(one)) + Counter(dict(other)) for one in left for other in right)
    return _Products(_Product(count.items()) for count in counts)


def _inverse(divisor: _Products) -> _Products:
    """Return one over each factor; one over a sum is a factor by itself."""
    if len(divisor) != 1:
        return _single_factor(("one over", divisor))
    return _Products(_Product((("one over", factor), count) for factor, count in some) for some in divisor)


def _squares(graph: Graph) -> set[str]:
    """Return the operators whose results are squared; ``(x - m)**2`` and ``x**2 - m**2`` differ in range."""
    squares = (node for node in graph.nodes if node.op.name == "mul" and len(set(node.inputs)) == 1)
    return {node.inputs[0].node.op.name for node in squares} - {"relu"}


def _changes_masked(source: Graph, target: Graph) -> bool:
    """Return whether a row that a mask removes entirely may be computed by another formula."""
    exponentials = [_names(graph, _is_exponential) for graph in (source, target)]
    masks = [_has_mask(graph) for graph in (source, target)]
    return masks[0] != masks[1] or (any(masks) and exponentials[0] != exponentials[1])


def _has_mask(graph: Graph) -> bool:
    return any(node.op.name == "attention" and len(node.inputs) == 4 for node in graph.nodes)
