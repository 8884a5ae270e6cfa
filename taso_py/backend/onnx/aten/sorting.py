"""Rows of calls that sort, take places in an order, or look numbers up in sorted ones.

Invariant: NaN counts as greater than all numbers. Equal numbers keep their order where the engine's TopK keeps it, as
ONNX Runtime's does; PyTorch leaves it open unless it is asked for a stable order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from taso_py.backend.onnx.aten.elementwise import lerped, operand_as, promoted
from taso_py.backend.onnx.movement import reshaped
from taso_py.backend.onnx.pooling import or_nan
from taso_py.backend.onnx.row import OnnxOperand, OpaqueCall, OpaqueRow
from taso_py.backend.onnx.writer import OnnxValue, Writer, as_number
from taso_py.ir.size import Dim
from taso_py.ir.types import DType, TensorType

_BEYOND = 1e300
"""A double that is larger than all finite numbers of the types that are sorted."""


def _keys(w: Writer, call: OpaqueCall, value: OnnxValue, dtype: DType) -> OnnxValue:
    """Return numbers in a type that TopK orders, in which infinity stands for NaN and a finite number for infinity."""
    if dtype is DType.F64:
        raise call.refuse("orders numbers of double precision")
    if not dtype.is_floating:
        return value if dtype in (DType.I32, DType.I64) else w.cast(value, DType.I32)
    bounds = (w.number(bound, DType.F64) for bound in (-_BEYOND, _BEYOND))
    held = w.op("Clip", w.cast(value, DType.F64), *bounds)
    return w.op("Where", w.op("IsNaN", value), w.number(math.inf, DType.F64), held)


def _order(
    w: Writer, call: OpaqueCall, value: OnnxValue, type_: TensorType, *, axis: int, count: Dim, descending: bool = False
) -> OnnxValue:
    """Write the places along an axis of the first ``count`` elements in an order."""
    if not type_.rank:
        raise call.refuse("sorts a number")
    keys = _keys(w, call, value, type_.dtype)
    return w.ops("TopK", 2, keys, w.dims([count]), axis=axis, largest=int(descending), sorted=1)[1]


def _all_in_order(w: Writer, call: OpaqueCall, axis: int) -> OnnxValue:
    x = call.operand()
    if not x.type.rank:
        raise call.refuse("sorts a number")
    descending = bool(call.arguments.get("descending", False))
    return _order(w, call, x.onnx, x.type, axis=axis, count=x.type.dims[axis], descending=descending)


def _sort(w: Writer, call: OpaqueCall) -> Sequence[OnnxValue | None]:
    axis = call.arguments["dim"]
    order = _all_in_order(w, call, axis)
    if w.is_unread(call.node.outputs[0]):
        return [None, order]
    return [w.op("GatherElements", call.operand().onnx, order, axis=axis), order]


def _argsort(w: Writer, call: OpaqueCall) -> OnnxValue:
    return _all_in_order(w, call, call.arguments["dim"])


def _msort(w: Writer, call: OpaqueCall) -> OnnxValue:
    return w.op("GatherElements", call.operand().onnx, _all_in_order(w, call, 0), axis=0)


def _at_rank(w: Writer, call: OpaqueCall, value: OnnxValue, type_: TensorType, *, axis: int, rank: int) -> OnnxValue:
    """Write the element of a rank along an axis, which is kept; the least has the rank 1."""
    order = _order(w, call, value, type_, axis=axis, count=rank)
    if rank > 1:
        order = w.op("Slice", order, w.integers([rank - 1]), w.integers([rank]), w.integers([axis]))
    return w.op("GatherElements", value, order, axis=axis)


def _kth_value(w: Writer, call: OpaqueCall) -> Sequence[OnnxValue | None]:
    """Write the values; of several equal ones, PyTorch does not say whose place it returns."""
    x, axis = call.operand(), call.arguments["dim"]
    found = _at_rank(w, call, x.onnx, x.type, axis=axis, rank=as_number(call.arguments["k"]))
    return [found if call.arguments["keepdim"] else w.op("Squeeze", found, w.integers([axis])), None]


def _median(w: Writer, call: OpaqueCall) -> Sequence[OnnxValue | None]:
    """Write the lower one of two medians; see :func:`_kth_value` for its place."""
    x, axis = call.operand(), call.arguments["dim"]
    rank = (as_number(x.type.dims[axis]) + 1) // 2 if x.type.rank else 1
    found = or_nan(w, _at_rank(w, call, x.onnx, x.type, axis=axis, rank=rank), x.onnx, x.type.dtype, [axis], keep=1)
    return [found if call.arguments["keepdim"] else w.op("Squeeze", found, w.integers([axis])), None]


def _flat(w: Writer, x: OnnxOperand) -> tuple[OnnxValue, TensorType]:
    """Return all elements of a tensor of fixed sizes as a vector, and its type."""
    count = math.prod(map(as_number, x.type.dims))
    return w.op("Reshape", x.onnx, w.integers([-1])), TensorType(x.type.dtype, (count,))


def _median_of_all(w: Writer, call: OpaqueCall) -> OnnxValue:
    value, type_ = _flat(w, call.operand())
    found = _at_rank(w, call, value, type_, axis=0, rank=(as_number(type_.dims[0]) + 1) // 2)
    return w.op("Squeeze", or_nan(w, found, value, type_.dtype, [0], keep=1), w.integers([0]))


def _quantile(w: Writer, call: OpaqueCall) -> OnnxValue:
    """Write quantiles, of which there may be a vector; their axis is the first of the result."""
    x, axis, dtype = call.operand(), call.arguments["dim"], call.types[0].dtype
    value, type_ = _flat(w, x) if axis is None else (x.onnx, x.type)
    axis = axis or 0
    if not type_.rank:
        raise call.refuse("sorts a number")
    axis, size = axis % type_.rank, as_number(type_.dims[axis])
    order = _order(w, call, value, type_, axis=axis, count=size)
    ordered = w.op("GatherElements", value, order, axis=axis)
    wanted = w.op("Reshape", operand_as(w, call.arguments["q"], dtype), w.integers([-1]))
    ranks = w.op("Mul", wanted, w.number(float(size - 1), dtype))

    def at(rank: OnnxValue) -> OnnxValue:
        return w.op("Gather", ordered, w.cast(rank, DType.I64), axis=axis)

    match call.arguments["interpolation"]:
        case "lower":
            found = at(w.op("Floor", ranks))
        case "higher":
            found = at(w.op("Ceil", ranks))
        case "nearest":
            found = at(w.op("Round", ranks))
        case interpolation:
            low = w.op("Floor", ranks)
            weight = w.number(0.5, dtype) if interpolation == "midpoint" else w.op("Sub", ranks, low)
            if interpolation != "midpoint":
                weight = w.op("Reshape", weight, w.integers([-1, *[1] * (type_.rank - 1 - axis)]))
            found = lerped(w, at(low), at(w.op("Ceil", ranks)), weight, dtype)
    found = or_nan(w, found, value, dtype, [axis], keep=1)
    if axis:
        found = w.op("Transpose", found, perm=[axis, *range(axis), *range(axis + 1, type_.rank)])
    dims = call.types[0].dims
    return reshaped(w, found, TensorType(dtype, ()), dims)


def _looked_up(boundaries: str, values: str) -> OpaqueRow:
    """Return the row of the places of numbers among sorted ones, given the names of the arguments that hold them."""

    def row(w: Writer, call: OpaqueCall) -> OnnxValue:
        arguments, among, x = call.arguments, call.operand(boundaries), call.operand(values)
        if arguments.get("sorter") is not None:
            raise call.refuse("looks up in numbers that are not in order")
        if among.type.dtype is not x.type.dtype:
            raise call.refuse("looks up numbers of another type")
        has_rows = among.type.rank > 1
        rows = w.op("Unsqueeze", among.onnx, w.integers([-2])) if has_rows else among.onnx
        column = w.op("Unsqueeze", x.onnx, w.integers([-1]))
        # What is counted is not above, rather than below: so NaN is behind all numbers, as in a binary search.
        is_right = arguments["right"] or arguments.get("side") == "right"
        passed = w.op("Not", w.op("Less" if is_right else "LessOrEqual", column, rows))
        return w.op("ReduceSum", w.cast(passed, call.types[0].dtype), w.integers([-1]), keepdims=0)

    return row


def _is_in(w: Writer, call: OpaqueCall) -> OnnxValue:
    x, among = call.operand("elements"), call.operand("test_elements")
    dtype = promoted(x, among)
    wanted = w.op("Reshape", operand_as(w, among, dtype), w.integers([-1]))
    same = w.op("Equal", w.op("Unsqueeze", operand_as(w, x, dtype), w.integers([-1])), wanted)
    found = w.cast(w.op("ReduceMax", w.cast(same, DType.I32), w.integers([-1]), keepdims=0), DType.BOOL)
    return w.op("Not", found) if call.arguments["invert"] else found


def _is_number(w: Writer, call: OpaqueCall) -> OnnxValue:
    x, number = call.operand("elements"), call.arguments["test_element"]
    dtype = promoted(x, number)
    found = w.op("Equal", operand_as(w, x, dtype), operand_as(w, number, dtype))
    return w.op("Not", found) if call.arguments["invert"] else found


ROWS: Mapping[str, OpaqueRow] = {
    "aten.sort.default": _sort,
    "aten.sort.stable": _sort,
    "aten.argsort.default": _argsort,
    "aten.argsort.stable": _argsort,
    "aten.msort.default": _msort,
    "aten.kthvalue.default": _kth_value,
    "aten.median.dim": _median,
    "aten.median.default": _median_of_all,
    "aten.quantile.default": _quantile,
    "aten.quantile.scalar": _quantile,
    "aten.searchsorted.Tensor": _looked_up("sorted_sequence", "self"),
    "aten.bucketize.Tensor": _looked_up("boundaries", "self"),
    "aten.isin.Tensor_Tensor": _is_in,
    "aten.isin.Tensor_Scalar": _is_number,
}
"""The rows, by the name of the overload."""
