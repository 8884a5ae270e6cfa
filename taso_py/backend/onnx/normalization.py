"""Rows of normalisations, softmax and attention.

Attributes of ONNX operators are in single precision, and so is the epsilon of the norm that ONNX Runtime makes of the
form in which it recognises one; so in double precision norms are written by the operators that they consist of.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from taso_py.backend.onnx.row import Row
from taso_py.backend.onnx.writer import OnnxValue, Writer, as_float, as_number
from taso_py.backend.tensors import TORCH_DTYPES
from taso_py.ir.node import Node, Value
from taso_py.ir.operator import Operator
from taso_py.ir.size import Poly
from taso_py.ir.types import DType, TensorType
from taso_py.ops.normalization import Attention, BatchNorm, GroupNorm, InstanceNorm, LayerNorm, RmsNorm, Softmax

_HALF = frozenset({DType.F16, DType.BF16})


def _batch_norm(w: Writer, op: BatchNorm, node: Node, operands: Sequence[OnnxValue]) -> OnnxValue:
    type_ = node.types[0]
    if type_.dtype is DType.F64:
        x, scale, shift, mean, variance = operands
        factor = w.op("Div", scale, _root(w, variance, op.eps, type_.dtype))
        for step, parameter in (("Sub", mean), ("Mul", factor), ("Add", shift)):
            x = w.op(step, x, _by_channel(w, parameter, type_.rank))
        return x
    return w.op("BatchNormalization", *operands, epsilon=as_float(op.eps))


def _group_norm(w: Writer, op: GroupNorm, node: Node, operands: Sequence[OnnxValue]) -> OnnxValue:
    return group_normalized(w, operands, node.types[0], as_number(op.groups), as_float(op.eps))


def group_normalized(
    w: Writer, operands: Sequence[OnnxValue | None], type_: TensorType, groups: int, eps: float
) -> OnnxValue:
    """Normalize groups of channels of a value of a type, scale and shift it: operands are it, weight and bias.

    To engines a group is one channel, of which the statistics are its own.
    """
    x, weight, bias = [*operands, None, None][:3]
    rows = w.op("Reshape", x, w.integers([0, groups, -1]))
    plain = w.op("InstanceNormalization", rows, *_units(w, groups, type_.dtype), epsilon=eps)
    result = w.op("Reshape", plain, w.op("Shape", x) if type_.open else w.dims(type_.dims))
    for step, parameter in (("Mul", weight), ("Add", bias)):
        if parameter is not None:
            result = w.op(step, result, _by_channel(w, parameter, type_.rank))
    return result


def _by_channel(w: Writer, parameter: OnnxValue, rank: int) -> OnnxValue:
    """Return a vector with an element for each channel of values of a rank in the shape that is broadcast to these."""
    return w.op("Reshape", parameter, w.integers([-1, *[1] * (rank - 2)]))


def _root(w: Writer, square: OnnxValue, eps: float | Poly, dtype: DType) -> OnnxValue:
    """Return the square root of the sum of a value and a number."""
    return w.op("Sqrt", w.op("Add", square, w.number(as_float(eps), dtype)))


def _units(w: Writer, count: int, dtype: DType) -> list[OnnxValue]:
    """Return the weight and bias that change nothing."""
    return [_constant(w, name, torch.full((count,), value), dtype) for name, value in (("ones", 1.0), ("zeros", 0.0))]


def _instance_norm(w: Writer, op: InstanceNorm, node: Node, operands: Sequence[OnnxValue]) -> OnnxValue:
    return instance_normalized(w, operands, node.types[0], as_float(op.eps))


def instance_normalized(w: Writer, operands: Sequence[OnnxValue | None], type_: TensorType, eps: float) -> OnnxValue:
    """Normalize the channels of a value of a type, scale and shift it: operands are it, weight and bias."""
    x, *given = [*operands, None, None][:3]
    parameters = zip(given, _units(w, as_number(type_.dims[1]), type_.dtype), strict=True)
    return w.op("InstanceNormalization", x, *(one or other for one, other in parameters), epsilon=eps)


def _layer_norm(w: Writer, op: LayerNorm, node: Node, operands: Sequence[OnnxValue]) -> OnnxValue:
    type_ = node.types[0]
    if type_.dtype is DType.F64:
        axes = w.integers(range(-op.axes, 0))
        centred = w.op("Sub", operands[0], w.op("ReduceMean", operands[0], axes, keepdims=1))
        variance = w.op("ReduceMean", w.op("Mul", centred, centred), axes, keepdims=1)
        result = w.op("Div", centred, _root(w, variance, op.eps, type_.dtype))
        for step, parameter in zip(("Mul", "Add"), operands[1:], strict=False):
            result = w.op(step, result, parameter)
        return result
    scale = operands[1:2]
    if not scale:
        ones = torch.ones([as_number(dim) for dim in type_.dims[-op.axes :]], device="cpu")
        scale = [_constant(w, "ones", ones, type_.dtype)]
    return w.op("LayerNormalization", operands[0], *scale, *operands[2:], axis=-op.axes, epsilon=as_float(op.eps))


def _constant(w: Writer, name: str, content: torch.Tensor, dtype: DType) -> OnnxValue:
    """Return a constant tensor that is shared by name, shape and type."""
    sizes = "x".join(map(str, content.shape))
    return w.tensor((name, sizes, dtype), f"{name}_{sizes}_{dtype}", lambda: content.to(TORCH_DTYPES[dtype]))


def _rms_norm(w: Writer, op: RmsNorm, node: Node, operands: Sequence[OnnxValue]) -> OnnxValue:
    # The form in which engines recognise it, but for doubles; like PyTorch, in single precision at least.
    dtype = node.types[0].dtype
    inner = DType.F32 if dtype in _HALF else dtype
    x = w.cast(operands[0], inner) if inner is not dtype else operands[0]
    axes = w.integers(range(-op.axes, 0))
    squared = w.op("Mul", x, x) if dtype is DType.F64 else w.op("Pow", x, w.number(2.0, inner))
    square = w.op("ReduceMean", squared, axes, keepdims=1)
    result = w.op("Div", x, _root(w, square, op.eps, inner))
    result = w.cast(result, dtype) if inner is not dtype else result
    return w.op("Mul", result, operands[1]) if len(operands) == 2 else result


def _softmax(w: Writer, op: Softmax, node: Node, operands: Sequence[OnnxValue]) -> OnnxValue:
    return w.op("Softmax", operands[0], axis=op.axis)


def _attention(w: Writer, op: Attention, node: Node, operands: Sequence[OnnxValue]) -> OnnxValue:
    return attended(w, op, node.inputs, operands)


def attended(w: Writer, op: Attention, inputs: Sequence[Value], operands: Sequence[OnnxValue]) -> OnnxValue:
    """Return attention; leading axes of its operands may be broadcast.

    Args:
        w: the writer.
        op: says how to scale, and whether it is causal.
        inputs: query, key, value and, if any, the mask.
        operands: their values in the model.
    """
    q, k, v = operands[:3]
    type_ = inputs[0].type
    dtype, rank = type_.dtype, type_.rank
    scale = 1 / math.sqrt(as_number(type_.dims[-1])) if op.scale is None else as_float(op.scale)
    keys = w.op("Transpose", k, perm=[*range(rank - 2), rank - 1, rank - 2])
    scores = w.op("MatMul", w.op("Mul", q, w.number(scale, dtype)), keys)
    seen: OnnxValue | None = None
    if op.causal:
        scores = w.op("Add", scores, _causal_mask(w, inputs, dtype))
    elif len(operands) == 4:
        given = inputs[3]
        mask, seen = w.once(("mask", given, dtype), lambda: _mask(w, given, operands[3], dtype))
        scores = w.op("Add", scores, mask)
    result = w.op("MatMul", w.op("Softmax", scores, axis=-1), v)
    return result if seen is None else w.op("Mul", result, seen)


def _causal_mask(w: Writer, inputs: Sequence[Value], dtype: DType) -> OnnxValue:
    """Return the additive mask that hides the keys after each row, given query and key."""
    rows, keys = (value.type.dims[-2] for value in inputs[:2])
    if isinstance(rows, int) and isinstance(keys, int):
        mask = torch.full((rows, keys), -math.inf, device="cpu").triu(1)
        return _constant(w, "causal", mask, dtype)
    zero, one = w.number(0, DType.I64), w.number(1, DType.I64)
    row, key = (w.op("Range", zero, w.scalar(dim), one) for dim in (rows, keys))
    hidden = w.op("Less", w.op("Unsqueeze", row, w.integers([1])), key)
    return w.op("Where", hidden, w.number(-math.inf, dtype), w.number(0.0, dtype))


def _mask(w: Writer, mask: Value, operand: OnnxValue, dtype: DType) -> tuple[OnnxValue, OnnxValue | None]:
    """Return the additive mask, and a factor per row if a row may see no key.

    PyTorch gives zeros for such a row, the formula 0/0. To avoid that, none of its keys is hidden.
    """
    is_boolean = mask.type.dtype is DType.BOOL
    zero = w.number(0.0, dtype)
    if not _may_hide_all(w, mask):
        return (w.op("Where", operand, zero, w.number(-math.inf, dtype)) if is_boolean else operand), None
    hidden = w.number(-math.inf, dtype)
    seen = operand if is_boolean else w.op("Greater", operand, hidden)
    sees = w.op("ReduceMax", w.cast(seen, dtype), w.integers([-1]), keepdims=1)
    added = w.op("Where", operand, zero, hidden) if is_boolean else operand
    return w.op("Where", w.cast(sees, DType.BOOL), added, zero), sees


def _may_hide_all(w: Writer, mask: Value) -> bool:
    """Return whether a row may see no key."""
    held = w.held(mask)
    if held is None or held.numel() == 0:
        return True
    seen = held if held.dtype == torch.bool else held != -math.inf
    return not bool(seen.any(-1).all())


ROWS: Mapping[type[Operator], Row] = {
    BatchNorm: _batch_norm,
    GroupNorm: _group_norm,
    InstanceNorm: _instance_norm,
    LayerNorm: _layer_norm,
    RmsNorm: _rms_norm,
    Softmax: _softmax,
    Attention: _attention,
}
"""The rows, by the class of the operator."""
