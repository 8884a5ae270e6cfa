"""Reader of ONNX models: their inputs, and a PyTorch module that computes them.

While a model is read it is run once on example inputs; whatever depends on none of them, or on their sizes only, is
computed then and becomes a constant of the module.

Invariant: the module has a step for each node of the model that depends on the inputs, in the model's order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, fx, nn

from taso_py.backend.identifiers import identifiers
from taso_py.backend.onnx.serialized import parsed, serialized
from taso_py.frontend.errors import ImportRefusal
from taso_py.frontend.onnx.call import Known, OnnxCall, Row
from taso_py.frontend.onnx.carried import CarriedNode, carried_node
from taso_py.frontend.onnx.movement import OF_SHAPES
from taso_py.frontend.onnx.table import ROWS
from taso_py.ir.errors import TasoError, first_line

if TYPE_CHECKING:
    import onnx_ir as ir

LEAST_OPSET = 13
"""Oldest operator set that the rows implement."""
MOST_KNOWN = 4096
"""Most elements of a constant whose values rows may use."""
EXTRA = "pip install 'taso-py[engines]'"
"""Command that installs the readers of these files."""


class StepRefusal(ImportRefusal):
    """A node that PyTorch cannot compute, at least for the example inputs."""


@dataclass(frozen=True)
class Argument:
    """An input of a model."""

    name: str
    dtype: torch.dtype
    shape: tuple[int | str, ...]
    """Sizes; open ones by their names."""


@dataclass(frozen=True)
class OnnxNode:
    """A node that is computed at run time."""

    kind: str
    place: str
    """The name of the node, or what it computes if it has none."""
    attributes: Mapping[str, Any]
    inputs: Sequence[str | None]
    known: Sequence[Known | None]
    outputs: Sequence[str]
    opset: int

    def run(self, inputs: Sequence[Tensor | None], rows: Mapping[str, Row]) -> Sequence[Tensor]:
        """Compute the results from the operands."""
        results = rows[self.kind](
            OnnxCall(
                self.kind, self.attributes, inputs=inputs, known=self.known, results=len(self.outputs), opset=self.opset
            )
        )
        found = [results] if isinstance(results, Tensor) else list(results)
        if len(found) < len(self.outputs):
            raise ImportRefusal(f"ONNX operator {self.kind} with {len(self.outputs)} results is not supported")
        return found


Step: TypeAlias = OnnxNode | CarriedNode
"""A node that is computed at run time, in PyTorch or as it is."""


class OnnxSteps(nn.Module):
    """A module that runs the nodes of a model in order."""

    def __init__(
        self,
        steps: Sequence[Step],
        constants: Mapping[str, Tensor],
        names: tuple[Sequence[str], Sequence[str]],
        rows: Mapping[str, Row],
    ) -> None:
        """Register the constants as buffers.

        Args:
            steps: in order.
            constants: constants that steps read, by name.
            names: names of the inputs and of the outputs.
            rows: rows by operator name.
        """
        super().__init__()
        self._steps, self._rows = steps, rows
        self._inputs, self._outputs = names
        self._places: dict[str, str] = {}
        for number, (name, tensor) in enumerate(constants.items()):
            place = f"{re.sub(r'[^0-9A-Za-z_]', '_', name)}_{number}"
            self._places[name] = place
            self.register_buffer(place, tensor)

    def forward(self, *tensors: Tensor) -> Any:
        """Return the outputs, dense as ONNX has all values: one tensor, or a tuple of several."""
        values: dict[str, Tensor] = dict(zip(self._inputs, tensors, strict=True))
        values |= {name: self.get_buffer(place) for name, place in self._places.items()}
        for step in self._steps:
            found = step.run([None if name is None else values[name] for name in step.inputs], self._rows)
            values |= {name: value for name, value in zip(step.outputs, found, strict=False) if name}
        results = tuple(values[name].contiguous() for name in self._outputs)
        return results[0] if len(results) == 1 else results


@dataclass(frozen=True)
class OnnxFile:
    """An ONNX model that was read from a file."""

    content: bytes
    """The serialized model, weights included."""
    inputs: Sequence[Argument]
    outputs: Sequence[str]
    body: ir.Model

    def module(self, examples: Sequence[Tensor], rows: Mapping[str, Row] = ROWS) -> nn.Module:
        """Return a PyTorch module that computes the model for inputs of the examples' sizes.

        Raises:
            ImportRefusal: an operator is not supported.
            StepRefusal: one of them fails on the examples.
        """
        names = [argument.name for argument in self.inputs]
        steps = _Reader(self.body, dict(zip(names, examples, strict=True)), rows).module(names, self.outputs)
        graph = fx.Graph()
        given = [graph.placeholder(name) for name in identifiers(names)]
        graph.output(graph.call_module("model", tuple(given)))
        return fx.GraphModule({"model": steps}, graph).eval()

    def renamed(self, other: bytes) -> bytes:
        """Return another model with the same inputs and outputs, renamed as in this one."""
        model = parsed(other)
        named = {*model.graph.inputs, *model.graph.outputs}
        wanted = {*(argument.name for argument in self.inputs), *self.outputs}
        for node in model.graph:
            for value in node.outputs:
                if value not in named and value.name in wanted:
                    value.name = f"{value.name}_inside"
        for value in list(model.graph.initializers.values()):
            if value.name in wanted:
                value.name = f"{value.name}_weight"
        for value, argument in zip(model.graph.inputs, self.inputs, strict=True):
            value.name = argument.name
        given = {value.name: value for value in model.graph.inputs}
        for place, name in enumerate(self.outputs):
            # One value for what the file returns twice, or takes and returns.
            value = model.graph.outputs[place] = given.setdefault(name, model.graph.outputs[place])
            value.name = name
        return serialized(model)


def read_onnx(path: Path) -> OnnxFile:
    """Read a model, and the weights in files beside it.

    Raises:
        ImportRefusal: the file is not there or no ONNX model, or is one of a form that is not read.
    """
    try:
        import onnx_ir as ir
        from onnx_ir.passes import common
    except ImportError as error:
        raise ImportRefusal(f"to read {path} takes onnx-ir ({first_line(error)}); {EXTRA}") from error
    if not path.is_file():
        raise ImportRefusal(f"there is no file {path}")
    try:
        model = ir.load(path)
        is_alone = not any(isinstance(v.const_value, ir.ExternalTensor) for v in model.graph.initializers.values())
        model = ir.external_data.load_to_model(model)
        content = path.read_bytes() if is_alone else serialized(model)
        common.InlinePass()(model)
        common.RemoveInitializersFromInputsPass()(model)
    except Exception as error:  # the exception depends on where the file is damaged
        raise ImportRefusal(f"{path} is not a readable ONNX model ({first_line(error)}); export it again") from error
    if not model.graph.outputs:
        raise ImportRefusal(f"{path} is not a readable ONNX model (it has no outputs); export it again")
    version = model.graph.opset_imports.get("", LEAST_OPSET)
    if version < LEAST_OPSET:
        raise ImportRefusal(f"{path} is of opset {version}; export it for opset {LEAST_OPSET} or newer")
    arguments = [_argument(path, value) for value in model.graph.inputs]
    return OnnxFile(content, arguments, [str(value.name) for value in model.graph.outputs], model)


def _argument(path: Path, value: ir.Value) -> Argument:
    if value.shape is None or value.dtype is None:
        raise ImportRefusal(f"input {value.name} of {path} does not say its shape; export the model again")
    shape = tuple(size if isinstance(size, int) else str(size.value or "?") for size in value.shape)
    return Argument(str(value.name), torch_dtype(value.dtype, f"input {value.name}"), shape)


def torch_dtype(dtype: ir.DataType, what: str) -> torch.dtype:
    """Return the element type in PyTorch.

    Raises:
        ImportRefusal: there is none.
    """
    from onnx_ir import tensor_adapters

    try:
        return tensor_adapters.to_torch_dtype(dtype)
    except (TypeError, ValueError, KeyError) as error:
        raise ImportRefusal(f"{what} is of ONNX type {dtype}, which PyTorch does not compute with") from error


def _tensor(held: Any, what: str) -> Tensor:
    """Return the content of a tensor of a model."""
    dtype = torch_dtype(held.dtype, what)
    if dtype is torch.bfloat16:
        return torch.from_numpy(held.numpy().view("int16").copy()).view(dtype).reshape(tuple(held.shape))
    return torch.from_numpy(held.numpy().copy()).to(dtype).reshape(tuple(held.shape))


class _Reader:
    """A model that is run on examples while it is read."""

    def __init__(self, model: ir.Model, examples: Mapping[str, Tensor], rows: Mapping[str, Row]) -> None:
        self._rows = rows
        self._versions = {"": LEAST_OPSET, **model.graph.opset_imports}
        self._values: dict[str, Tensor] = dict(examples)
        self._constants: dict[str, Tensor] = {}
        self._known: dict[str, Known] = {}
        self._steps: list[Step] = []
        for name, value in model.graph.initializers.items():
            self._store_constant(name, _tensor(value.const_value, f"weight {name}"))
        for node in model.graph:
            self._read(node)

    def module(self, inputs: Sequence[str], outputs: Sequence[str]) -> OnnxSteps:
        """Return a module of all nodes that were read."""
        read = {name for step in self._steps for name in step.inputs} | {*outputs}
        constants = {name: tensor for name, tensor in self._constants.items() if name in read}
        return OnnxSteps(self._steps, constants, (inputs, outputs), self._rows)

    def _store_constant(self, name: str, tensor: Tensor) -> None:
        self._values[name] = self._constants[name] = tensor
        if tensor.numel() <= MOST_KNOWN and not tensor.is_complex():
            self._known[name] = tuple(tensor.flatten().tolist())

    def _read(self, node: ir.Node) -> None:
        kind = node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}::{node.op_type}"
        try:
            step: Step = self._computed(node, kind)
            found = self._results(step)
        except StepRefusal:
            raise
        except ImportRefusal as refusal:
            step = self._carried(node, kind, refusal)
            found = self._results(step)
        depends = kind not in OF_SHAPES and any(
            name is not None and name not in self._constants for name in step.inputs
        )
        for name, value in zip(step.outputs, found, strict=False):
            if name and depends:
                self._values[name] = value
            elif name:
                self._store_constant(name, value)
        if depends:
            self._steps.append(step)

    def _computed(self, node: ir.Node, kind: str) -> OnnxNode:
        """Return a node as a row computes it in PyTorch.

        Raises:
            ImportRefusal: there is no row.
        """
        if kind not in self._rows:
            raise ImportRefusal(f"ONNX operator {kind} ({_place(node)}) is not supported")
        inputs = [None if value is None else str(value.name) for value in node.inputs]
        outputs = [str(value.name or "") for value in node.outputs]
        while len(outputs) > 1 and not outputs[-1]:
            outputs.pop()
        return OnnxNode(
            kind,
            _place(node),
            attributes={name: _attribute(attribute, kind) for name, attribute in node.attributes.items()},
            inputs=inputs,
            known=[None if name is None else self._known.get(name) for name in inputs],
            outputs=outputs,
            opset=self._versions[""],
        )

    def _carried(self, node: ir.Node, kind: str, refusal: ImportRefusal) -> CarriedNode:
        """Return a node that no row computes in the form in which it is carried through.

        Raises:
            ImportRefusal: the given one; the node cannot be carried through.
        """
        versions = self._versions
        try:
            return carried_node(node, kind, _place(node), values=self._values, known=self._known, versions=versions)
        except Exception as error:  # ONNX Runtime's errors have no common class
            raise refusal from error

    def _results(self, step: Step) -> Sequence[Tensor]:
        return _run_step(step, lambda: step.run([self._value(name) for name in step.inputs], self._rows))

    def _value(self, name: str | None) -> Tensor | None:
        return None if name is None else self._values[name]


def _place(node: ir.Node) -> str:
    return (
        f"node {node.name}" if node.name else f"node that gives {', '.join(str(value.name) for value in node.outputs)}"
    )


def _run_step(step: Step, run: Callable[[], Sequence[Tensor]]) -> Sequence[Tensor]:
    """Return the results of a step.

    Raises:
        StepRefusal: PyTorch cannot compute it.
    """
    try:
        return run()
    except TasoError:
        raise
    except Exception as error:  # PyTorch raises errors of many kinds
        raise StepRefusal(f"ONNX operator {step.kind} ({step.place}) fails: {first_line(error)}") from error


def _attribute(attribute: Any, kind: str) -> Any:
    """Return the value of an attribute in PyTorch's terms."""
    import onnx_ir as ir

    if not isinstance(attribute, ir.Attr) or attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
        raise ImportRefusal(f"ONNX operator {kind} with a graph of its own is not supported")
    if attribute.type == ir.AttributeType.TENSOR:
        return _tensor(attribute.value, f"a constant of {kind}")
    if kind == "Cast" and attribute.name == "to":
        return torch_dtype(ir.DataType(attribute.value), "the result of Cast")
    return tuple(attribute.value) if isinstance(attribute.value, list | tuple) else attribute.value
