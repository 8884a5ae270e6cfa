"""ONNX models as bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import onnx_ir as ir


def serialized(model: ir.Model) -> bytes:
    """Return a model in serialized form, weights included."""
    import onnx_ir as ir

    proto: Any = ir.to_proto(model)
    return proto.SerializeToString()


def parsed(content: bytes) -> ir.Model:
    """Return the model of its serialized form."""
    import onnx
    import onnx_ir as ir

    model = ir.from_proto(onnx.load_model_from_string(content))
    assert isinstance(model, ir.Model)
    return model
