"""Rows of reductions, indices of extremes, cumulative sums, normalisation along an axis."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from taso_py.backend.onnx.aten.elementwise import operand_as
from taso_py.backend.onnx.row import OnnxOperand, OpaqueCall, OpaqueRow
from taso_py.backend.onnx.writer import OnnxValue, Writer, as_number
from taso_py.ir.types import DType


def axes_of(call: OpaqueCall, name: str = "dim") -> list[int]:
    """Return the axes that a call names, one or several; all axes if it names none, and none of a number."""
    given, rank = call.arguments.get(name), call.operand().type.rank
    if given is None or given == [] or not rank:
        return list(range(rank))
    return [given] if isinstance(given, int) else list(given)


def _reduction(name: str) -> Callable[[Writer, OpaqueCall], OnnxValue]:
    """Return the row of a reduction in the element type of the result."""

    def row(w: Writer, call: OpaqueCall) -> OnnxValue:
        x = operand_as(w, call.operand(), call.types[0].dtype)
        axes = axes_of(call)
        if not axes:
            return x
        return w.op(name, x, w.integers(axes), keepdims=int(call.arguments.get("keepdim", False)))

    return row


_mean = _reduction("ReduceMean")


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
        x, axis, keep = call.operand().onnx, call.arguments["dim"], int(call.arguments["keepdim"])
        if axis is not None:
            return w.op(name, x, axis=axis, keepdims=keep)
        place = w.op(name, w.op("Reshape", x, w.integers([-1])), axis=0, keepdims=0)
        return w.op("Reshape", place, w.integers([1] * call.types[0].rank)) if keep else place

    return row


def _extreme(name: str) -> OpaqueRow:
    """Return the row of the extreme along an axis, and its index."""

    def row(w: Writer, call: OpaqueCall) -> Sequence[OnnxValue]:
        x, axis, keep = call.operand().onnx, call.arguments["dim"], int(call.arguments["keepdim"])
        value = w.op(f"Reduce{name}", x, w.integers([axis]), keepdims=keep)
        return [value, w.op(f"Arg{name}", x, axis=axis, keepdims=keep)]

    return row


def _topk(w: Writer, call: OpaqueCall) -> Sequence[OnnxValue]:
    arguments = call.arguments
    order: dict[str, Any] = {"largest": int(arguments["largest"]), "sorted": int(arguments["sorted"])}
    return w.ops("TopK", 2, call.operand().onnx, w.dims([arguments["k"]]), axis=arguments["dim"], **order)


def _cumsum(w: Writer, call: OpaqueCall) -> OnnxValue:
    x = operand_as(w, call.operand(), call.types[0].dtype)
    return w.op("CumSum", x, w.number(call.arguments["dim"], DType.I64)) if call.types[0].rank else x


def _softmax(name: str) -> OpaqueRow:
    def row(w: Writer, call: OpaqueCall) -> OnnxValue:
        return w.op(name, operand_as(w, call.operand(), call.types[0].dtype), axis=call.arguments["dim"])

    return row


def _variance(w: Writer, call: OpaqueCall) -> OnnxValue:
    x, dtype, axes = call.operand(), call.types[0].dtype, axes_of(call)
    along, keep = w.integers(axes), int(call.arguments.get("keepdim", False))
    correction = call.arguments.get("correction")
    correction = 1 if correction is None else correction
    centred = w.op("Sub", x.onnx, w.op("ReduceMean", x.onnx, along, keepdims=1))
    total = w.op("ReduceSum", w.op("Mul", centred, centred), along, keepdims=keep)
    count = math.prod(as_number(x.type.dims[axis]) for axis in axes)
    return w.op("Div", total, w.number(float(max(0, count - correction)), dtype))


def _deviation(w: Writer, call: OpaqueCall) -> OnnxValue:
    return w.op("Sqrt", _variance(w, call))


def _with_mean(spread: Callable[[Writer, OpaqueCall], OnnxValue]) -> OpaqueRow:
    """Return the row of a variance or deviation, and of the mean."""
    return lambda w, call: [spread(w, call), _mean(w, call)]


def _norm(order: str) -> OpaqueRow:
    def row(w: Writer, call: OpaqueCall) -> OnnxValue:
        x = operand_as(w, call.operand(), call.types[0].dtype)
        power = call.arguments[order]
        names = {1: "ReduceL1", 2: "ReduceL2", None: "ReduceL2", math.inf: "ReduceMax", -math.inf: "ReduceMin"}
        if power not in names:
            raise call.refuse(f"takes a norm of order {power}")
        x = w.op("Abs", x) if power in (math.inf, -math.inf) else x
        return w.op(names[power], x, w.integers(axes_of(call)), keepdims=int(call.arguments.get("keepdim", False)))

    return row


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
    dtype, order, keep = call.types[0].dtype, call.arguments["p"], int(call.arguments["keepdim"])
    if order not in (1, 2):
        raise call.refuse(f"takes a norm of order {order}")
    one, other = (operand_as(w, call.operand(name), dtype) for name in ("x1", "x2"))
    apart = w.op("Add", w.op("Sub", one, other), w.number(call.arguments["eps"], dtype))
    return w.op(f"ReduceL{order:g}", apart, w.integers([-1]), keepdims=keep)


ROWS: Mapping[str, OpaqueRow] = {
    **{
        f"aten.{ours}": _reduction(theirs)
        for ours, theirs in {
            "sum.default": "ReduceSum",
            "sum.dim_IntList": "ReduceSum",
            "amax.default": "ReduceMax",
            "amin.default": "ReduceMin",
            "max.default": "ReduceMax",
            "min.default": "ReduceMin",
            "prod.default": "ReduceProd",
            "prod.dim_int": "ReduceProd",
            "logsumexp.default": "ReduceLogSumExp",
        }.items()
    },
    **{f"aten.mean.{form}": _mean for form in ("default", "dim")},
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
    "aten.var_mean.correction": _with_mean(_variance),
    "aten.std_mean.correction": _with_mean(_deviation),
    "aten.linalg_vector_norm.default": _norm("ord"),
    "aten.norm.ScalarOpt_dim": _norm("p"),
    "aten.cosine_similarity.default": _cosine_similarity,
    "aten.pairwise_distance.default": _pairwise_distance,
}
"""The rows, by the name of the overload."""
