"""ONNX models as bytes and as files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import onnx_ir as ir


def serialized(model: ir.Model) -> bytes:
    """Return a model in serialized form, weights included."""
    import onnx_ir as ir

    proto: Any = ir.to_proto(model)
    return proto.SerializeToString()


def save(model: ir.Model, path: Path, weights: str) -> None:
    """Write a model to a file, with all but its smallest weights in another of this name, which engines map.

    Raises:
        OSError: the files cannot be written.
    """
    import onnx_ir as ir

    ir.save(model, path, external_data=weights)


def with_weights(path: Path) -> ir.Model:
    """Return the model of a file, with the weights from the file beside."""
    import onnx_ir as ir

    model = ir.load(path)
    ir.external_data.load_to_model(model)
    return model


def parsed(content: bytes) -> ir.Model:
    """Return the model of its serialized form."""
    import onnx
    import onnx_ir as ir

    model = ir.from_proto(onnx.load_model_from_string(content))
    assert isinstance(model, ir.Model)
    return model
