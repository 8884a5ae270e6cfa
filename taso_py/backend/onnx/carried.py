"""Row of the ONNX nodes that are carried through as they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from taso_py.backend.onnx.row import OpaqueCall, OpaqueRow
from taso_py.backend.onnx.serialized import parsed
from taso_py.backend.onnx.writer import OnnxValue, Writer
from taso_py.backend.onnx_call import TARGET, decoded_model


def _carried(w: Writer, call: OpaqueCall) -> Sequence[OnnxValue]:
    model = parsed(decoded_model(call.arguments["model"]))
    return w.inlined(model.graph, [operand.onnx for operand in call.arguments["operands"]])


ROWS: Mapping[str, OpaqueRow] = {TARGET: _carried}
"""The row, by the name of the overload."""
