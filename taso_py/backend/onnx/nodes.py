"""Nodes of a graph as ONNX, and control flow as ONNX operators with graphs inside.

Invariant: a node that ONNX cannot express is computed now if it depends on weights only; else the graph is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from taso_py.backend.onnx.control import write_control_flow
from taso_py.backend.onnx.errors import NotInOnnx
from taso_py.backend.onnx.row import Row
from taso_py.backend.onnx.writer import OnnxValue, Writer
from taso_py.backend.tensors import NO_TENSOR
from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, Value
from taso_py.ir.operator import Constant, Input, Operator, Weight
from taso_py.ops.nested import is_control_flow


def write_nodes(
    w: Writer, graph: Graph, held: dict[Value, OnnxValue], rows: Mapping[type[Operator], Row]
) -> Mapping[Value, OnnxValue]:
    """Write the nodes of a graph without effects; return the ONNX value of each value.

    Args:
        w: the writer.
        graph: the graph.
        held: the ONNX values of its inputs, to which those of all others are added.
        rows: the row of each operator.
    """
    for node in graph.nodes:
        w.begin(node)
        if isinstance(node.op, Weight):
            if node.op.mutable:
                raise NotInOnnx(f"the model writes to its buffer {node.op.key}, which ONNX models do not")
            held[node.value] = w.weight(node.op)
        elif isinstance(node.op, Constant):
            held[node.value] = w.constant(node.op)
        elif not isinstance(node.op, Input):
            row = _control_flow(rows) if is_control_flow(node.op) else rows.get(type(node.op))
            if row is None:
                raise NotInOnnx(f"operator {node.op.name} has no row in the lowering to ONNX")
            for type_ in node.types:
                w.dtype(type_.dtype)
            operands = [found_in(held, value) for value in node.inputs]
            try:
                result = row(w, node.op, node, operands)
            except NotInOnnx:
                if not node.is_static:
                    raise
                result = [w.computed(value) for value in node.outputs]
            _hold(node, result, held)
    return held


def _control_flow(rows: Mapping[type[Operator], Row]) -> Row:
    """Return the row of control flow whose bodies are written by rows."""

    def write_body(w: Writer, graph: Graph, inputs: Mapping[Value, OnnxValue]) -> Sequence[OnnxValue]:
        held = write_nodes(w, graph, dict(inputs), rows)
        return [found_in(held, value) for value in graph.outputs]

    return lambda w, _op, node, operands: write_control_flow(w, node, operands, write_body)


def _hold(node: Node, result: Any, held: dict[Value, OnnxValue]) -> None:
    results: Sequence[OnnxValue | None] = result if isinstance(result, list | tuple) else [result]
    for value, found in zip(node.outputs, results, strict=True):
        if found is not None:
            held[value] = found


def found_in(held: Mapping[Value, OnnxValue], value: Value) -> OnnxValue:
    """Return the ONNX value of a value.

    Raises:
        NotInOnnx: it has none.
    """
    found = held.get(value)
    if found is None:
        what = getattr(value.node.op, "target", value.node.op.name)
        kind = "is no tensor" if value.type == NO_TENSOR else "cannot be expressed in ONNX"
        raise NotInOnnx(f"result {value.output} of {what} {kind}")
    return found
