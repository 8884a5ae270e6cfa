"""Conversion of graphs to ONNX models: one row per operator, for the engines that read ONNX.

Invariant: a model computes the same as the graph, or the graph is refused with :class:`NotInOnnx`; nothing is
approximated. The package imports without the extra ``onnx``; making a model needs it.
"""

from taso_py.backend.onnx.errors import NotInOnnx
from taso_py.backend.onnx.model import IR_VERSION, OPSET, onnx_bytes, onnx_model, weight_bytes
from taso_py.backend.onnx.serialized import save, with_weights
from taso_py.backend.onnx.table import LOWERED_TO_ONNX, OPAQUE_IN_ONNX

__all__ = [
    "IR_VERSION",
    "LOWERED_TO_ONNX",
    "OPAQUE_IN_ONNX",
    "OPSET",
    "NotInOnnx",
    "onnx_bytes",
    "onnx_model",
    "save",
    "weight_bytes",
    "with_weights",
]
