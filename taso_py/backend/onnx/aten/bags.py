"""Rows of lookups whose rows are added up, bag by bag."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from taso_py.backend.onnx.aten.elementwise import each, operand_as
from taso_py.backend.onnx.row import OpaqueCall, OpaqueRow
from taso_py.backend.onnx.writer import OnnxValue, Writer, as_number
from taso_py.ir.types import DType

_SUM, _MEAN = 0, 1
"""The modes of PyTorch's call that add rows up."""


def _embedding_bag(w: Writer, call: OpaqueCall) -> Sequence[OnnxValue | None]:
    """Write the sums or means of rows; the other results are for gradients."""
    arguments, (type_, *rest) = call.arguments, call.types
    if arguments["mode"] not in (_SUM, _MEAN):
        raise call.refuse("takes maxima")
    weight, indices = call.operand("weight"), call.operand("indices")
    count, (bags, width) = as_number(indices.type.dims[0]), map(as_number, type_.dims)
    rows = w.op("Gather", weight.onnx, indices.onnx, axis=0)
    factors = call.optional("per_sample_weights")
    if factors is not None:
        rows = w.op("Mul", rows, w.op("Unsqueeze", operand_as(w, factors, type_.dtype), w.integers([1])))
    padding = arguments.get("padding_idx")
    is_padding: OnnxValue | None = None
    if padding is not None:
        number = w.number(padding % as_number(weight.type.dims[0]), indices.type.dtype)
        is_padding = w.op("Unsqueeze", w.op("Equal", indices.onnx, number), w.integers([1]))

    def without_padding(values: OnnxValue) -> OnnxValue:
        return values if is_padding is None else w.op("Where", is_padding, w.number(0.0, type_.dtype), values)

    even = _length_of_all(w, call, count, bags)
    place = _bags(w, call, count) if even is None else None

    def total(values: OnnxValue, size: int) -> OnnxValue:
        if place is None:
            apart = w.op("Reshape", values, w.integers([bags, even or 0, size]))
            return w.op("ReduceSum", apart, w.integers([1]), keepdims=0)
        start = w.op("Expand", w.number(0.0, type_.dtype), w.integers([bags, size]))
        places = w.op("Expand", w.op("Unsqueeze", place, w.integers([1])), w.integers([count, size]))
        return w.op("ScatterElements", start, places, values, axis=0, reduction="add")

    found = total(without_padding(rows), width)
    if arguments["mode"] == _MEAN:
        ones = w.op("Expand", w.number(1.0, type_.dtype), w.integers([count, 1]))
        counted = total(without_padding(ones), 1)
        found = w.op("Div", found, w.op("Max", counted, w.number(1.0, type_.dtype)))
    return [found, *[None] * len(rest)]


def _length_of_all(w: Writer, call: OpaqueCall, count: int, bags: int) -> int | None:
    """Return how many indices each bag has, if that is known to be one number."""
    offsets = w.held(call.operand("offsets").value)
    if offsets is None or not count or count % bags:
        return None
    starts = offsets[:bags].long()
    return count // bags if torch.equal(starts, torch.arange(bags, device="cpu") * (count // bags)) else None


def _bags(w: Writer, call: OpaqueCall, count: int) -> OnnxValue:
    """Write the bag of each index: how many bags begin up to it, but for the first one."""
    offsets = call.operand("offsets")
    starts = operand_as(w, offsets, DType.I64)
    if call.arguments["include_last_offset"]:
        starts = w.op("Slice", starts, w.integers([0]), w.integers([-1]), w.integers([0]))
    zeros = w.op("Expand", w.number(0, DType.I64), w.integers([count + 1]))  # empty bags may begin behind all indices
    ones = w.op("Expand", w.number(1, DType.I64), w.op("Shape", starts))
    begun = w.op("ScatterElements", zeros, starts, ones, axis=0, reduction="add")
    total = w.op("CumSum", w.op("Slice", begun, w.integers([0]), w.integers([-1])), w.number(0, DType.I64))
    return w.op("Sub", total, w.number(1, DType.I64))


ROWS: Mapping[str, OpaqueRow] = {**each("embedding_bag.default", "embedding_bag.padding_idx", row=_embedding_bag)}
"""The rows, by the name of the overload."""
