"""Rows of opaque operators: calls of PyTorch that the table does not know, by their target."""

from __future__ import annotations

from collections.abc import Mapping

from taso_py.backend.onnx.row import OpaqueCall, OpaqueRow
from taso_py.backend.onnx.writer import OnnxValue, Writer


def _embedding(w: Writer, call: OpaqueCall) -> OnnxValue:
    return w.op("Gather", call.operand("weight").onnx, call.operand("indices").onnx, axis=0)


ATEN: Mapping[str, OpaqueRow] = {
    "aten.embedding.default": _embedding,
}
"""By the name of the overload."""
