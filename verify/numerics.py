"""The numerics class of a proved rule: how close its two sides are in floating point.

Three things decide. First, the level at which the proof succeeds (:class:`verify.laws.ProofLevel`):

- MOVEMENT: elementwise functions are uninterpreted, and whatever adds up several elements (products of matrices,
  convolutions, means, normalizations) is opaque and equal only to itself on the same operands. Both sides then compute
  the same operations on the same numbers: EXACT. Maxima, relu and choices are opened, as they only choose; comparisons
  are equal only to themselves on the same operands.
- TERMS: both sides add up equal products, without a product ever being distributed over a sum: REORDER.
- ALGEBRA: distributivity, factoring, cancelling, laws of functions: REASSOCIATE.

Second, what rounding does not show in real numbers. Read off the operators of both sides: products with zeros that only
one side computes, comparisons that are decided as if nothing were NaN (ZERO_TERMS), formulas with exponentials or
normalizations that are taken apart, comparisons of what is rounded otherwise (RANGE), masks (MASK). Read off the
polynomials that both sides compute (:mod:`verify.magnitude`): intermediate values that overflow, cancel or vanish where
nothing of the source does (RANGE). Third, the caller's cap.

Invariant: when in doubt, the higher class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, Value
from taso_py.ir.operator import Constant, Input, Operator
from taso_py.ir.size import Poly
from taso_py.ir.traits import Rounding
from taso_py.ops.base import TensorOperator
from taso_py.ops.choice import ComparisonOperator, Where
from taso_py.ops.contraction import Conv2d, Conv3d
from taso_py.ops.elementwise import Cast
from taso_py.ops.normalization import Attention, BatchNorm, GroupNorm, InstanceNorm
from taso_py.ops.pooling import AvgPool2d
from taso_py.rules.substitution import Substitution
from taso_py.rules.verdict import Numerics
from verify.laws import POLES, ProofLevel
from verify.magnitude import stays_in_range

_OF_LEVEL = {
    ProofLevel.MOVEMENT: Numerics.EXACT,
    ProofLevel.TERMS: Numerics.REORDER,
    ProofLevel.ALGEBRA: Numerics.REASSOCIATE,
}


def classify(rule: Substitution, level: ProofLevel) -> Numerics:
    """Return the numerics class of a rule that is proved at ``level``, the lowest at which it is."""
    source, target = Graph((), rule.source.outputs), Graph((), rule.target.outputs)
    if level is ProofLevel.MOVEMENT:
        return _of_moved_numbers(source, target)
    found = [_OF_LEVEL[level], _of_comparisons(source, target, level)]
    if _differ(source, target, _is_function):
        found.append(Numerics.REASSOCIATE)
    if _multiplies_zeros(source, target):
        found.append(Numerics.ZERO_TERMS)
    if _differ(source, target, _is_formula) or (level is ProofLevel.ALGEBRA and _has_exponentials(source, target)):
        found.append(Numerics.RANGE)
    if level is ProofLevel.ALGEBRA and _squares(source) != _squares(target):
        found.append(Numerics.RANGE)
    if _weighs_norms(source, target):
        found.append(Numerics.RANGE)
    if _changes_masked(source, target, level):
        found.append(Numerics.MASK)
    if max(found) < Numerics.RANGE and not stays_in_range(rule):
        found.append(Numerics.RANGE)
    return max(found)


def _of_moved_numbers(source: Graph, target: Graph) -> Numerics:
    """Return the class of a rule that moves elements only.

    A number that is an operand by itself is not rounded to the element type of the result, as a tensor of it is; and a
    quotient of a number is computed as a product with the reciprocal.
    """
    differing = set(_number_operands(source)) ^ set(_number_operands(target))
    if not differing:
        return Numerics.EXACT
    return Numerics.RANGE if any(name == "div" for name, _, _ in differing) else Numerics.REASSOCIATE


def _of_comparisons(source: Graph, target: Graph, level: ProofLevel) -> Numerics:
    """Return the class that comparisons call for, which jump where what is computed is continuous.

    With all laws they are decided as if nothing were NaN, of which every comparison but that for inequality is false.
    And operands that are rounded decide otherwise than true ones, so that the target may compare those of the source,
    or what is not rounded.
    """
    compared = set(_compared(source))
    if any(not (pair in compared or all(map(_is_unrounded, pair))) for pair in _compared(target)):
        return Numerics.RANGE
    has_comparisons = bool(compared or any(_compared(target)))
    return Numerics.ZERO_TERMS if level is ProofLevel.ALGEBRA and has_comparisons else Numerics.EXACT


def _compared(graph: Graph) -> Iterator[frozenset[Value]]:
    """The values that are compared with each other, or converted to integers or truth values, which jump as well."""
    return (
        frozenset(node.inputs)
        for node in graph.nodes
        if isinstance(node.op, ComparisonOperator)
        or (isinstance(node.op, Cast) and not (node.op.dtype.is_floating or node.op.dtype.is_complex))
    )


def _is_unrounded(value: Value) -> bool:
    nodes = Graph((), (value,)).nodes
    return all(isinstance(node.op, Input | Constant) or node.op.rounding is Rounding.NEVER for node in nodes)


def _number_operands(graph: Graph) -> Iterator[tuple[str, int, float | Poly]]:
    """The operators that compute with numbers as such, and with which as which operand."""
    for node in graph.nodes:
        for place, value in enumerate(node.inputs):
            if isinstance(value.node.op, Constant) and not (node.op.is_movement or isinstance(node.op, Where)):
                yield node.op.name, place, value.node.op.value


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
        elif isinstance(node.op, AvgPool2d) and (node.op.padding != (0, 0) or node.op.ceil):
            yield (*node.op.kernel, *node.op.padding, node.op.ceil)
        elif isinstance(node.op, Conv3d) and any(node.op.padding):
            yield (*node.inputs[1].type.shape[-3:], *node.op.padding)
        elif isinstance(node.op, Attention) and node.op.causal:
            # Keys that a row does not see are multiplied by zero.
            yield ("causal", node.inputs[1].type.shape[-2])


def _variables(graph: Graph) -> set[Node]:
    return {node for node in graph.nodes if isinstance(node.op, Input)}


def _has_exponentials(source: Graph, target: Graph) -> bool:
    """Return whether there are exponentials, which the proof may have split."""
    return bool(_names(source, _is_exponential) | _names(target, _is_exponential))


def _squares(graph: Graph) -> set[str]:
    """Return the operators whose results are squared; ``(x - m)**2`` and ``x**2 - m**2`` differ in range."""
    squares = (node for node in graph.nodes if node.op.name == "mul" and len(set(node.inputs)) == 1)
    return {node.inputs[0].node.op.name for node in squares} - {"relu"}


def _weighs_norms(source: Graph, target: Graph) -> bool:
    """Return whether a weight enters or leaves a norm that multiplies it by one over the deviation first."""
    norms = [
        {(node.op.name, len(node.inputs)) for node in graph.nodes if _is_weighed(node)} for graph in (source, target)
    ]
    return bool(norms[0] and norms[1]) and norms[0] != norms[1]


def _is_weighed(node: Node) -> bool:
    return isinstance(node.op, BatchNorm | GroupNorm | InstanceNorm)


def _changes_masked(source: Graph, target: Graph, level: ProofLevel) -> bool:
    """Return whether a row that a mask removes entirely may be computed by another formula."""
    exponentials = [_names(graph, _is_exponential) for graph in (source, target)]
    masks = [_has_mask(graph) for graph in (source, target)]
    if masks[0] != masks[1]:
        return True
    return any(masks) and (level is ProofLevel.ALGEBRA or exponentials[0] != exponentials[1])


def _has_mask(graph: Graph) -> bool:
    return any(node.op.name == "attention" and len(node.inputs) == 4 for node in graph.nodes)
