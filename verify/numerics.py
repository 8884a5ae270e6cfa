"""How close the two sides of a proved rule are in floating point.

Three things decide. First the level at which the proof goes through (:class:`verify.laws.Level`):

- MOVEMENT: elementwise functions are uninterpreted, and whatever adds up several elements (products of matrices,
  convolutions, means, normalisations) is opaque and equal only to itself on the same operands. Both sides then compute
  the same operations on the same numbers: EXACT. Maxima and relu are opened, as they only choose.
- TERMS: both sides add up the same products, without a product ever being distributed over a sum: REORDER.
- ALGEBRA: distributivity, factoring, cancelling, laws of functions: REASSOCIATE.

Second, what rounding does not show in real numbers, read off the operators of both sides; each raises the class of a
proof above MOVEMENT: products with zeros that only one side computes (ZERO_TERMS), scales that stand on another side
of a contraction and formulas with exponentials or normalisations that are taken apart (RANGE), masks (MASK). These
tests compare sets of operators and are meant to err upwards. Third, the caller's cap.

Invariant: when in doubt, the higher class.
"""

from __future__ import annotations

from collections.abc import Iterator

from taso_py.ir.graph import Graph
from taso_py.ir.node import Node
from taso_py.ir.operator import Constant, Input
from taso_py.ops.contraction import Conv2d
from taso_py.ops.pooling import AvgPool2d
from taso_py.rules.substitution import Substitution
from taso_py.rules.verdict import Numerics
from verify.laws import Level

_CONTRACTIONS = frozenset(
    {"matmul", "linear", "conv2d", "attention", "sum", "mean", "avg_pool2d", "adaptive_avg_pool2d"}
)
_SCALES = frozenset({"mul", "div", "batch_norm", "layer_norm", "rms_norm", "rsqrt"})
_EXPONENTIALS = frozenset({"softmax", "attention", "exp"})
_FORMULAS = _EXPONENTIALS | {"layer_norm", "rms_norm", "batch_norm", "rsqrt", "sqrt", "div"}
_FUSED = frozenset({"silu", "gelu", "sigmoid", "tanh", "erf"})

_OF_LEVEL = {
    Level.MOVEMENT: Numerics.EXACT,
    Level.TERMS: Numerics.REORDER,
    Level.ALGEBRA: Numerics.REASSOCIATE,
}


def classify(rule: Substitution, level: Level) -> Numerics:
    """The numerics class of a rule that is proved at ``level``, the lowest at which it is."""
    if level is Level.MOVEMENT:
        return Numerics.EXACT
    source, target = Graph((), rule.source.outputs), Graph((), rule.target.outputs)
    found = [_OF_LEVEL[level]]
    if _differ(source, target, _FUSED):
        found.append(Numerics.REASSOCIATE)
    if _multiplies_zeros(source, target):
        found.append(Numerics.ZERO_TERMS)
    if _moves_scale(source, target) or (level is Level.ALGEBRA and _has_exponentials(source, target)):
        found.append(Numerics.RANGE)
    if level is Level.ALGEBRA and _squares(source) != _squares(target):
        found.append(Numerics.RANGE)
    if _changes_masked(source, target):
        found.append(Numerics.MASK)
    return max(found)


def _names(graph: Graph) -> set[str]:
    return {node.op.name for node in graph.nodes}


def _differ(source: Graph, target: Graph, names: frozenset[str]) -> bool:
    return _names(source) & names != _names(target) & names


def _multiplies_zeros(source: Graph, target: Graph) -> bool:
    """Padding, enlarged kernels, the constant zero; other padded windows, or a variable that one side forgets."""
    return (
        any(_makes_zeros(node) for graph in (source, target) for node in graph.nodes)
        or set(_windows(source)) != set(_windows(target))
        or _variables(source) != _variables(target)
    )


def _makes_zeros(node: Node) -> bool:
    return node.op.name in ("pad", "enlarge") or (isinstance(node.op, Constant) and node.op.value == 0)


def _windows(graph: Graph) -> Iterator[tuple[object, ...]]:
    for node in graph.nodes:
        if isinstance(node.op, Conv2d) and node.op.padding != (0, 0):
            yield (*node.inputs[1].type.shape[-2:], *node.op.padding)
        elif isinstance(node.op, AvgPool2d) and node.op.padding != (0, 0):
            yield (*node.op.kernel, *node.op.padding)


def _variables(graph: Graph) -> set[Node]:
    return {node for node in graph.nodes if isinstance(node.op, Input)}


def _moves_scale(source: Graph, target: Graph) -> bool:
    """A factor before a contraction that comes after it on the other side, or at another operand; a formula changed."""
    return _differ(source, target, _FORMULAS) or _places(source) != _places(target)


def _has_exponentials(source: Graph, target: Graph) -> bool:
    """Exponentials that were taken apart, perhaps."""
    return bool((_names(source) | _names(target)) & _EXPONENTIALS)


def _places(graph: Graph) -> set[tuple[str, int, frozenset[str]]]:
    """For each contraction and each operand, the scales in what the operand is computed from; -1 is what follows it."""
    above: dict[Node, frozenset[str]] = {}
    for node in graph.nodes:
        own = {node.op.name} & _SCALES
        above[node] = frozenset(own).union(*(above[value.node] for value in node.inputs))
    below: dict[Node, frozenset[str]] = {node: frozenset() for node in graph.nodes}
    for node in reversed(graph.nodes):
        for value in node.inputs:
            below[value.node] |= below[node] | ({node.op.name} & _SCALES)
    found: set[tuple[str, int, frozenset[str]]] = set()
    for node in graph.nodes:
        if node.op.name in _CONTRACTIONS:
            found |= {(node.op.name, place, above[value.node]) for place, value in enumerate(node.inputs)}
            found.add((node.op.name, -1, below[node]))
    return {place for place in found if place[2]}


def _squares(graph: Graph) -> set[str]:
    """What is squared: ``(x - m)**2`` and ``x**2 - m**2`` differ in range, and in what cancels. A relu is either."""
    squares = (node for node in graph.nodes if node.op.name == "mul" and len(set(node.inputs)) == 1)
    return {node.inputs[0].node.op.name for node in squares} - {"relu"}


def _changes_masked(source: Graph, target: Graph) -> bool:
    """Whether a row that a mask removes entirely may be computed by another formula."""
    exponentials = [_names(graph) & _EXPONENTIALS for graph in (source, target)]
    masks = [_has_mask(graph) for graph in (source, target)]
    return masks[0] != masks[1] or (any(masks) and exponentials[0] != exponentials[1])


def _has_mask(graph: Graph) -> bool:
    return any(node.op.name == "attention" and len(node.inputs) == 4 for node in graph.nodes)
