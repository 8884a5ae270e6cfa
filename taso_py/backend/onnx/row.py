"""Types of the rows of the lowering to ONNX, for operators of the table and for opaque calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from torch._ops import OpOverload

from taso_py.backend.onnx.errors import NotInOnnx
from taso_py.backend.onnx.writer import OnnxValue, Writer
from taso_py.backend.schema import bind, overload_named
from taso_py.ir.node import Node, Value
from taso_py.ir.operator import Ref
from taso_py.ir.types import TensorType
from taso_py.ops.opaque import Opaque

Result: TypeAlias = "OnnxValue | Sequence[OnnxValue | None]"
"""One value, or one per result if the operator has several; None for results that ONNX does not give."""

Row: TypeAlias = Callable[[Writer, Any, Node, Sequence[OnnxValue]], Result]
"""Maps the writer, the operator, its node and its operands to the result."""


def named(name: str) -> Row:
    """Return the row of an operator that ONNX has under a name, with the same operands."""
    return lambda w, _op, _node, operands: w.op(name, *operands)


@dataclass(frozen=True)
class OnnxOperand:
    """A tensor argument of an opaque call."""

    onnx: OnnxValue
    value: Value

    @property
    def type(self) -> TensorType:
        """The element type and shape."""
        return self.value.type


@dataclass(frozen=True)
class OpaqueCall:
    """A call of a PyTorch operator, its arguments bound by name."""

    target: str
    arguments: Mapping[str, Any]
    """All arguments, defaults included; tensors are :class:`OnnxOperand`, element types ours, and sizes may be open."""
    node: Node

    @property
    def types(self) -> Sequence[TensorType]:
        """The types of the results."""
        return self.node.types

    def operand(self, name: str = "self") -> OnnxOperand:
        """Return an argument that must be a tensor."""
        found = self.arguments[name]
        if not isinstance(found, OnnxOperand):
            raise NotInOnnx(f"{self.target} with {found} as {name} cannot be expressed in ONNX")
        return found

    def optional(self, name: str) -> OnnxOperand | None:
        """Return an argument that is a tensor or absent."""
        return None if self.arguments[name] is None else self.operand(name)

    def refuse(self, why: str) -> NotInOnnx:
        """Return the error that says why this call cannot be written."""
        return NotInOnnx(f"{self.target} {why}, which cannot be expressed in ONNX")


OpaqueRow: TypeAlias = Callable[[Writer, OpaqueCall], Result]
"""Maps the writer and the call to the result."""


def opaque_row(rows: Mapping[str, OpaqueRow]) -> Row:
    """Return the row of opaque operators, given rows by target."""

    def row(w: Writer, op: Opaque, node: Node, operands: Sequence[OnnxValue]) -> Result:
        found = rows.get(op.target)
        if found is None or not op.is_pure:
            raise NotInOnnx(f"{op.target} has no row in the lowering to ONNX")
        inputs = [OnnxOperand(onnx, value) for onnx, value in zip(operands, node.inputs, strict=True)]

        def decoded(argument: Any) -> Any:
            if isinstance(argument, Ref):
                return inputs[argument.index]
            if isinstance(argument, tuple):
                return [decoded(item) for item in cast("tuple[Any, ...]", argument)]
            if isinstance(argument, str):
                kind, _, text = argument.partition(":")
                return text if kind == "text" else argument
            return argument

        positional = [decoded(argument) for argument in op.arguments]
        keywords = {name: decoded(argument) for name, argument in op.keywords}
        overload = overload_named(op.target)
        assert isinstance(overload, OpOverload), "operators of higher order have no rows"
        return found(w, OpaqueCall(op.target, bind(overload, positional, keywords), node))

    return row
