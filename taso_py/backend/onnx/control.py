"""Control flow as ONNX: ``cond`` is an ``If``; ``while_loop``, ``scan`` and ``map`` are each a ``Loop``.

A body reads what it is given from the graph around it, by name, as ONNX allows; weights among it are initializers of
the model. ONNX has ``Scan`` too, in which OpenVINO knows nothing of the graph around it.

Invariant: a ``while_loop`` computes its condition once before the first iteration and once at the end of each, so that
no iteration is made where the condition is false at the start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from taso_py.backend.onnx.errors import NotInOnnx
from taso_py.backend.onnx.writer import OnnxValue, Writer
from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, Value
from taso_py.ir.operator import Constant, Ref, Weight
from taso_py.ir.types import DType, TensorType
from taso_py.ops.nested import ControlFlow, Nested, with_pure_control_flow

WriteBody: TypeAlias = Callable[[Writer, Graph, Mapping[Value, OnnxValue]], Sequence[OnnxValue]]
"""Writes a graph whose inputs have ONNX values, and returns its outputs."""

_NUMBER, _CONDITION = TensorType(DType.I64, ()), TensorType(DType.BOOL, ())


def write_control_flow(
    w: Writer, node: Node, operands: Sequence[OnnxValue], write_body: WriteBody
) -> Sequence[OnnxValue]:
    """Write a node of control flow; return its results.

    Args:
        w: the writer of the graph around the bodies.
        node: the node, without effects.
        operands: its operands.
        write_body: writes the bodies.

    Raises:
        NotInOnnx: something in a body cannot be expressed, or the node has effects.
    """
    flow = ControlFlow.of(node)
    target = str(getattr(node.op, "target", node.op.name))
    if not node.op.pure:
        raise NotInOnnx(f"{target} has a body with effects (a random draw, an assertion)")
    if flow is None or len(flow.bodies[-1].graph.outputs) != len(node.types):
        raise NotInOnnx(f"{target} takes or returns more than tensors, which cannot be expressed in ONNX")
    written = _ControlFlow(w, flow, operands, write_body)
    match target.removeprefix("higher_order."):
        case "cond":
            return written.condition()
        case "while_loop":
            return written.while_loop()
        case _:
            return written.loop_over_slices()


@dataclass(frozen=True)
class _ControlFlow:
    """A node of control flow that is being written."""

    w: Writer
    flow: ControlFlow
    operands: Sequence[OnnxValue]
    write_body: WriteBody

    def condition(self) -> Sequence[OnnxValue]:
        """Write an ``If``."""
        chosen, *_ = self.flow.op.arguments
        if not isinstance(chosen, Ref):
            raise NotInOnnx(f"{self.flow.op.target} on a condition that is no tensor cannot be expressed in ONNX")
        branches = []
        for body in self.flow.bodies:
            inside = self.w.inside(body.graph, apart=True)
            outputs = self._outputs(inside, self._written(inside, body, ()), [])
            branches.append(inside.closed([], outputs))
        condition = self._condition(self.w, self.operands[chosen.index], self.flow.node.inputs[chosen.index].type)
        yes, no = branches
        return self.w.ops("If", len(self.flow.node.types), condition, then_branch=yes, else_branch=no)

    def while_loop(self) -> Sequence[OnnxValue]:
        """Write a ``Loop`` that ends when the condition is false."""
        test, body = self.flow.bodies
        start = self._varying(self.flow.varying)
        types = self._types(self.flow.varying)
        inside = self.w.inside(body.graph, apart=True)
        count, going, *carried = self._inputs(inside, [_NUMBER, _CONDITION, *types])
        results = self._outputs(inside, self._written(inside, body, carried), [count, going, *carried])
        goes_on = inside.output(self._tested(inside, test, results), _CONDITION, [going, *results])
        made = inside.closed([count, going, *carried], [goes_on, *results])
        return self.w.ops("Loop", len(types), None, self._tested(self.w, test, start), *start, body=made)

    def loop_over_slices(self) -> Sequence[OnnxValue]:
        """Write a ``Loop`` over the slices of operands along their first axis, whose results are stacked."""
        (body,), (*first, sliced, _) = self.flow.bodies, self.flow.lists
        start = [index for part in first for index in part]
        types = self._types(start)
        (length, *_), *_ = (type_.dims for type_ in self._types(sliced))
        inside = self.w.inside(body.graph, apart=True)
        count, going, *carried = self._inputs(inside, [_NUMBER, _CONDITION, *types])
        inside.begin(self.flow.node)
        slices = [inside.op("Gather", operand, count, axis=0) for operand in self._varying(sliced)]
        inputs = [count, going, *carried]
        results = self._outputs(inside, self._written(inside, body, [*carried, *slices]), inputs)
        inside.begin(self.flow.node)
        always = self.w.number(True, DType.BOOL)
        made = inside.closed(inputs, [inside.output(always, _CONDITION, [*inputs, *results]), *results])
        self.w.begin(self.flow.node)
        given = [self.w.scalar(length), always, *self._varying(start)]
        return self.w.ops("Loop", len(self.flow.node.types), *given, body=made)

    def _varying(self, places: Sequence[int]) -> list[OnnxValue]:
        return [self.operands[index] for index in places]

    def _types(self, places: Sequence[int]) -> list[TensorType]:
        return [self.flow.node.inputs[index].type for index in places]

    def _inputs(self, inside: Writer, types: Sequence[TensorType]) -> list[OnnxValue]:
        """Return the inputs of a body with these types."""
        origin = self.flow.node.digest[:16]
        return [inside.typed(inside.unique(f"body.{origin}.{place}"), type_) for place, type_ in enumerate(types)]

    def _written(self, w: Writer, body: Nested, varying: Sequence[OnnxValue]) -> Sequence[OnnxValue]:
        """Write the nodes of a body for operands that differ from call to call; return its results."""
        leaves = self.flow.places(body.graph.inputs)
        given = {leaves[index].value: operand for index, operand in zip(self.flow.varying, varying, strict=True)}
        outer = {leaves[index].value: self.flow.node.inputs[index] for index in self.flow.shared}
        known = {leaf: value for leaf, value in outer.items() if isinstance(value.node.op, Weight | Constant)}
        given |= {leaves[index].value: self.operands[index] for index in self.flow.shared}
        graph = with_pure_control_flow(body.graph).replace(known)
        return self.write_body(w.inside(graph, apart=False), graph, given)

    def _outputs(self, w: Writer, results: Sequence[OnnxValue], inputs: Sequence[OnnxValue]) -> list[OnnxValue]:
        """Return the results of a body as its outputs."""
        outputs: list[OnnxValue] = []
        w.begin(self.flow.node)
        for value, wanted in zip(results, self.flow.bodies[-1].graph.outputs, strict=True):
            outputs.append(w.output(value, wanted.type, [*inputs, *outputs]))
        return outputs

    def _tested(self, w: Writer, test: Nested, carried: Sequence[OnnxValue]) -> OnnxValue:
        """Write the condition of a loop for what it carries."""
        (result,) = self._written(w, test, carried)
        w.begin(self.flow.node)
        return self._condition(w, result, test.graph.outputs[0].type)

    def _condition(self, w: Writer, value: OnnxValue, type_: TensorType) -> OnnxValue:
        """Return the only element of a tensor as a condition."""
        number = w.op("Reshape", value, w.integers([])) if type_.rank else value
        return number if type_.dtype is DType.BOOL else w.cast(number, DType.BOOL)
