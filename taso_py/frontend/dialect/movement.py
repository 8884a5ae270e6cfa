"""Import of data movement: views of all kinds, concatenation, padding, copies.

Invariant: a view becomes an operator on values, never a description of strides; the importer compares the resulting
layout with the original's. A call that changes neither elements nor layout disappears.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from taso_py.backend.bits import PLAIN, bits_of
from taso_py.backend.lowering import is_upsampled_exactly
from taso_py.frontend.call import AtenCall, Result, apply, negative
from taso_py.ir.node import Value
from taso_py.ir.size import Dim, floordiv
from taso_py.ops.elementwise import Cast
from taso_py.ops.layout import permuted
from taso_py.ops.movement import (
    Concat,
    Contiguous,
    Diagonal,
    DiagonalMatrix,
    Expand,
    Flip,
    Pad,
    Reshape,
    Slice,
    UpsampleNearest2d,
)
from taso_py.ops.resizing import UpsampleBilinear2d


def reshaped(x: Value, shape: Sequence[Dim]) -> Value:
    """Return a value reshaped, or itself if it has that shape."""
    return x if x.type.shape == tuple(shape) else apply(Reshape(tuple(shape)), x)


def expanded(x: Value, shape: Sequence[Dim]) -> Value:
    """Return a value expanded, or itself if it has that shape."""
    return x if x.type.shape == tuple(shape) else apply(Expand(tuple(shape)), x)


def exchanged(x: Value, one: int, other: int) -> Value:
    """Return a value with two axes exchanged."""
    order = list(range(-x.type.rank, 0))
    order[one], order[other] = order[other], order[one]
    return permuted(x, order)


def sliced(x: Value, axis: int, start: Dim, stop: Dim, step: int = 1) -> Value:
    """Return a slice with bounds in range, or the value itself if that is the whole axis."""
    size = x.type.dims[axis]
    return x if (start, stop, step) == (0, size, 1) else apply(Slice(axis, start, stop, step), x)


def repeated(x: Value, axis: int, times: Dim) -> Value:
    """Return a value each part of which along an axis is repeated along another axis, which follows that one."""
    place = x.type.rank + axis + 1
    before, after = x.type.dims[:place], x.type.dims[place:]
    return apply(Expand((*before, times, *after)), apply(Reshape((*before, 1, *after)), x))


def _reshape(call: AtenCall) -> Result:
    return reshaped(call.value("self"), call.types[0].dims)


def _reshape_or_copy(call: AtenCall) -> Result:
    """Import a view in another shape, or a copy in it where memory order does not allow one."""
    x = call.value("self")
    x = x if _is_viewable(call.layouts[x], call.types[0].sizes) else apply(Contiguous(), x)
    return reshaped(x, call.types[0].dims)


def _is_viewable(operand: Tensor, shape: Sequence[int]) -> bool:
    """Return whether a tensor has a view of a shape."""
    sizes, strides = ([int(size) for size in sizes] for sizes in (operand.shape, operand.stride()))
    try:  # on a tensor of its own, since the model may be imported under another mode of fake tensors
        torch.empty_strided(sizes, strides, device="meta").view(shape)
    except (RuntimeError, ValueError):
        return False
    return True


def _expand(call: AtenCall) -> Result:
    return expanded(call.value("self"), call.types[0].dims)


def _permute(call: AtenCall) -> Result:
    x = call.value("self")
    return permuted(x, [negative(axis, x.type.rank) for axis in call["dims"]])


def _transpose(first: str = "", second: str = "") -> Callable[[AtenCall], Result]:
    def row(call: AtenCall) -> Result:
        x = call.value("self")
        if x.type.rank < 2:
            return x
        axes = (call.axis(first, x), call.axis(second, x)) if first else (-2, -1)
        return exchanged(x, *axes)

    return row


def _diagonal(call: AtenCall) -> Result:
    """Import the diagonals of square matrices, along any two axes."""
    x = call.value("self")
    rows, columns = call.axis("dim1", x), call.axis("dim2", x)
    call.require(call["offset"] == 0 and x.type.dims[rows] == x.type.dims[columns])
    others = [axis for axis in range(-x.type.rank, 0) if axis not in (rows, columns)]
    return apply(Diagonal(), permuted(x, [*others, rows, columns]))


def _diagonal_matrix(call: AtenCall) -> Result:
    """Import matrices with given diagonals, if they are the last two axes."""
    x = call.value("self")
    axes = [negative(call[name], x.type.rank + 1) for name in ("dim1", "dim2")]
    call.require(call["offset"] == 0 and sorted(axes) == [-2, -1])
    return apply(DiagonalMatrix(), x)


def _diag(call: AtenCall) -> Result:
    x = call.value("self")
    call.require(call["diagonal"] == 0 and x.type.rank == 1)
    return apply(DiagonalMatrix(), x)


def _slice(call: AtenCall) -> Result:
    x = call.value("self")
    axis = call.axis("dim", x)
    size = x.type.dims[axis]
    if isinstance(size, int) and all(isinstance(call[name], int | None) for name in ("start", "end")):
        start, stop, step = slice(call["start"], call["end"], call["step"]).indices(size)
        return sliced(x, axis, start, max(start, stop), step)
    start, stop = _bound(call["start"], 0, size), _bound(call["end"], size, size)
    result = sliced(x, axis, start, stop, call["step"])
    # The export knows the ranges of open sizes; where it found another length, a bound is out of range for some.
    call.require(result.type == call.types[0])
    return result


def _bound(given: Any, default: Dim, size: Dim) -> Dim:
    """Return a bound of a slice, counted from the start."""
    if given is None or (isinstance(given, int) and given >= sys.maxsize):
        return default if given is None else size
    return size + given if isinstance(given, int) and given < 0 else given


def _narrow(call: AtenCall) -> Result:
    x = call.value("self")
    axis = call.axis("dim", x)
    start = _bound(call["start"], 0, x.type.dims[axis])
    return sliced(x, axis, start, start + call["length"])


def _select(call: AtenCall) -> Result:
    return _selected(call, call.types[0].dims)


def _selected(call: AtenCall, shape: Sequence[Dim]) -> Value:
    x = call.value("self")
    axis = call.axis("dim", x)
    index = _bound(call["index"], 0, x.type.dims[axis])
    return reshaped(sliced(x, axis, index, index + 1), shape)


def _repeat_interleave(call: AtenCall) -> Result:
    """Import copies of each element beside it: as another axis, which joins the one that it follows."""
    x, (result,), repeats = call.value("self"), call.types, call["repeats"]
    call.require(type(repeats) is int and repeats > 0 and x.type.rank > 0 and call["dim"] is not None)
    return apply(Reshape(result.dims), apply(Contiguous(), repeated(x, call.axis("dim", x), repeats)))


def _copies(repeats: str) -> Callable[[AtenCall], Result]:
    """Import copies of the whole along each axis: an axis of one is expanded, others as a further axis before them."""

    def row(call: AtenCall) -> Result:
        x, (result,), times = call.value("self"), call.types, list(call[repeats])
        call.require(all(type(count) is int and count > 0 for count in times))
        # The shorter of the two, sizes or numbers of copies, begins with ones.
        counts = [1] * (result.rank - len(times)) + times
        sizes = [1] * (result.rank - x.type.rank) + list(x.type.dims)
        before: list[Dim] = []
        after: list[Dim] = []
        for count, size in zip(counts, sizes, strict=True):
            before += [size] if count == 1 or size == 1 else [1, size]
            after += [size] if count == 1 else [count] if size == 1 else [count, size]
        return reshaped(apply(Contiguous(), expanded(reshaped(x, before), after)), result.dims)

    return row


def _channel_shuffle(call: AtenCall) -> Result:
    """Import channels in another order: as groups of channels, whose axes are exchanged; in row-major order only."""
    x, groups = call.value("self"), call["groups"]
    batch, channels, *pixels = x.type.dims
    call.require(type(groups) is int and groups > 0 and isinstance(channels, int) and call.layouts[x].is_contiguous())
    apart = reshaped(x, (batch, groups, channels // groups, *pixels))
    return reshaped(apply(Contiguous(), exchanged(apart, 1, 2)), x.type.dims)


def _scattered(part: Callable[[AtenCall], Result]) -> Callable[[AtenCall], Result]:
    """Import a part that is written back as it was, which an export leaves behind a write to a view of it."""

    def row(call: AtenCall) -> Result:
        call.require(call.value("src") == part(call))
        return call.value("self")

    return row


def _pieces(call: AtenCall) -> Result:
    """Import split and chunk: the sizes of the results say where to cut."""
    x = call.value("self")
    axis = call.axis("dim", x)
    start: Dim = 0
    pieces: list[Value] = []
    for type_ in call.types:
        stop = start + type_.dims[axis]
        pieces.append(sliced(x, axis, start, stop))
        start = stop
    call.require(start == x.type.dims[axis])
    return pieces


def _unbind(call: AtenCall) -> Result:
    x = call.value("self")
    axis = call.axis("dim", x)
    return [reshaped(sliced(x, axis, i, i + 1), type_.dims) for i, type_ in enumerate(call.types)]


def _cat(call: AtenCall) -> Result:
    """Import a concatenation; operands that add nothing are left out, also those of one axis that PyTorch skips."""
    operands, axis = call.values("tensors"), negative(call["dim"], call.types[0].rank)
    adding = [x for x in operands if x.type.dims != (0,) and x.type.dims[axis] != 0] or operands
    return apply(Concat(axis), *adding) if len(adding) > 1 else apply(Contiguous(), adding[0])


def _stack(call: AtenCall) -> Result:
    shape = list(call.types[0].dims)
    axis = negative(call["dim"], len(shape))
    shape[axis] = 1
    return apply(Concat(axis), *[apply(Reshape(tuple(shape)), x) for x in call.values("tensors")])


def _roll(call: AtenCall) -> Result:
    """Import a rotation: what moves over the end of an axis comes first."""
    x, axes, shifts = call.value("self"), list(call["dims"]), list(call["shifts"])
    call.require(len(axes) == len(shifts) and all(isinstance(shift, int) for shift in shifts))
    for axis, shift in zip((negative(axis, x.type.rank) for axis in axes), shifts, strict=True):
        size = x.type.dims[axis]
        call.require(isinstance(size, int) and size > 0)
        cut = -shift % size
        if cut:
            x = apply(Concat(axis), sliced(x, axis, cut, size), sliced(x, axis, 0, cut))
    return x


def _flip(*axes: int) -> Callable[[AtenCall], Result]:
    """Import elements in reverse order along given axes, or along those that the call names."""

    def row(call: AtenCall) -> Result:
        x, given = call.value("self"), axes or call["dims"]
        call.require(x.type.rank > 0 and len(given) > 0)
        return apply(Flip(tuple(sorted(negative(axis, x.type.rank) for axis in given))), x)

    return row


def _pad(widths: str, value: str) -> Callable[[AtenCall], Result]:
    def row(call: AtenCall) -> Result:
        x, flat = call.value("self"), list(call[widths])
        call.require(call.arguments.get("mode", "constant") == "constant")
        call.require(all(isinstance(width, int) for width in flat))
        pairs = [(flat[i], flat[i + 1]) for i in range(len(flat) - 2, -1, -2)]
        for axis, (before, after) in enumerate(pairs, start=-len(pairs)):
            # A negative width cuts off.
            x = sliced(x, axis, max(-before, 0), x.type.dims[axis] + min(after, 0))
        grown = tuple((max(before, 0), max(after, 0)) for before, after in pairs)
        if not any(map(any, grown)):
            return apply(Contiguous(), x)
        number = call[value]
        return apply(Pad(grown, 0.0 if number is None else number), x)

    return row


def _identity(call: AtenCall) -> Result:
    """Import a call that returns its operand's elements; the importer checks the layout."""
    return call.value("self")


def _dropout(call: AtenCall) -> Result:
    """Import dropout that drops nothing: it returns its operand."""
    call.require(not (call["train"] and call["p"]))
    return call.value("input")


def _copy(call: AtenCall) -> Result:
    """Import the functional form of overwriting a whole tensor: the source in the target's shape and type."""
    x, type_ = call.value("src"), call.types[0]
    x = x if x.type.dtype is type_.dtype else apply(Cast(type_.dtype), x)
    return x if x.type.shape == type_.shape else apply(Expand(type_.dims), x)


_CONTIGUOUS = 0
"""The contiguous format as PyTorch states it among an operator's defaults."""


def _clone(call: AtenCall) -> Result:
    x, (result,) = call.value("self"), call.results
    operand = call.layouts[x]
    if result is not None and operand.stride() == result.stride() and bits_of(operand) == bits_of(result):
        return x
    # A copy is how an export resolves a conjugate; no rule may remove it.
    call.require(bits_of(operand) == PLAIN)
    call.require(call["memory_format"] in (None, _CONTIGUOUS, torch.preserve_format, torch.contiguous_format))
    return apply(Contiguous(), x)


def _enlarged(call: AtenCall) -> tuple[Value, tuple[int, int]]:
    """Return what a call enlarges, and by which factors, which must be whole."""
    x = call.value("input" if "input" in call.arguments else "self")
    extents = x.type.dims[-2:]
    factors = [floordiv(after, before) for before, after in zip(extents, call.types[0].dims[-2:], strict=True)]
    scales = call["scale_factors"] if "scale_factors" in call.arguments else [call["scales_h"], call["scales_w"]]
    for factor, scale in zip(factors, scales or [None, None], strict=True):
        call.require(isinstance(factor, int) and factor >= 1 and scale in (None, factor))
    rows, columns = (factor if isinstance(factor, int) else 0 for factor in factors)
    return x, (rows, columns)


def _upsample_nearest2d(call: AtenCall) -> Result:
    """Import enlarging by whole factors; there the nearest element by either of PyTorch's two counts is the same."""
    x, factors = _enlarged(call)
    call.require(is_upsampled_exactly(x.type.dims[-2:], factors))
    return apply(UpsampleNearest2d(factors), x)


def _upsample_bilinear2d(call: AtenCall) -> Result:
    x, factors = _enlarged(call)
    return apply(UpsampleBilinear2d(factors, bool(call["align_corners"])), x)


ROWS: Mapping[str, Callable[[AtenCall], Result]] = {
    **{
        f"aten.{name}": _reshape
        for name in (
            *("view.default", "_unsafe_view.default", "unflatten.int", "unsqueeze.default"),
            *("squeeze.default", "squeeze.dim", "squeeze.dims", "_reshape_alias.default"),
        )
    },
    "aten.reshape.default": _reshape_or_copy,
    "aten.flatten.using_ints": _reshape_or_copy,
    "aten.expand.default": _expand,
    "aten.permute.default": _permute,
    "aten.transpose.int": _transpose("dim0", "dim1"),
    "aten.t.default": _transpose(),
    "aten.mT.default": _transpose(),
    "aten.diagonal.default": _diagonal,
    "aten.diag_embed.default": _diagonal_matrix,
    "aten.diag.default": _diag,
    "aten.slice.Tensor": _slice,
    "aten.slice_scatter.default": _scattered(_slice),
    "aten.select_scatter.default": _scattered(lambda call: _selected(call, call.value("src").type.dims)),
    "aten.narrow.default": _narrow,
    "aten.select.int": _select,
    "aten.split.Tensor": _pieces,
    "aten.split_with_sizes.default": _pieces,
    "aten.chunk.default": _pieces,
    "aten.unsafe_split.Tensor": _pieces,
    "aten.unsafe_split_with_sizes.default": _pieces,
    "aten.unbind.int": _unbind,
    "aten.cat.default": _cat,
    "aten.stack.default": _stack,
    "aten.roll.default": _roll,
    "aten.flip.default": _flip(),
    "aten.flipud.default": _flip(0),
    "aten.fliplr.default": _flip(1),
    "aten.repeat_interleave.self_int": _repeat_interleave,
    "aten.repeat.default": _copies("repeats"),
    "aten.tile.default": _copies("dims"),
    "aten.channel_shuffle.default": _channel_shuffle,
    "aten.pad.default": _pad("pad", "value"),
    "aten.constant_pad_nd.default": _pad("pad", "value"),
    "aten.clone.default": _clone,
    "aten.contiguous.default": _clone,
    "aten.copy.default": _copy,
    "aten.dropout.default": _dropout,
    "aten.alias.default": _identity,
    "aten.detach.default": _identity,
    "aten.lift_fresh_copy.default": _identity,
    **{
        f"aten.{name}.{form}": _upsample_nearest2d
        for name in ("upsample_nearest2d", "_upsample_nearest_exact2d")
        for form in ("default", "vec")
    },
    **{f"aten.upsample_bilinear2d.{form}": _upsample_bilinear2d for form in ("default", "vec")},
}
"""One row per ATen overload."""
