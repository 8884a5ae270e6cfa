"""Row of attention outside the table of operators: that whose leading axes are broadcast, as where heads share keys."""

from __future__ import annotations

from collections.abc import Mapping

from taso_py.backend.onnx.normalization import attended
from taso_py.backend.onnx.row import OpaqueCall, OpaqueRow
from taso_py.backend.onnx.writer import OnnxValue, Writer
from taso_py.ops.normalization import Attention


def _attention(w: Writer, call: OpaqueCall) -> OnnxValue:
    given = [call.operand(name) for name in ("query", "key", "value")]
    if call.arguments["dropout_p"] or call.arguments["enable_gqa"] or len({each.type.rank for each in given}) > 1:
        raise call.refuse("drops elements, or repeats heads")
    mask, scale = call.optional("attn_mask"), call.arguments["scale"]
    given += [] if mask is None else [mask]
    op = Attention(None if scale is None else float(scale), bool(call.arguments["is_causal"]))
    return attended(w, op, [each.value for each in given], [each.onnx for each in given])


ROWS: Mapping[str, OpaqueRow] = {"aten.scaled_dot_product_attention.default": _attention}
"""The row, by the name of the overload."""
