"""Rows of indexing with tensors that is no lookup of one operand's integers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from taso_py.backend.onnx.aten.elementwise import operand_as
from taso_py.backend.onnx.row import OnnxOperand, OpaqueCall, OpaqueRow
from taso_py.backend.onnx.writer import OnnxValue, Writer
from taso_py.ir.size import Dim
from taso_py.ir.types import DType

_INDICES = (DType.I64, DType.I32)


def _places(w: Writer, operand: OnnxOperand) -> OnnxValue:
    """Return a tensor of indices in an element type that ONNX accepts."""
    return operand.onnx if operand.type.dtype in _INDICES else w.cast(operand.onnx, DType.I64)


def _gather(w: Writer, call: OpaqueCall) -> OnnxValue:
    if not call.operand().type.rank:
        raise call.refuse("reads a number by an index")
    return w.op("GatherElements", call.operand().onnx, _places(w, call.operand("index")), axis=call.arguments["dim"])


def _indices_by_axis(call: OpaqueCall) -> dict[int, OnnxOperand]:
    given: Sequence[OnnxOperand | None] = call.arguments["indices"]
    indices = {axis: index for axis, index in enumerate(given) if index is not None}
    if any(index.type.dtype in (DType.BOOL, DType.U8) for index in indices.values()):
        raise call.refuse("indexes with a mask")
    return indices


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
    places = [w.cast(index.onnx, DType.I64) if index.type.dtype is not DType.I64 else index.onnx for index in indices]
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
            shown = operand_as(w, content, x.type.dtype)
            if content.type.dims != index.type.dims:
                ends = w.dims(index.type.dims)
                starts, axes = w.integers([0] * index.type.rank), w.integers(range(index.type.rank))
                shown = w.op("Slice", shown, starts, ends, axes)
        else:
            shown = w.op("Expand", w.number(content, x.type.dtype), w.dims(index.type.dims))
        given = {"axis": call.arguments["dim"], "reduction": reduction}
        return w.op("ScatterElements", x.onnx, places, shown, **given)

    return row


def _copied(w: Writer, call: OpaqueCall) -> OnnxValue:
    return _rows(w, call, reduction=None)


def _added(w: Writer, call: OpaqueCall) -> OnnxValue:
    if call.arguments["alpha"] != 1:
        raise call.refuse("adds a multiple")
    return _rows(w, call, reduction="add")


def _rows(w: Writer, call: OpaqueCall, reduction: str | None) -> OnnxValue:
    x, index, source = call.operand(), call.operand("index"), call.operand("source")
    if not x.type.rank:
        raise call.refuse("writes to a number")
    axis, rows = call.arguments["dim"] % x.type.rank, operand_as(w, source, x.type.dtype)
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
    places = _stacked(w, list(indices.values()))
    sizes, rest = w.op("Shape", places, end=-1), dims[len(axes) :]
    shape = w.op("Concat", sizes, w.dims(rest), axis=0) if rest else sizes
    return w.op("ScatterND", x.onnx, places, w.op("Expand", values, shape), reduction=reduction)


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
    "aten.scatter.src": _scatter(),
    "aten.scatter.value": _scatter(source="value"),
    "aten.scatter_add.default": _scatter("add"),
}
"""The rows, by the name of the overload."""
