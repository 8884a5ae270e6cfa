"""Rows of calls that move elements: rolls, flips, repetitions, padding, triangles, scatters into slices."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from taso_py.backend.onnx.aten.elementwise import each, operand_as
from taso_py.backend.onnx.aten.indexing import with_rows
from taso_py.backend.onnx.movement import LAST, flipped, padded, reshaped
from taso_py.backend.onnx.row import OpaqueCall, OpaqueRow
from taso_py.backend.onnx.writer import OnnxValue, Writer, as_number
from taso_py.ir.size import Dim
from taso_py.ir.types import DType, TensorType


def _as_is(w: Writer, call: OpaqueCall) -> OnnxValue:
    return call.operand().onnx


def _converted(w: Writer, call: OpaqueCall) -> OnnxValue:
    return operand_as(w, call.operand(), call.types[0].dtype)


def _reshape(w: Writer, call: OpaqueCall) -> OnnxValue:
    return reshaped(w, call.operand().onnx, call.operand().type, call.types[0].dims)


def _expand(w: Writer, call: OpaqueCall) -> OnnxValue:
    return w.op("Expand", call.operand().onnx, w.dims(call.types[0].dims))


def _copied(w: Writer, call: OpaqueCall) -> OnnxValue:
    """Write what is copied over a tensor, in the tensor's element type and shape."""
    (type_,) = call.types
    source = call.operand("src")
    converted = operand_as(w, source, type_.dtype)
    return converted if source.type.dims == type_.dims else w.op("Expand", converted, w.dims(type_.dims))


def _roll(w: Writer, call: OpaqueCall) -> OnnxValue:
    result, type_ = call.operand().onnx, call.operand().type
    axes: Sequence[int] = call.arguments["dims"]
    if not axes:
        flat = w.op("Reshape", result, w.integers([-1]))
        count = type_.elements if not type_.open else None
        if count is None:
            raise call.refuse("rolls all elements of an open size")
        return reshaped(w, _rolled(w, flat, 0, shift=call.arguments["shifts"][0], size=count), type_, type_.dims)
    for axis, shift in zip(axes, call.arguments["shifts"], strict=True):
        result = _rolled(w, result, axis, shift=shift, size=as_number(type_.dims[axis]))
    return result


def _rolled(w: Writer, x: OnnxValue, axis: int, shift: Dim, size: int) -> OnnxValue:
    cut = -as_number(shift) % size if size else 0
    if cut == 0:
        return x
    along = w.integers([axis])
    tail = w.op("Slice", x, w.integers([cut]), w.integers([LAST]), along)
    head = w.op("Slice", x, w.integers([0]), w.integers([cut]), along)
    return w.op("Concat", tail, head, axis=axis)


def _flip(w: Writer, call: OpaqueCall) -> OnnxValue:
    axes: Sequence[int] = call.arguments["dims"]
    if not call.operand().type.rank:  # PyTorch takes the last axis of a number, which has none
        return call.operand().onnx
    return flipped(w, call.operand().onnx, axes)


def _repeat(w: Writer, call: OpaqueCall) -> OnnxValue:
    x = call.operand()
    times = list(call.arguments["repeats" if "repeats" in call.arguments else "dims"])
    times = [1] * (x.type.rank - len(times)) + times
    missing = len(times) - x.type.rank
    shape = [*[1] * missing, *x.type.dims]
    value = reshaped(w, x.onnx, x.type, shape) if missing else x.onnx
    return w.op("Tile", value, w.dims(times))


def _repeat_interleave(w: Writer, call: OpaqueCall) -> OnnxValue:
    x, times, axis = call.operand(), call.arguments["repeats"], call.arguments["dim"]
    value, dims = x.onnx, x.type.dims
    if axis is None:  # of all elements in a row
        count = math.prod(map(as_number, dims))
        value, dims, axis = reshaped(w, value, x.type, (count,)), (count,), 0
    axis %= len(dims)
    beside = w.op("Unsqueeze", value, w.integers([axis + 1]))
    ones: list[Dim] = [1] * (len(dims) + 1)
    ones[axis + 1] = times
    longer = TensorType(x.type.dtype, (*dims[: axis + 1], times, *dims[axis + 1 :]))
    return reshaped(w, w.op("Expand", beside, w.dims(ones)), longer, call.types[0].dims)


def _triangle(*, upper: int) -> OpaqueRow:
    def row(w: Writer, call: OpaqueCall) -> OnnxValue:
        return w.op("Trilu", call.operand().onnx, w.number(call.arguments["diagonal"], DType.I64), upper=upper)

    return row


_PAD_MODES = {"reflect": "reflect", "replicate": "edge"}


def _pad(mode: str | None = None, widths_name: str = "pad") -> OpaqueRow:
    def row(w: Writer, call: OpaqueCall) -> OnnxValue:
        x, widths = call.operand(), list(call.arguments[widths_name])
        kind = mode or call.arguments.get("mode", "constant")
        if kind == "circular":
            return _wrapped(w, x.onnx, [as_number(width) for width in widths])
        # PyTorch lists (before, after) from the last axis backwards.
        before, after = (list(reversed(widths[side::2])) for side in (0, 1))
        if kind == "constant":
            return padded(w, x.onnx, x.type, before=before, after=after, filler=call.arguments.get("value") or 0)
        lead = [0] * (x.type.rank - len(before))
        return w.op("Pad", x.onnx, w.dims([*lead, *before, *lead, *after]), mode=_PAD_MODES[kind])

    return row


def _wrapped(w: Writer, x: OnnxValue, widths: Sequence[int]) -> OnnxValue:
    """Write circular padding as concatenations, on each axis from the last; not all engines know that padding mode."""
    for place in range(len(widths) // 2):
        axis, (before, after) = -1 - place, widths[2 * place :][:2]
        along, parts = w.integers([axis]), [x]
        if before:
            parts.insert(0, w.op("Slice", x, w.integers([-before]), w.integers([LAST]), along))
        if after:
            parts.append(w.op("Slice", x, w.integers([0]), w.integers([after]), along))
        x = w.op("Concat", *parts, axis=axis) if len(parts) > 1 else x
    return x


def _scattered_slice(w: Writer, call: OpaqueCall) -> OnnxValue:
    x, axis, step = call.operand(), call.arguments["dim"], call.arguments["step"]
    axis %= x.type.rank
    size = as_number(x.type.dims[axis])
    start, end = call.arguments["start"], call.arguments["end"]
    start, end = _place(0 if start is None else start, size), _place(size if end is None else end, size)
    part = operand_as(w, call.operand("src"), x.type.dtype)
    if step == 1:
        return _replaced(w, x.onnx, part, axis=axis, start=start, end=end)
    places = range(start, end, step)
    return with_rows(w, x, w.integers(places), [len(places)], part, axis=axis)


def _place(bound: Dim, size: int) -> int:
    """Return a slice bound as a number from 0 to the size."""
    place = as_number(bound)
    return min(max(place + size if place < 0 else place, 0), size)


def _replaced(w: Writer, x: OnnxValue, part: OnnxValue, axis: int, start: int, end: int) -> OnnxValue:
    along = w.integers([axis])
    before = w.op("Slice", x, w.integers([0]), w.integers([start]), along)
    after = w.op("Slice", x, w.integers([end]), w.integers([LAST]), along)
    return w.op("Concat", before, part, after, axis=axis)


def _scattered_row(w: Writer, call: OpaqueCall) -> OnnxValue:
    x, axis, place = call.operand(), call.arguments["dim"], as_number(call.arguments["index"])
    place += as_number(x.type.dims[axis]) if place < 0 else 0
    axis %= x.type.rank
    row = w.op("Unsqueeze", operand_as(w, call.operand("src"), x.type.dtype), w.integers([axis]))
    if axis == 0:  # engines that see that nothing else reads the tensor write to it
        return w.op("ScatterND", x.onnx, w.op("Unsqueeze", w.integers([place]), w.integers([1])), row)
    return _replaced(w, x.onnx, row, axis=axis, start=place, end=place + 1)


def _rotated(w: Writer, call: OpaqueCall) -> OnnxValue:
    x, (first, second), turns = call.operand(), call.arguments["dims"], call.arguments["k"] % 4
    order = list(range(x.type.rank))
    first, second = order[first], order[second]
    if not turns:
        return x.onnx
    if turns == 2:
        return flipped(w, x.onnx, [first, second])
    order[first], order[second] = second, first
    return w.op("Transpose", flipped(w, x.onnx, [second if turns == 1 else first]), perm=order)


def _pairs(w: Writer, x: OnnxValue, axis: int) -> tuple[OnnxValue, OnnxValue]:
    """Write the elements along an axis that have a next one, and their next ones."""
    along = w.integers([axis])
    first = w.op("Slice", x, w.integers([0]), w.integers([-1]), along)
    return first, w.op("Slice", x, w.integers([1]), w.integers([LAST]), along)


def _diff(w: Writer, call: OpaqueCall) -> OnnxValue:
    axis, (type_,) = call.arguments["dim"], call.types
    ends = (call.optional("prepend"), call.operand(), call.optional("append"))
    parts = [operand_as(w, part, type_.dtype) for part in ends if part is not None]
    found = w.op("Concat", *parts, axis=axis) if len(parts) > 1 else parts[0]
    for _ in range(call.arguments["n"]):
        first, second = _pairs(w, found, axis)
        found = w.op("Xor" if type_.dtype is DType.BOOL else "Sub", second, first)
    return found


def _trapezoid(w: Writer, call: OpaqueCall) -> OnnxValue:
    """Write the integral of a line through points that are equally far apart, as the sum without half of either end."""
    (type_,), axis, end = call.types, call.arguments["dim"], w.integers([LAST])
    y, along = operand_as(w, call.operand("y"), type_.dtype), w.integers([axis])
    first = w.op("Slice", y, w.integers([0]), w.integers([1]), along)
    ends = w.op("Add", first, w.op("Slice", y, w.integers([-1]), end, along))
    total = w.op("ReduceSum", y, along, keepdims=1)
    inside = w.op("Sub", total, w.op("Mul", ends, w.number(0.5, type_.dtype)))
    return w.op("Squeeze", w.op("Mul", inside, w.number(call.arguments["dx"], type_.dtype)), along)


def _trapezoid_at(w: Writer, call: OpaqueCall) -> OnnxValue:
    """Write the integral of a line through points at given places."""
    (type_,), y, x, axis = call.types, call.operand("y"), call.operand("x"), call.arguments["dim"]
    if x.type.rank not in (1, y.type.rank):
        raise call.refuse("has fewer axes of places than of heights")
    heights = w.op("Add", *_pairs(w, operand_as(w, y, type_.dtype), axis))
    first, second = _pairs(w, operand_as(w, x, type_.dtype), axis if x.type.rank > 1 else 0)
    widths = w.op("Sub", second, first)
    if x.type.rank < y.type.rank:
        widths = w.op("Reshape", widths, w.integers([-1, *[1] * (y.type.rank - 1 - axis % y.type.rank)]))
    total = w.op("ReduceSum", w.op("Mul", widths, heights), w.integers([axis]), keepdims=0)
    return w.op("Mul", total, w.number(0.5, type_.dtype))


def _concatenated(axis: int, dims_of: Callable[[Sequence[Dim]], Sequence[Dim]]) -> OpaqueRow:
    """Return the row of a concatenation along an axis of operands that first get other dimensions."""

    def row(w: Writer, call: OpaqueCall) -> OnnxValue:
        parts: list[OnnxValue] = []
        for part in call.arguments["tensors"]:
            value, dims = operand_as(w, part, call.types[0].dtype), tuple(dims_of(part.type.dims))
            parts.append(value if dims == part.type.dims else reshaped(w, value, part.type, dims))
        return w.op("Concat", *parts, axis=call.arguments.get("dim", min(axis, call.types[0].rank - 1)))

    return row


def _in_a_row(dims: Sequence[Dim]) -> Sequence[Dim]:
    return (*[1] * (2 - len(dims)), *dims)


def _in_a_column(dims: Sequence[Dim]) -> Sequence[Dim]:
    return dims if len(dims) > 1 else (*dims, *[1] * (2 - len(dims)))


def _in_depth(dims: Sequence[Dim]) -> Sequence[Dim]:
    if len(dims) > 2:
        return dims
    return (*dims, 1) if len(dims) == 2 else (1, *(dims or [1]), 1)


def _block_diagonal(w: Writer, call: OpaqueCall) -> OnnxValue:
    (type_,), parts = call.types, call.arguments["tensors"]
    if any(part.type.rank != 2 for part in parts):
        raise call.refuse("puts vectors on a diagonal")
    before, rows = 0, []
    for part in parts:
        width = as_number(part.type.dims[1])
        after = as_number(type_.dims[1]) - before - width
        rows.append(padded(w, operand_as(w, part, type_.dtype), type_, [before], [after], 0))
        before += width
    return w.op("Concat", *rows, axis=0)


ROWS: Mapping[str, OpaqueRow] = {
    **{f"aten.{name}.default": _as_is for name in ("clone", "contiguous", "alias", "detach", "lift_fresh_copy")},
    "aten._to_copy.default": _converted,
    "aten.to.dtype": _converted,
    **{f"aten.{name}.default": _reshape for name in ("reshape", "view", "_unsafe_view", "view_copy")},
    "aten.expand.default": _expand,
    "aten.roll.default": _roll,
    "aten.flip.default": _flip,
    "aten.repeat.default": _repeat,
    "aten.tile.default": _repeat,
    "aten.repeat_interleave.self_int": _repeat_interleave,
    "aten.rot90.default": _rotated,
    "aten.diff.default": _diff,
    **each("trapezoid.dx", "trapz.dx", row=_trapezoid),
    **each("trapezoid.x", "trapz.x", row=_trapezoid_at),
    **each("concat.default", "concatenate.default", row=_concatenated(0, lambda dims: dims)),
    "aten.hstack.default": _concatenated(1, lambda dims: dims or [1]),
    **each("vstack.default", "row_stack.default", row=_concatenated(0, _in_a_row)),
    "aten.dstack.default": _concatenated(2, _in_depth),
    "aten.column_stack.default": _concatenated(1, _in_a_column),
    "aten.block_diag.default": _block_diagonal,
    "aten.tril.default": _triangle(upper=0),
    "aten.triu.default": _triangle(upper=1),
    "aten.pad.default": _pad(),
    "aten.constant_pad_nd.default": _pad("constant"),
    **{f"aten.reflection_pad{rank}d.default": _pad("reflect", "padding") for rank in (1, 2, 3)},
    **{f"aten.replication_pad{rank}d.default": _pad("replicate", "padding") for rank in (1, 2, 3)},
    "aten.copy.default": _copied,
    "aten.slice_scatter.default": _scattered_slice,
    "aten.select_scatter.default": _scattered_row,
}
"""The rows, by the name of the overload."""
