"""Conversion of whole graphs to ONNX models, and serialization of models.

Invariant: a model has the graph's inputs in order, its outputs as ``output_0``, ``output_1``, ..., and an initializer
per weight, which shares memory with the tensor until the model is serialized.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from taso_py.backend.identifiers import input_names as default_names
from taso_py.backend.onnx.errors import NotInOnnx
from taso_py.backend.onnx.nodes import found_in, write_nodes
from taso_py.backend.onnx.row import Row
from taso_py.backend.onnx.serialized import serialized
from taso_py.backend.onnx.table import ROWS
from taso_py.backend.onnx.writer import OnnxValue, Writer
from taso_py.backend.sizes import size_places
from taso_py.ir.graph import Graph
from taso_py.ir.node import Value
from taso_py.ir.operator import Operator
from taso_py.ir.types import DType
from taso_py.ops.nested import types_in, with_pure_control_flow

if TYPE_CHECKING:
    import onnx_ir as ir

OPSET, IR_VERSION = 20, 10
"""The versions of the operator set and of the format: the lowest with everything that the rows write."""
BF16_OPSET = 22
"""The lowest version of the operator set whose convolutions and pooling accept bfloat16."""

MOST_BYTES = (1 << 31) - (1 << 20)
"""Largest size of a serialized model in bytes; protobuf's limit is 2 GiB."""


def onnx_model(
    graph: Graph,
    weights: Mapping[str, Tensor],
    *,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    name: str = "taso_py",
    rows: Mapping[type[Operator], Row] = ROWS,
) -> ir.Model:
    """Return a graph as an ONNX model.

    Args:
        graph: any graph of a model, without effects but control flow; open sizes become named dimensions.
        weights: the weights that the graph names, by key; on the CPU.
        input_names: names for the inputs, in order; by default made from their keys.
        output_names: names for the outputs, in order; by default ``output_0`` and so on.
        name: the name of the model's graph.
        rows: the row of each operator.

    Raises:
        NotInOnnx: ONNX cannot express an operator, an element type or an effect, or ``onnx-ir`` is not installed.
    """
    try:
        import onnx_ir as ir
    except ImportError as error:
        raise NotInOnnx("the package onnx-ir is not installed; pip install 'taso-py[onnx]'") from error
    graph = with_pure_control_flow(graph)
    if graph.effects:
        effect = graph.effects[0].op
        what = getattr(effect, "target", effect.name)
        raise NotInOnnx(f"{what} has an effect beside its result (a write, a random draw, an assertion)")
    w = Writer(graph, weights)
    inputs = _inputs(w, graph, input_names)
    given = dict(zip((node.value for node in graph.inputs), inputs, strict=True))
    held = write_nodes(w, graph, given, rows)
    outputs = _outputs(w, graph, held, inputs, output_names)
    has_bf16 = any(type_.dtype is DType.BF16 for type_ in types_in(graph))
    opset = {"": BF16_OPSET if has_bf16 else OPSET, **w.domains}
    body = ir.Graph(inputs, outputs, nodes=w.nodes, initializers=w.initializers, opset_imports=opset, name=name)
    return ir.Model(body, ir_version=IR_VERSION, producer_name="taso-py")


def onnx_bytes(model: ir.Model) -> bytes:
    """Return a model in serialized form, weights included.

    Raises:
        NotInOnnx: the model is too large for one file.
    """
    size = weight_bytes(model)
    if size > MOST_BYTES:
        raise NotInOnnx(f"the model has {size / 2**30:.1f} GB of weights, more than one file may have")
    return serialized(model)


def weight_bytes(model: ir.Model) -> int:
    """Return the bytes of a model's weights."""
    held = [value.const_value for value in model.graph.initializers.values()]
    return sum(tensor.nbytes for tensor in held if tensor is not None)


def _inputs(w: Writer, graph: Graph, names: Sequence[str] | None) -> list[OnnxValue]:
    """Create the inputs, and declare the open sizes that their shapes show."""
    wanted = default_names(graph) if names is None else names
    values = [w.typed(w.unique(name), node.types[0]) for name, node in zip(wanted, graph.inputs, strict=True)]
    of_node = dict(zip(graph.inputs, values, strict=True))
    for place in size_places(graph):
        w.begin(place.input)
        shown = w.op("Shape", of_node[place.input], start=place.axis, end=place.axis + 1)
        if place.rest != 0:
            shown = w.op("Sub", shown, w.dims([place.rest]))
        if place.factor != 1:
            shown = w.op("Div", shown, w.integers([place.factor]))
        w.declare(place.size, shown)
    return values


def _outputs(
    w: Writer,
    graph: Graph,
    held: Mapping[Value, OnnxValue],
    inputs: Sequence[OnnxValue],
    names: Sequence[str] | None,
) -> list[OnnxValue]:
    """Create the outputs under their names; inputs, weights and repeated outputs are passed through ``Identity``."""
    outputs: list[OnnxValue] = []
    wanted = names or [f"output_{index}" for index in range(len(graph.outputs))]
    for wanted_name, value in zip(wanted, graph.outputs, strict=True):
        w.begin(value.node)
        outputs.append(w.output(found_in(held, value), value.type, [*inputs, *outputs]))
        outputs[-1].name = w.unique(wanted_name)
    return outputs
