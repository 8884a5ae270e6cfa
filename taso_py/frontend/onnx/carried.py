"""ONNX nodes that are carried through as they are, since no row computes them in PyTorch; ONNX Runtime does.

Invariant: a carried node gives the same results at each run, of sizes that follow from those of its operands, and was
run on the examples in the form in which it is written again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from taso_py.backend.onnx.model import IR_VERSION, OPSET
from taso_py.backend.onnx.serialized import serialized
from taso_py.backend.onnx_call import call_onnx, decoded_model, encoded_model, stated_results
from taso_py.frontend.onnx.call import Known, Row

if TYPE_CHECKING:
    import onnx_ir as ir

RANDOM = frozenset(
    ("Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
)
"""Kinds of nodes that may draw random numbers."""
MOST_INSIDE = 64
"""Most elements of a vector of integers, such as sizes or axes, that a node has as its own."""


class CarryError(Exception):
    """Raised for a node that cannot be carried through; the message says why."""


@dataclass(frozen=True)
class CarriedNode:
    """A node that is computed at run time by ONNX Runtime."""

    kind: str
    place: str
    """The name of the node, or what it computes if it has none."""
    model: str
    """A model of this node alone, as :func:`taso_py.backend.onnx_call.encoded_model` gives it."""
    inputs: Sequence[str]
    """The operands that the model takes, in order."""
    outputs: Sequence[str]

    def run(self, inputs: Sequence[Tensor | None], rows: Mapping[str, Row]) -> Sequence[Tensor]:
        """Compute the results from the operands."""
        return torch.ops.taso_py.onnx_node.default(list(inputs), self.kind, self.model)


def carried_node(
    node: ir.Node,
    kind: str,
    place: str,
    *,
    values: Mapping[str, Tensor],
    known: Mapping[str, Known],
    versions: Mapping[str, int],
) -> CarriedNode:
    """Return a node in the form in which it is carried through.

    Args:
        node: the node.
        kind: its name, with the domain unless that is the default one.
        place: where it is, for messages.
        values: values of its operands for the example inputs, by name.
        known: those among them that are small constants.
        versions: versions of operator sets, by domain.

    Raises:
        CarryError: it draws random numbers, has a graph of its own, takes nothing that is computed, or the sizes of its
            results depend on the data.
        Exception: ONNX Runtime cannot run it; its errors have no common class.
    """
    if kind in RANDOM:
        raise CarryError("it may draw random numbers")
    import onnx_ir as ir

    graphs = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
    if any(attribute.type in graphs for attribute in node.attributes.values()):
        raise CarryError("it has a graph of its own")
    names = dict.fromkeys(value.name or "" for value in node.inputs if value is not None)
    inside = {name for name in names if name in known and _is_inside(values[name])}
    inputs = [name for name in names if name not in inside]
    if not inputs:
        raise CarryError("it takes nothing that is computed")
    operands = [values[name] for name in inputs]
    text = _alone(node, {name: values[name] for name in names}, inside, versions)
    is_written = node.domain or versions.get("", OPSET) == OPSET
    model = text if is_written else _in_written_opset(text)
    found = [call_onnx(operands, one) for one in (text, model, model)]
    if not all(_are_equal(found[0], other) for other in found[1:]):
        raise CarryError("its results differ from run to run, or between operator sets")
    return CarriedNode(kind, place, model, inputs, [value.name for value in node.outputs if value.name])


def _is_inside(tensor: Tensor) -> bool:
    """Return whether a constant may determine sizes of results, and is small."""
    return tensor.dtype is torch.int64 and tensor.numel() <= MOST_INSIDE


def _alone(node: ir.Node, operands: Mapping[str, Tensor], inside: set[str], versions: Mapping[str, int]) -> str:
    """Return a model of a node alone, in the operator set that it is of.

    Args:
        node: the node.
        operands: its operands, by name.
        inside: those that are part of the model; the others are its inputs.
        versions: versions of operator sets, by domain.
    """
    import onnx_ir as ir
    from onnx_ir import tensor_adapters

    given: dict[str, ir.Value] = {}
    for place, (name, tensor) in enumerate(operands.items()):
        held = tensor_adapters.TorchTensor(tensor, name=f"x{place}")
        given[name] = ir.Value(
            name=f"x{place}",
            shape=ir.Shape(tuple(tensor.shape)),
            type=ir.TensorType(held.dtype),
            const_value=held if name in inside else None,
        )
    copied = ir.Node(
        node.domain,
        node.op_type,
        [None if value is None else given[value.name or ""] for value in node.inputs],
        node.attributes.values(),
        num_outputs=len(node.outputs),
        name="node",
    )
    for place, (old, new) in enumerate(zip(node.outputs, copied.outputs, strict=True)):
        new.name = f"y{place}" if old.name else ""
    body = ir.Graph(
        [value for name, value in given.items() if name not in inside],
        [value for value in copied.outputs if value.name],
        nodes=[copied],
        initializers=[value for name, value in given.items() if name in inside],
        opset_imports={domain: version for domain, version in versions.items() if domain in ("", node.domain)},
        name="node",
    )
    model = ir.Model(body, ir_version=IR_VERSION)
    for value, (dtype, sizes) in zip(body.outputs, stated_results(encoded_model(serialized(model))), strict=True):
        value.type, value.shape = ir.TensorType(tensor_adapters.from_torch_dtype(dtype)), ir.Shape(sizes)
    return encoded_model(serialized(model))


def _in_written_opset(text: str) -> str:
    """Return a model of one node in the default operator set of the version that is written."""
    import onnx
    from onnx import version_converter

    converted = version_converter.convert_version(onnx.load_model_from_string(decoded_model(text)), OPSET)
    return encoded_model(converted.SerializeToString())


def _are_equal(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    """Return whether results are the same, not-a-numbers included."""
    pairs = [(a.double(), b.double()) for a, b in zip(one, other, strict=True)]
    return all(torch.equal(a, b) or torch.allclose(a, b, rtol=0, atol=0, equal_nan=True) for a, b in pairs)
