"""Rows of indexing with tensors that is no lookup of one operand's integers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from taso_py.backend.onnx.aten.elementwise import operand_as
from taso_py.backend.onnx.row import OnnxOperand, OpaqueCall, OpaqueRow, Result
from taso_py.backend.onnx.writer import OnnxValue, Writer
from taso_py.backend.tensors import TORCH_DTYPES
from taso_py.ir.size import Dim
from taso_py.ir.types import DType

_INDICES = (DType.I64, DType.I32)


def _places(w: Writer, operand: OnnxOperand) -> OnnxValue:
    """Return a tensor of indices in an element type that ONNX accepts."""
    return operand.onnx if operand.type.dtype in _INDICES else w.cast(operand.onnx, DType.I64)


def _long(w: Writer, operand: OnnxOperand) -> OnnxValue:
    """Return a tensor of indices as int64, so that they may be computed with."""
    return operand.onnx if operand.type.dtype is DType.I64 else w.cast(operand.onnx, DType.I64)


def _gather(w: Writer, call: OpaqueCall) -> OnnxValue:
    if not call.operand().type.rank:
        raise call.refuse("reads a number by an index")
    return w.op("GatherElements", call.operand().onnx, _places(w, call.operand("index")), axis=call.arguments["dim"])


def _indices_by_axis(call: OpaqueCall) -> dict[int, OnnxOperand]:
    indices = _given_indices(call)
    if any(_is_mask(index) for index in indices.values()):
        raise call.refuse("indexes with a mask")
    return indices


def _given_indices(call: OpaqueCall) -> dict[int, OnnxOperand]:
    given: Sequence[OnnxOperand | None] = call.arguments["indices"]
    return {axis: index for axis, index in enumerate(given) if index is not None}


def _is_mask(index: OnnxOperand) -> bool:
    return index.type.dtype in (DType.BOOL, DType.U8)


def _index(w: Writer, call: OpaqueCall) -> OnnxValue:
    x, indices = call.operand(), _indices_by_axis(call)
    axes = list(indices)
    # The indexed axes first; theirs are first in the result too, and go to where they were if they were side by side.
    others = [axis for axis in range(x.type.rank) if axis not in indices]
    moved = w.op("Transpose", x.onnx, perm=[*axes, *others]) if axes != list(range(len(axes))) else x.onnx
    result = w.op("GatherND", moved, _stacked(w, [indices[axis] for axis in axes]))
    rank = max(index.type.rank for index in indices.values())
    together = axes == list(range(axes[0], axes[0] + len(axes)))
    if not together or axes[0] == 0:
        return result
    before = range(rank, rank + axes[0])
    return w.op("Transpose", result, perm=[*before, *range(rank), *range(rank + axes[0], rank + len(others))])


def _stacked(w: Writer, indices: Sequence[OnnxOperand]) -> OnnxValue:
    """Stack broadcastable index tensors along a new last axis."""
    places = [_long(w, index) for index in indices]
    total = places[0]
    for place in places[1:]:
        total = w.op("Add", total, place)
    shape = w.op("Shape", total)
    last = w.integers([-1])
    full = [w.op("Unsqueeze", w.op("Expand", place, shape), last) for place in places]
    return w.op("Concat", *full, axis=-1)


def _scatter(reduction: str | None = None, source: str = "src") -> OpaqueRow:
    def row(w: Writer, call: OpaqueCall) -> OnnxValue:
        x, index = call.operand(), call.operand("index")
        if not x.type.rank:
            raise call.refuse("writes to a number")
        places = _places(w, index)
        content = call.arguments[source]
        if isinstance(content, OnnxOperand):
            shown = _shown(w, content, index, x.type.dtype)
        else:
            shown = w.op("Expand", w.number(content, x.type.dtype), w.dims(index.type.dims))
        given = {"axis": call.arguments["dim"], "reduction": reduction}
        return w.op("ScatterElements", x.onnx, places, shown, **given)

    return row


def _shown(w: Writer, source: OnnxOperand, index: OnnxOperand, dtype: DType) -> OnnxValue:
    """Return the part of what is scattered for which there are places, in an element type."""
    shown = operand_as(w, source, dtype)
    if source.type.dims == index.type.dims:
        return shown
    rank = index.type.rank
    return w.op("Slice", shown, w.integers([0] * rank), w.dims(index.type.dims), w.integers(range(rank)))


def _copied(w: Writer, call: OpaqueCall) -> OnnxValue:
    return _rows(w, call, reduction=None)


def _added(w: Writer, call: OpaqueCall) -> OnnxValue:
    return _rows(w, call, reduction="add", factor=call.arguments["alpha"])


def _rows(w: Writer, call: OpaqueCall, reduction: str | None, factor: float = 1) -> OnnxValue:
    x, index, source = call.operand(), call.operand("index"), call.operand("source")
    if not x.type.rank:
        raise call.refuse("writes to a number")
    axis, rows = call.arguments["dim"] % x.type.rank, operand_as(w, source, x.type.dtype)
    rows = rows if factor == 1 else w.op("Mul", rows, w.number(factor, x.type.dtype))
    return with_rows(w, x, _places(w, index), index.type.dims, rows, axis=axis, reduction=reduction)


def with_rows(
    w: Writer,
    x: OnnxOperand,
    places: OnnxValue,
    count: Sequence[Dim],
    rows: OnnxValue,
    *,
    axis: int,
    reduction: str | None = None,
) -> OnnxValue:
    """Write rows to the given places along an axis of a tensor.

    Args:
        w: the writer.
        x: the tensor.
        places: a vector of indices, or one index.
        count: the shape of ``places``.
        rows: what to write, as many elements as there are there.
        axis: the axis, not negative.
        reduction: how to combine them with the elements that are there; None to replace those.
    """
    around, dims = [1] * x.type.rank, list(x.type.dims)
    around[axis], dims[axis] = -1, count[0] if count else 1
    shape = w.dims(dims)
    indices = w.op("Expand", w.op("Reshape", places, w.integers(around)), shape)
    return w.op("ScatterElements", x.onnx, indices, w.op("Reshape", rows, shape), axis=axis, reduction=reduction)


def _put(w: Writer, call: OpaqueCall) -> OnnxValue:
    given = list(_given_indices(call).items())
    if len(given) == 1 and _is_mask(given[0][1]):
        return _put_where(w, call, *given[0])
    x, indices = call.operand(), _indices_by_axis(call)
    values = operand_as(w, call.operand("values"), x.type.dtype)
    reduction = "add" if call.arguments["accumulate"] else None
    axes, dims = list(indices), x.type.dims
    if len(axes) == 1 and indices[axes[0]].type.rank <= 1:
        (axis,) = axes
        index = indices[axis]
        rows = w.op("Expand", values, w.dims([*dims[:axis], *index.type.dims, *dims[axis + 1 :]]))
        return with_rows(w, x, _places(w, index), index.type.dims, rows, axis=axis, reduction=reduction)
    if axes != list(range(len(axes))):
        raise call.refuse("writes to places along axes that are not the first")
    if reduction is not None:
        return _added_at(w, x, list(indices.values()), values)
    places = _stacked(w, list(indices.values()))
    return w.op("ScatterND", x.onnx, places, _rows_at(w, values, w.op("Shape", places, end=-1), dims[len(axes) :]))


def _added_at(w: Writer, x: OnnxOperand, indices: Sequence[OnnxOperand], values: OnnxValue) -> OnnxValue:
    """Add values at places along the first axes, which are numbered as one: several may be added at one place.

    ONNX Runtime's ScatterND adds in parallel, and loses some of those.
    """
    axes, rest = x.type.dims[: len(indices)], x.type.dims[len(indices) :]
    number: OnnxValue | None = None
    for dim, index in zip(axes, indices, strict=True):
        place, size = _long(w, index), w.scalar(dim)
        place = w.op("Where", w.op("Less", place, w.number(0, DType.I64)), w.op("Add", place, size), place)
        number = place if number is None else w.op("Add", w.op("Mul", number, size), place)
    flat = w.dims([-1, *rest])
    rows = w.op("Reshape", _rows_at(w, values, w.op("Shape", number), rest), flat)
    places = w.op("Expand", w.op("Reshape", number, w.integers([-1, *[1] * len(rest)])), w.op("Shape", rows))
    lines = w.op("ScatterElements", w.op("Reshape", x.onnx, flat), places, rows, axis=0, reduction="add")
    return w.op("Reshape", lines, w.dims(x.type.dims))


def _rows_at(w: Writer, values: OnnxValue, sizes: OnnxValue, rest: Sequence[Dim]) -> OnnxValue:
    """Repeat values for places of the given sizes, and for the axes behind the indexed ones."""
    shape = w.op("Concat", sizes, w.dims(rest), axis=0) if rest else sizes
    return w.op("Expand", values, shape)


def _put_where(w: Writer, call: OpaqueCall, axis: int, mask: OnnxOperand) -> OnnxValue:
    """Write the same values to all places of a mask, which starts at an axis."""
    x, values = call.operand(), call.operand("values")
    behind = x.type.rank - axis - mask.type.rank
    if call.arguments["accumulate"] or values.type.rank > behind:
        raise call.refuse("indexes with a mask, and values of their own for its places")
    condition = operand_as(w, mask, DType.BOOL)
    if behind:
        condition = w.op("Unsqueeze", condition, w.integers(range(-behind, 0)))
    return w.op("Where", condition, operand_as(w, values, x.type.dtype), x.onnx)


def _filled(w: Writer, call: OpaqueCall) -> OnnxValue:
    """Write one number to the given places along an axis."""
    x, index = call.operand(), call.operand("index")
    if not x.type.rank:
        raise call.refuse("writes to a number")
    axis, dims = call.arguments["dim"] % x.type.rank, list(x.type.dims)
    dims[axis] = index.type.dims[0] if index.type.rank else 1
    rows = w.op("Expand", operand_as(w, call.arguments["value"], x.type.dtype), w.dims(dims))
    return with_rows(w, x, _places(w, index), index.type.dims, rows, axis=axis)


def _take(w: Writer, call: OpaqueCall) -> OnnxValue:
    line = w.op("Reshape", call.operand().onnx, w.integers([-1]))
    return w.op("Gather", line, _places(w, call.operand("index")), axis=0)


_REDUCTIONS = {
    "add": "add",
    "multiply": "mul",
    "sum": "add",
    "mean": "add",
    "prod": "mul",
    "amax": "max",
    "amin": "min",
}
"""Names of reductions in ONNX, by those that PyTorch has for scattering."""


def _scattered(w: Writer, call: OpaqueCall) -> Result:
    """Write elements to places, combined with what is there by an operator that the call names."""
    source = "src" if "src" in call.arguments else "value"
    return _scatter(_REDUCTIONS[call.arguments["reduce"]], source)(w, call)


def _scatter_reduced(w: Writer, call: OpaqueCall) -> OnnxValue:
    """Write reductions of the elements for each place, with or without what is there."""
    x, index, kind = call.operand(), call.operand("index"), call.arguments["reduce"]
    (type_,), axis, includes = call.types, call.arguments["dim"], call.arguments["include_self"]
    dtype = type_.dtype
    if not type_.rank or (kind == "mean" and not dtype.is_floating):
        raise call.refuse("writes to a number, or means of integers")
    places = _places(w, index)

    def scattered(base: OnnxValue, source: OnnxValue, reduction: str | None) -> OnnxValue:
        return w.op("ScatterElements", base, places, source, axis=axis, reduction=reduction)

    def everywhere(number: float, dtype: DType) -> OnnxValue:
        return w.op("Expand", w.number(number, dtype), w.dims(index.type.dims))

    def reduced(base: OnnxValue, source: OnnxValue, dtype: DType) -> OnnxValue:
        if not includes:
            base = scattered(base, everywhere(_neutral(kind, dtype), dtype), None)
        return scattered(base, source, _REDUCTIONS[kind])

    source = _shown(w, call.operand("src"), index, dtype)
    found = reduced(x.onnx, source, dtype)
    if kind in ("amax", "amin") and dtype.is_floating:
        # Engines take extremes as if there were no NaN: where there is, is an extreme of marks.
        mark = 1 if kind == "amax" else -1
        there, written = (
            w.op("Mul", w.cast(w.op("IsNaN", value), DType.I32), w.number(mark, DType.I32))
            for value in (x.onnx, source)
        )
        has_nan = w.op("Equal", reduced(there, written, DType.I32), w.number(mark, DType.I32))
        return w.op("Where", has_nan, w.number(math.nan, dtype), found)
    if kind != "mean":
        return found
    start = w.op("Expand", w.number(float(includes), dtype), w.dims(type_.dims))
    counts = scattered(start, everywhere(1.0, dtype), "add")
    return w.op("Div", found, counts if includes else w.op("Max", counts, w.number(1.0, dtype)))


def _neutral(kind: str, dtype: DType) -> float:
    """Return the number that a reduction leaves all others as they are with."""
    if kind not in ("amax", "amin"):
        return 1 if kind == "prod" else 0
    if dtype.is_floating:
        return -math.inf if kind == "amax" else math.inf
    limits = torch.iinfo(TORCH_DTYPES[dtype])
    return limits.min if kind == "amax" else limits.max


def _one_hot(w: Writer, call: OpaqueCall) -> OnnxValue:
    if not call.operand().type.rank:
        raise call.refuse("has a number as its operand")
    return w.op("OneHot", call.operand().onnx, w.dims([call.types[0].dims[-1]]), w.integers([0, 1]), axis=-1)


ROWS: Mapping[str, OpaqueRow] = {
    "aten.gather.default": _gather,
    "aten.index.Tensor": _index,
    "aten.index_add.default": _added,
    "aten.index_copy.default": _copied,
    "aten.index_put.default": _put,
    "aten.one_hot.default": _one_hot,
    **{f"aten.index_fill.int_{kind}": _filled for kind in ("Scalar", "Tensor")},
    "aten.take.default": _take,
    "aten.scatter_reduce.two": _scatter_reduced,
    "aten.scatter.reduce": _scattered,
    "aten.scatter.value_reduce": _scattered,
    "aten.scatter.src": _scatter(),
    "aten.scatter.value": _scatter(source="value"),
    "aten.scatter_add.default": _scatter("add"),
}
"""The rows, by the name of the overload."""
