"""Limits on how large the integers of a graph can become.

They are for engines that compute int64 in 32 bits and compare integers in float32.

In loops the limits of what is carried on are a fixed point, or those of a counter: an integer that grows by a constant
while it is less than a bound, or shrinks while it is more.

Invariant: no value exceeds its limit in magnitude if the given ones do not; a limit beyond :data:`MOST` stands for any.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, prod

from taso_py.backend.schema import COMPARISONS
from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, Value
from taso_py.ir.operator import Constant, Input, Operator, Weight
from taso_py.ir.size import Poly
from taso_py.ir.types import DType
from taso_py.ops.choice import ComparisonOperator, Greater, GreaterEqual, LogicalAnd
from taso_py.ops.elementwise import Add, Mul, Sub
from taso_py.ops.movement import Pad
from taso_py.ops.nested import ControlFlow, Nested, is_control_flow
from taso_py.ops.opaque import Opaque

WHOLE = frozenset({DType.U8, DType.I8, DType.I16, DType.I32, DType.I64})
"""Integer types that engines have."""
LARGE = (DType.I64, DType.I32)
"""Integer types whose values may be larger than those that float32 holds."""
LEAST, MOST = -(2**31), 2**31 - 1
"""The integers that 32 bits hold."""
MOST_COMPARED = 2**24
"""The largest integer up to which float32 holds all."""
PLACES = frozenset(("argmax", "argmin", "bucketize", "max", "min", "searchsorted", "topk"))
"""ATen operators that return indices, and compare integers as floating-point numbers."""
_COMPARING = COMPARISONS | {"isin"}
"""ATen operators that compare integers as floating-point numbers, and return truth values."""
SUMS = frozenset(("count_nonzero", "sum"))
"""ATen operators that add integers up, as floating-point numbers."""
RUNNING_SUM = "cumsum"
"""The ATen operator that returns the sums of the first elements of its operand."""
_SMALL: Mapping[DType, int] = {DType.U8: 2**8 - 1, DType.I8: 2**7, DType.I16: 2**15}
"""The largest magnitudes of the other integer types."""
_ROUNDS = 4
"""Most calls of a body after which the limits of what it carries on are no longer followed."""


def is_held(graph: Graph, weights: Mapping[str, int], most: int) -> bool:
    """Return whether 32 bits hold all int64 values of a graph, and float32 all integers that it compares or adds up.

    Args:
        graph: the graph.
        weights: the largest magnitude of each weight of int64 or int32, by key.
        most: the largest magnitude of the graph's inputs of these types.
    """
    leaves = {node: _SMALL.get(node.types[0].dtype, most) for node in graph.inputs}
    leaves |= {
        node: weights.get(node.op.key, _SMALL.get(node.types[0].dtype, MOST))
        for node in graph.nodes
        if isinstance(node.op, Weight)
    }
    limits = _Limits(graph, leaves)
    return limits.largest <= MOST and limits.compared <= MOST_COMPARED


class _Limits:
    """The limits of a graph's values, given those of its inputs and weights."""

    def __init__(self, graph: Graph, leaves: Mapping[Node, int]) -> None:
        self._known: dict[Value, int] = {}
        self._leaves = leaves
        self.largest = 0
        """The limit on all int64 values, those in bodies included."""
        self.compared = 0
        """The limit on all integers that are compared for their places, or added up."""
        for node in graph.nodes:
            self.compared = max(self.compared, self._compared(node))
            limits = self._limits(node)
            if isinstance(node.op, Opaque) and aten_name(node.op) in SUMS and node.types[0].dtype in WHOLE:
                self.compared = max(self.compared, *limits)
            for value, limit in zip(node.outputs, limits, strict=True):
                if value.type.dtype is DType.I64:
                    self._known[value] = limit
                    self.largest = max(self.largest, limit)
                elif value.type.dtype in WHOLE:  # these wrap around alike
                    self._known[value] = min(limit, MOST)
        self.results = list(map(self.of, graph.outputs))

    def _compared(self, node: Node) -> int:
        """Return the limit on the integers that a node compares with others, or for their places; 0 if it does not."""
        name = aten_name(node.op) if isinstance(node.op, Opaque) else ""
        if name in PLACES:
            return max([0, *self._given(node)])
        if not isinstance(node.op, ComparisonOperator) and name not in _COMPARING:
            return 0
        given = [*self._given(node), *(abs(number) for number in numbers_in(node.op) if isinstance(number, int))]
        # Rounding changes no comparison with a number that float32 holds with its neighbours.
        return max(given) if min(given, default=0) >= MOST_COMPARED else 0

    def of(self, value: Value) -> int:
        """Return the limit of a value; any for other types."""
        return self._known.get(value, MOST)

    def _limits(self, node: Node) -> Sequence[int]:
        """Return the limits of a node's results."""
        if is_control_flow(node.op):
            flow = ControlFlow.of(node)
            return [MOST + 1] * len(node.types) if flow is None else self._of_flow(flow)
        is_known = any(type_.dtype in WHOLE for type_ in node.types)
        return [self._limit(node) if is_known else MOST] * len(node.types)

    def _limit(self, node: Node) -> int:
        op = node.op
        if isinstance(op, Input | Weight):
            return self._leaves[node]
        given = self._given(node)
        if isinstance(op, Add | Sub | Mul):
            return prod(given) if isinstance(op, Mul) else sum(given)
        if isinstance(op, Opaque) and aten_name(op) in (*PLACES, *SUMS, RUNNING_SUM):
            elements = max(MOST if value.type.open else value.type.elements for value in node.inputs)
            if aten_name(op) in PLACES:
                given = [*given, elements]
            else:
                given = [elements * (1 if aten_name(op) == "count_nonzero" else max([1, *given]))]
        numbers = [MOST if isinstance(number, Poly) else abs(number) for number in numbers_in(op)]
        return ceil(max([1, *given, *numbers]))

    def _given(self, node: Node) -> list[int]:
        """Return the limits of a node's integer operands."""
        return [self.of(value) for value in node.inputs if value.type.dtype in WHOLE]

    def _of_flow(self, flow: ControlFlow) -> Sequence[int]:
        shared = [self.of(flow.node.inputs[index]) for index in flow.shared]
        if flow.op.target == "higher_order.cond":
            return [max(limits) for limits in zip(*(self._called(body, shared) for body in flow.bodies), strict=True)]
        varying = [self.of(flow.node.inputs[index]) for index in flow.varying]
        *tests, body = flow.bodies
        count = len(flow.varying) if tests else sum(map(len, flow.lists[:-2]))
        bounds = [bound for test in tests for place in range(count) if (bound := _bound(test, body, place)) is not None]
        limits = [*varying, *shared]
        for bound in bounds:
            limits[bound.place] = max(limits[bound.place], bound.most, 0 if bound.by is None else limits[bound.by])
        counted = [bound.place for bound in bounds]
        results, rounds = self._called(body, limits), 1
        while grown := [at for at in range(count) if results[at] > limits[at] and at not in counted]:
            if rounds == _ROUNDS:
                return [MOST + 1] * len(results)
            for place in grown:
                limits[place] = results[place]
            results, rounds = self._called(body, limits), rounds + 1
        ends = [max(limits[place], results[place]) for place in range(count)]
        for test in tests:
            self._called(test, [*ends, *limits[count:]])
        return [*ends, *results[count:]]

    def _called(self, body: Nested, limits: Sequence[int]) -> list[int]:
        """Return the limits of a body's results, given those of its operands."""
        inside = _Limits(body.graph, dict(zip(body.graph.inputs, limits, strict=True)))
        self.largest = max(self.largest, inside.largest)
        self.compared = max(self.compared, inside.compared)
        return inside.results


@dataclass(frozen=True)
class _Bound:
    """A bound of an integer that a loop counts."""

    place: int
    """The place of the integer among the body's inputs."""
    most: int = 0
    """The number that bounds it, if it is one."""
    by: int | None = None
    """The place of the input that bounds it, and stays as it is; None if a number does."""


def _bound(test: Nested, body: Nested, place: int) -> _Bound | None:
    """Return the bound of an integer that a loop counts; None if it is none, or has no bound.

    Args:
        test: the condition of the loop.
        body: its body.
        place: the place of the integer among what is carried on.
    """
    step, inputs = _step(body, place), test.graph.inputs
    for comparison in _all_true(test.graph.outputs[0]) if step else ():
        if not isinstance(comparison.op, Greater | GreaterEqual):
            continue
        bound, counter = comparison.inputs if step > 0 else comparison.inputs[::-1]
        if counter != inputs[place].value or bound.type.dtype is not DType.I64:
            continue
        if isinstance(bound.node.op, Constant) and isinstance(bound.node.op.value, int):
            return _Bound(place, most=abs(bound.node.op.value))
        if bound.node in inputs and _stays(body, inputs.index(bound.node)):
            return _Bound(place, by=inputs.index(bound.node))
    return None


def _stays(body: Nested, place: int) -> bool:
    """Return whether an input of a body is the same in each of its calls."""
    results = body.graph.outputs
    return place >= len(results) or results[place] == body.graph.inputs[place].value


def _step(body: Nested, place: int) -> int:
    """Return the constant by which an integer grows in each call of a body; 0 if it does not."""
    node, counter = body.graph.outputs[place].node, body.graph.inputs[place].value
    if counter.type.dtype is not DType.I64 or counter.type.shape or not isinstance(node.op, Add | Sub):
        return 0
    other = [value for value in node.inputs if value != counter]
    if len(other) != 1 or (isinstance(node.op, Sub) and node.inputs[0] != counter):
        return 0
    step = other[0].node.op
    if not isinstance(step, Constant) or not isinstance(step.value, int):
        return 0
    return -step.value if isinstance(node.op, Sub) else step.value


def _all_true(value: Value) -> Iterator[Node]:
    """Yield the nodes that are all true where a value is."""
    if isinstance(value.node.op, LogicalAnd):
        for operand in value.node.inputs:
            yield from _all_true(operand)
    else:
        yield value.node


def numbers_in(op: Operator) -> Iterator[float | Poly]:
    """Yield the numbers in an operator that its results may hold: constants, fill values, ends of ranges."""
    written: list[object] = []
    if isinstance(op, Constant | Pad):
        written = [op.value]
    elif isinstance(op, Opaque) and "slice" not in op.target:
        written = [*op.arguments, *(value for _, value in op.keywords)]
    yield from (value for value in written if isinstance(value, int | float | Poly))


def aten_name(op: Opaque) -> str:
    """Return the name of a call, without its namespace and overload."""
    return op.target.split(".")[1]
