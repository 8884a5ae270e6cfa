"""Rows of reductions, indices of extremes, cumulative sums, normalisation along an axis."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from taso_py.backend.onnx.aten.elementwise import operand_as, operands_as
from taso_py.backend.onnx.elementwise import is_not_zero
from taso_py.backend.onnx.pooling import EXTREMES, extreme, nan_along
from taso_py.backend.onnx.row import OnnxOperand, OpaqueCall, OpaqueRow, Result
from taso_py.backend.onnx.writer import OnnxValue, Writer, as_number
from taso_py.backend.tensors import TORCH_DTYPES
from taso_py.ir.types import DType


def axes_of(call: OpaqueCall, name: str = "dim") -> list[int]:
    """Return the axes that a call names, one or several; all axes if it names none, and none of a number."""
    given, rank = call.arguments.get(name), call.operand().type.rank
    if given is None or given == [] or not rank:
        return list(range(rank))
    return [given] if isinstance(given, int) else list(given)


def _reduction(name: str) -> OpaqueRow:
    """Return the row of a reduction in the element type of the result."""

    def row(w: Writer, call: OpaqueCall) -> OnnxValue:
        x = operand_as(w, call.operand(), call.types[0].dtype)
        axes = axes_of(call)
        if not axes:
            return x
        keep = int(call.arguments.get("keepdim", False))
        if name in EXTREMES:
            return extreme(w, name, x, call.types[0].dtype, axes, keep=keep)
        return w.op(name, x, w.integers(axes), keepdims=keep)

    return row


def _quantifier(name: str) -> OpaqueRow:
    """Return the row of ``any`` or ``all``."""

    def row(w: Writer, call: OpaqueCall) -> OnnxValue:
        x = w.cast(operand_as(w, call.operand(), DType.BOOL), DType.I32)
        keep = int(call.arguments.get("keepdim", False))
        return w.cast(w.op(name, x, w.integers(axes_of(call)), keepdims=keep), DType.BOOL)

    return row


def _place(name: str) -> OpaqueRow:
    """Return the row of the index of an extreme, the first one if there are several."""

    def row(w: Writer, call: OpaqueCall) -> OnnxValue:
        x, axis, keep = call.operand(), call.arguments["dim"], int(call.arguments["keepdim"])
        if axis is not None:
            return _place_of(w, name, x.onnx, x.type.dtype, axis=axis, keep=keep)
        line = w.op("Reshape", x.onnx, w.integers([-1]))
        place = _place_of(w, name, line, x.type.dtype, axis=0, keep=0)
        return w.op("Reshape", place, w.integers([1] * call.types[0].rank)) if keep else place

    return row


def _place_of(w: Writer, name: str, x: OnnxValue, dtype: DType, *, axis: int, keep: int) -> OnnxValue:
    """Write the index of the first extreme along an axis; to PyTorch NaN is one, wherever it is."""
    place = w.op(name, x, axis=axis, keepdims=keep)
    if not dtype.is_floating:
        return place
    is_nan, has_nan = nan_along(w, x, [axis], keep=keep)
    return w.op("Where", has_nan, w.op("ArgMax", is_nan, axis=axis, keepdims=keep), place)


def _extreme(name: str) -> OpaqueRow:
    """Return the row of the extreme along an axis, and its index."""

    def row(w: Writer, call: OpaqueCall) -> Sequence[OnnxValue | None]:
        x, axis, keep = call.operand(), call.arguments["dim"], int(call.arguments["keepdim"])
        no_value, no_place = map(w.is_unread, call.node.outputs)
        return [
            None if no_value else extreme(w, f"Reduce{name}", x.onnx, x.type.dtype, [axis], keep=keep),
            None if no_place else _place_of(w, f"Arg{name}", x.onnx, x.type.dtype, axis=axis, keep=keep),
        ]

    return row


def _topk(w: Writer, call: OpaqueCall) -> Sequence[OnnxValue]:
    arguments = call.arguments
    order: dict[str, Any] = {"largest": int(arguments["largest"]), "sorted": int(arguments["sorted"])}
    x, axis = call.operand(), arguments["dim"]
    if not x.type.dtype.is_floating:
        return w.ops("TopK", 2, x.onnx, w.dims([arguments["k"]]), axis=axis, **order)
    # Infinity stands for NaN, which PyTorch takes for the greatest, and the greatest number for infinity.
    most = w.number(torch.finfo(TORCH_DTYPES[x.type.dtype]).max, x.type.dtype)
    keys = w.op("Where", w.op("IsNaN", x.onnx), w.number(math.inf, x.type.dtype), w.op("Min", x.onnx, most))
    _, places = w.ops("TopK", 2, keys, w.dims([arguments["k"]]), axis=axis, **order)
    return [w.op("GatherElements", x.onnx, places, axis=axis), places]


def _cumsum(w: Writer, call: OpaqueCall) -> OnnxValue:
    x = operand_as(w, call.operand(), call.types[0].dtype)
    return w.op("CumSum", x, w.number(call.arguments["dim"], DType.I64)) if call.types[0].rank else x


def _softmax(name: str) -> OpaqueRow:
    def row(w: Writer, call: OpaqueCall) -> OnnxValue:
        return w.op(name, operand_as(w, call.operand(), call.types[0].dtype), axis=call.arguments["dim"])

    return row


def _moments(w: Writer, call: OpaqueCall) -> tuple[OnnxValue, OnnxValue]:
    """Write the variance along axes, and the mean, whose axes are kept in any case."""
    x, dtype, axes = call.operand(), call.types[0].dtype, axes_of(call)
    along, keep = w.integers(axes), int(call.arguments.get("keepdim", False))
    correction = call.arguments.get("correction")
    correction = 1 if correction is None else correction
    mean = w.op("ReduceMean", x.onnx, along, keepdims=1)
    centred = w.op("Sub", x.onnx, mean)
    total = w.op("ReduceSum", w.op("Mul", centred, centred), along, keepdims=keep)
    count = math.prod(as_number(x.type.dims[axis]) for axis in axes)
    return w.op("Div", total, w.number(float(max(0, count - correction)), dtype)), mean


def _variance(w: Writer, call: OpaqueCall) -> OnnxValue:
    variance, _ = _moments(w, call)
    return variance


def _deviation(w: Writer, call: OpaqueCall) -> OnnxValue:
    return w.op("Sqrt", _variance(w, call))


def _with_mean(*, rooted: bool) -> OpaqueRow:
    """Return the row of the variance, or of its square root, and of the mean."""

    def row(w: Writer, call: OpaqueCall) -> Sequence[OnnxValue]:
        variance, mean = _moments(w, call)
        axes = [] if call.arguments.get("keepdim", False) else axes_of(call)
        return [
            w.op("Sqrt", variance) if rooted else variance,
            w.op("Squeeze", mean, w.integers(axes)) if axes else mean,
        ]

    return row


def _norm(order: str | None) -> OpaqueRow:
    """Return the row of a norm, given the name of the argument that holds its order; without one it is Euclidean."""

    def row(w: Writer, call: OpaqueCall) -> OnnxValue:
        x, axes = operand_as(w, call.operand(), call.types[0].dtype), axes_of(call)
        power, keep = None if order is None else call.arguments[order], int(call.arguments.get("keepdim", False))
        return norm_of(w, x, 2 if power is None else power, call.types[0].dtype, axes, keep=keep)

    return row


def norm_of(w: Writer, x: OnnxValue, power: float, dtype: DType, axes: Sequence[int], *, keep: int) -> OnnxValue:
    """Write a norm of any order, of which that of order 0 counts the elements that are not zero."""
    along = w.integers(axes)
    if power in (math.inf, -math.inf):
        return extreme(w, "ReduceMax" if power > 0 else "ReduceMin", w.op("Abs", x), dtype, axes, keep=keep)
    if power in (1, 2):
        return w.op(f"ReduceL{power:g}", x, along, keepdims=keep)
    if power == 0:
        return w.op("ReduceSum", w.cast(is_not_zero(w, x, dtype), dtype), along, keepdims=keep)
    total = w.op("ReduceSum", w.op("Pow", w.op("Abs", x), w.number(float(power), dtype)), along, keepdims=keep)
    return w.op("Pow", total, w.number(1 / power, dtype))


def _norm_of_vector_or_matrix(w: Writer, call: OpaqueCall) -> Result:
    order, axes = call.arguments["ord"], axes_of(call)
    if order is not None and len(axes) > 1:
        raise call.refuse(f"takes a norm of matrices of order {order}")
    return _norm("ord")(w, call)


def _frobenius(w: Writer, call: OpaqueCall) -> Result:
    if call.arguments["ord"] != "fro":
        raise call.refuse(f"takes the norm {call.arguments['ord']}")
    return _norm(None)(w, call)


def _distance(w: Writer, call: OpaqueCall) -> OnnxValue:
    (type_,) = call.types
    apart = w.op("Sub", *operands_as(w, call, type_.dtype, "self", "other"))
    rank = max(call.operand(name).type.rank for name in ("self", "other"))
    return norm_of(w, apart, call.arguments["p"], type_.dtype, range(rank), keep=0)


def _extremes(w: Writer, call: OpaqueCall) -> Sequence[OnnxValue | None]:
    x, axes, keep = call.operand(), axes_of(call), int(call.arguments["keepdim"])
    return [
        None if w.is_unread(value) else extreme(w, name, x.onnx, x.type.dtype, axes, keep=keep)
        for name, value in zip(("ReduceMin", "ReduceMax"), call.node.outputs, strict=True)
    ]


def _without_nan(*, mean: bool) -> OpaqueRow:
    """Return the row of the sum of the elements that are not NaN, or of their mean."""

    def row(w: Writer, call: OpaqueCall) -> OnnxValue:
        dtype, along = call.types[0].dtype, w.integers(axes_of(call))
        keep = int(call.arguments["keepdim"])
        x = operand_as(w, call.operand(), dtype)
        if dtype.is_floating:
            x = w.op("Where", w.op("IsNaN", x), w.number(0.0, dtype), x)
        total = w.op("ReduceSum", x, along, keepdims=keep)
        if not mean:
            return total
        counted = w.cast(w.op("Not", w.op("IsNaN", call.operand().onnx)), dtype)
        return w.op("Div", total, w.op("ReduceSum", counted, along, keepdims=keep))

    return row


def _count_nonzero(w: Writer, call: OpaqueCall) -> OnnxValue:
    x = call.operand()
    counted = x.onnx if x.type.dtype is DType.BOOL else is_not_zero(w, x.onnx, x.type.dtype)
    return w.op("ReduceSum", w.cast(counted, DType.I64), w.integers(axes_of(call)), keepdims=0)


def _cosine_similarity(w: Writer, call: OpaqueCall) -> OnnxValue:
    dtype, dim, operands = call.types[0].dtype, call.arguments["dim"], [call.operand("x1"), call.operand("x2")]
    from_end = dim if dim < 0 else dim - max(x.type.rank for x in operands)
    if len({x.type.dims[from_end] if x.type.rank >= -from_end else 1 for x in operands}) > 1:
        raise call.refuse("repeats a vector's elements")
    axis, least = w.integers([from_end]), w.number(call.arguments["eps"], dtype)

    def of_length_one(x: OnnxOperand) -> OnnxValue:
        numbers = operand_as(w, x, dtype)
        return w.op("Div", numbers, w.op("Max", w.op("ReduceL2", numbers, axis, keepdims=1), least))

    return w.op("ReduceSum", w.op("Mul", *map(of_length_one, operands)), axis, keepdims=0)


def _pairwise_distance(w: Writer, call: OpaqueCall) -> OnnxValue:
    dtype = call.types[0].dtype
    one, other = operands_as(w, call, dtype, "x1", "x2")
    apart = w.op("Add", w.op("Sub", one, other), w.number(call.arguments["eps"], dtype))
    return norm_of(w, apart, call.arguments["p"], dtype, [-1], keep=int(call.arguments["keepdim"]))


ROWS: Mapping[str, OpaqueRow] = {
    **{
        f"aten.{ours}": _reduction(theirs)
        for ours, theirs in {
            "sum.default": "ReduceSum",
            "sum.dim_IntList": "ReduceSum",
            "mean.default": "ReduceMean",
            "mean.dim": "ReduceMean",
            "amax.default": "ReduceMax",
            "amin.default": "ReduceMin",
            "max.default": "ReduceMax",
            "min.default": "ReduceMin",
            "prod.default": "ReduceProd",
            "prod.dim_int": "ReduceProd",
            "logsumexp.default": "ReduceLogSumExp",
        }.items()
    },
    **{f"aten.any.{form}": _quantifier("ReduceMax") for form in ("default", "dim", "dims")},
    **{f"aten.all.{form}": _quantifier("ReduceMin") for form in ("default", "dim", "dims")},
    "aten.argmax.default": _place("ArgMax"),
    "aten.argmin.default": _place("ArgMin"),
    "aten.max.dim": _extreme("Max"),
    "aten.min.dim": _extreme("Min"),
    "aten.topk.default": _topk,
    "aten.cumsum.default": _cumsum,
    "aten.softmax.int": _softmax("Softmax"),
    "aten._softmax.default": _softmax("Softmax"),
    "aten.log_softmax.int": _softmax("LogSoftmax"),
    "aten._log_softmax.default": _softmax("LogSoftmax"),
    "aten.var.correction": _variance,
    "aten.std.correction": _deviation,
    "aten.var_mean.correction": _with_mean(rooted=False),
    "aten.std_mean.correction": _with_mean(rooted=True),
    "aten.linalg_vector_norm.default": _norm("ord"),
    "aten.linalg_norm.default": _norm_of_vector_or_matrix,
    "aten.linalg_norm.ord_str": _frobenius,
    "aten.linalg_matrix_norm.str_ord": _frobenius,
    "aten.norm.ScalarOpt_dim": _norm("p"),
    "aten.norm.Scalar": _norm("p"),
    "aten.dist.default": _distance,
    "aten.aminmax.default": _extremes,
    "aten.nansum.default": _without_nan(mean=False),
    "aten.nanmean.default": _without_nan(mean=True),
    "aten.count_nonzero.default": _count_nonzero,
    "aten.count_nonzero.dim_IntList": _count_nonzero,
    "aten.cosine_similarity.default": _cosine_similarity,
    "aten.pairwise_distance.default": _pairwise_distance,
}
"""The rows, by the name of the overload."""
