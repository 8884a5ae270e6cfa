"""Rows of ONNX operators that move elements, make them, or change their type."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain

import torch
from torch import Tensor
from torch.nn import functional

from taso_py.frontend.onnx.call import OnnxCall, Row
from taso_py.frontend.onnx.sums import axes_of

LINEAR = {1: "linear", 2: "bilinear", 3: "trilinear"}
"""PyTorch's names for linear interpolation, by the number of axes."""


def _reshape(call: OnnxCall) -> Tensor:
    x, wanted = call.tensor(), call.integers(1)
    if call.get("allowzero", 0):
        return x.reshape(wanted)
    return x.reshape([x.shape[axis] if size == 0 else size for axis, size in enumerate(wanted)])


def _flatten(call: OnnxCall) -> Tensor:
    x, axis = call.tensor(), int(call.get("axis", 1))
    sizes = x.shape[: axis if axis >= 0 else axis + x.ndim]
    rest = x.shape[len(sizes) :]
    return x.reshape(math.prod(sizes), math.prod(rest))


def _squeeze(call: OnnxCall) -> Tensor:
    x = call.tensor()
    if not call.has(1) and call.get("axes") is None:
        return x.squeeze()
    axes = {axis % x.ndim for axis in axes_of(call)}
    return x.reshape([size for axis, size in enumerate(x.shape) if axis not in axes])


def _unsqueeze(call: OnnxCall) -> Tensor:
    x, axes = call.tensor(), axes_of(call)
    for axis in sorted(axis % (x.ndim + len(axes)) for axis in axes):
        x = x.unsqueeze(axis)
    return x


def _transpose(call: OnnxCall) -> Tensor:
    x = call.tensor()
    return x.permute(tuple(call.get("perm", range(x.ndim)[::-1])))


def _expand(call: OnnxCall) -> Tensor:
    x = call.tensor()
    return x.expand(torch.broadcast_shapes(tuple(x.shape), call.integers(1)))


def _slice(call: OnnxCall) -> Tensor:
    x, starts, ends = call.tensor(), call.integers(1), call.integers(2)
    axes = call.integers(3) if call.has(3) else tuple(range(len(starts)))
    steps = call.integers(4) if call.has(4) else (1,) * len(starts)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        x = _sliced(x, axis % x.ndim, slice(start, end, step))
    return x


def _sliced(x: Tensor, axis: int, wanted: slice) -> Tensor:
    """Return a slice along an axis; a negative step is a positive one, flipped."""
    places = range(*wanted.indices(x.shape[axis]))
    if not places:
        return x.narrow(axis, 0, 0)
    low, high = min(places[0], places[-1]), max(places[0], places[-1])
    everything: list[slice] = [slice(None)] * x.ndim
    everything[axis] = slice(low, high + 1, abs(places.step))
    part = x[tuple(everything)]
    return part if places.step > 0 else part.flip(axis)


def _split(call: OnnxCall) -> Sequence[Tensor]:
    x, axis = call.tensor(), call.axis(0)
    size = -(-x.shape[axis] // call.results)
    return x.split(call.integers(1) if call.has(1) else size, axis)


def _pad(call: OnnxCall) -> Tensor:
    x, pads, mode = call.tensor(), call.integers(1), call.get("mode", "constant")
    axes = call.integers(3) if call.has(3) else tuple(range(x.ndim))
    pairs = [(0, 0)] * x.ndim
    for place, axis in enumerate(axes):
        pairs[axis % x.ndim] = pads[place], pads[place + len(axes)]
    if mode == "constant":
        return functional.pad(x, list(chain(*reversed(pairs))), value=call.number(2) if call.has(2) else 0.0)
    if mode not in ("reflect", "edge") or any(map(any, pairs[:2])) or x.ndim not in (3, 4, 5):
        raise call.refuse(f"in mode {mode} over these axes")
    names = {"reflect": "reflect", "edge": "replicate"}
    return functional.pad(x, list(chain(*reversed(pairs[2:]))), mode=names[mode])


def _gather(call: OnnxCall) -> Tensor:
    x, places, axis = call.tensor(), call.tensor(1), call.axis(0)
    known = call.known[1]
    if known is not None and places.ndim == 0:
        return x.select(axis, int(known[0]))
    return x[(*(slice(None),) * axis, places.long())]


def _gather_elements(call: OnnxCall) -> Tensor:
    x, places, axis = call.tensor(), call.tensor(1).long(), call.axis(0)
    return torch.gather(x, axis, torch.where(places < 0, places + x.shape[axis], places))


def _cast(call: OnnxCall) -> Tensor:
    return call.tensor().to(call.get("to"))


def _shape(call: OnnxCall) -> Tensor:
    return torch.tensor(list(call.tensor().shape)[call.get("start", 0) : call.get("end")], dtype=torch.int64)


def _constant(call: OnnxCall) -> Tensor:
    """Return the tensor, number or list of numbers that an attribute holds."""
    ((name, value),) = call.attributes.items()
    if isinstance(value, Tensor):
        return value
    if name not in ("value_float", "value_floats", "value_int", "value_ints"):
        raise call.refuse(f"with {name}")
    return torch.tensor(value, dtype=torch.float32 if "float" in name else torch.int64)


def _constant_of_shape(call: OnnxCall) -> Tensor:
    value = call.get("value", torch.zeros(1))
    return torch.full(call.integers(0), value.item(), dtype=value.dtype)


def _range(call: OnnxCall) -> Tensor:
    start, end, step = (call.number(index) for index in range(3))
    return torch.arange(start, end, step, dtype=call.tensor().dtype)


def _trilu(call: OnnxCall) -> Tensor:
    function = torch.triu if call.get("upper", 1) else torch.tril
    return function(call.tensor(), int(call.number(1)) if call.has(1) else 0)


def _depth_to_space(call: OnnxCall) -> Tensor:
    x, block = call.tensor(), int(call.get("blocksize"))
    if call.get("mode", "DCR") == "CRD":
        return functional.pixel_shuffle(x, block)
    n, c, h, w = x.shape
    parts = x.reshape(n, block, block, c // block**2, h, w).permute(0, 3, 4, 1, 5, 2)
    return parts.reshape(n, c // block**2, h * block, w * block)


def _space_to_depth(call: OnnxCall) -> Tensor:
    x, block = call.tensor(), int(call.get("blocksize"))
    n, c, h, w = x.shape
    parts = x.reshape(n, c, h // block, block, w // block, block).permute(0, 3, 5, 1, 2, 4)
    return parts.reshape(n, c * block**2, h // block, w // block)


def _resize(call: OnnxCall) -> Tensor:
    """Interpolate to a multiple of the size, or between sizes, where PyTorch places elements as ONNX does."""
    x = call.tensor()
    mode, place = call.get("mode", "nearest"), call.get("coordinate_transformation_mode", "half_pixel")
    sizes = list(call.integers(3)) if call.has(3) else [0] * x.ndim
    if not call.has(3):
        scales = call.elements(2)
        sizes = [math.floor(size * scale) for size, scale in zip(x.shape, scales, strict=True)]
        if any(size * scale != new for size, scale, new in zip(x.shape, scales, sizes, strict=True)):
            raise call.refuse("to a size that is not an exact multiple by the scale")
    axes = x.ndim - 2
    plain = tuple(sizes[:2]) == tuple(x.shape[:2]) and axes in LINEAR and call.get("axes") is None
    is_floor = place == "asymmetric" and call.get("nearest_mode", "round_prefer_floor") == "floor"
    if plain and mode == "nearest" and is_floor:
        return functional.interpolate(x, sizes[2:], mode="nearest")
    if plain and mode == "linear" and place in ("half_pixel", "pytorch_half_pixel", "align_corners"):
        corners = place == "align_corners"
        if not call.get("antialias", 0) and (place != "pytorch_half_pixel" or 1 not in sizes[2:]):
            return functional.interpolate(x, sizes[2:], mode=LINEAR[axes], align_corners=corners)
    raise call.refuse(f"in mode {mode} with {place}")


def _concat(call: OnnxCall) -> Tensor:
    return torch.cat(list(call.tensors()), call.axis(0))


def _tile(call: OnnxCall) -> Tensor:
    return call.tensor().repeat(call.integers(1))


ROWS: Mapping[str, Row] = {
    "Cast": _cast,
    "CastLike": lambda call: call.tensor(0).to(call.tensor(1).dtype),
    "Concat": _concat,
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "DepthToSpace": _depth_to_space,
    "Expand": _expand,
    "Flatten": _flatten,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "Pad": _pad,
    "Range": _range,
    "Reshape": _reshape,
    "Resize": _resize,
    "Shape": _shape,
    "Size": lambda call: torch.tensor(call.tensor().numel()),
    "Slice": _slice,
    "SpaceToDepth": _space_to_depth,
    "Split": _split,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "Transpose": _transpose,
    "Trilu": _trilu,
    "Unsqueeze": _unsqueeze,
}
"""Rows by the name of the ONNX operator."""

OF_SHAPES = frozenset({"Shape", "Size"})
"""Operators that read only the sizes of their operand."""
