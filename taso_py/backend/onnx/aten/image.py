"""Rows of image and signal operators: pooling, convolution, resizing, group normalisation, window padding."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from taso_py.backend.onnx.movement import reshaped, resize_scales, upsampled
from taso_py.backend.onnx.normalization import group_normalized, instance_normalized
from taso_py.backend.onnx.pooling import (
    Windows,
    adaptive_average,
    average,
    extreme,
    greatest,
    of_rectangles,
    pooled_mean,
)
from taso_py.backend.onnx.row import OpaqueCall, OpaqueRow
from taso_py.backend.onnx.writer import OnnxValue, Writer, as_number
from taso_py.backend.tensors import TORCH_DTYPES
from taso_py.ir.types import TensorType


def each_axis(given: Sequence[int] | int, rank: int) -> list[int]:
    """Return one number per axis; PyTorch accepts a single one for all."""
    if isinstance(given, int):
        return [given] * rank
    numbers = [as_number(number) for number in given]
    return numbers * rank if len(numbers) == 1 else numbers


def _windows(call: OpaqueCall, rank: int) -> Windows:
    """Return the windows of a pooling call."""
    arguments = call.arguments
    kernel = each_axis(arguments["kernel_size"], rank)
    return Windows(
        kernel,
        each_axis(arguments["stride"], rank) if arguments["stride"] else kernel,
        each_axis(arguments["padding"], rank),
        each_axis(arguments.get("dilation", 1), rank),
        extents=call.operand().type.dims[-rank:],
        counts=call.types[0].dims[-rank:],
    )


def _pooled(w: Writer, call: OpaqueCall, windows: Windows, pooling: Callable[[OnnxValue], OnnxValue]) -> OnnxValue:
    """Write a pooling operator; an operand without a batch axis gets one of size one for it."""
    x = call.operand()
    if call.arguments["ceil_mode"] and windows.is_open:
        raise call.refuse("rounds up how many windows fit into open sizes")
    if x.type.rank == len(windows.kernel) + 2:
        return pooling(x.onnx)
    return w.op("Squeeze", pooling(w.op("Unsqueeze", x.onnx, w.integers([0]))), w.integers([0]))


def _max_pool(rank: int) -> OpaqueRow:
    def row(w: Writer, call: OpaqueCall) -> Sequence[OnnxValue | None]:
        windows = _windows(call, rank)
        result = _pooled(w, call, windows, lambda x: greatest(w, x, call.types[0], windows))
        return [result, *[None] * (len(call.types) - 1)]

    return row


def _avg_pool(rank: int) -> OpaqueRow:
    def row(w: Writer, call: OpaqueCall) -> OnnxValue:
        windows, includes = _windows(call, rank), bool(call.arguments["count_include_pad"])
        dtype, override = call.types[0].dtype, call.arguments.get("divisor_override")
        if override is not None:
            mean = _pooled(w, call, windows, lambda x: pooled_mean(w, x, windows, count_include_pad=1))
            return w.op("Mul", mean, w.number(math.prod(windows.kernel) / override, dtype))
        return _pooled(w, call, windows, lambda x: average(w, x, dtype, windows, includes=includes))

    return row


def _adaptive(w: Writer, call: OpaqueCall) -> OnnxValue:
    x, rank = call.operand(), len(call.arguments["output_size"])
    return adaptive_average(w, x.onnx, x.type.dims[-rank:], call.arguments["output_size"])


def _adaptive_max(rank: int) -> OpaqueRow:
    def row(w: Writer, call: OpaqueCall) -> Sequence[OnnxValue | None]:
        x, wanted = call.operand(), each_axis(call.arguments["output_size"], rank)
        extents = [as_number(dim) for dim in x.type.dims[-rank:]]
        if any(extent % count for extent, count in zip(extents, wanted, strict=True)) or x.type.rank != rank + 2:
            greatest_of = partial(extreme, w, "ReduceMax", dtype=x.type.dtype, keep=1)
            return [of_rectangles(w, x.onnx, extents, wanted, lambda part, axis: greatest_of(part, axes=[axis])), None]
        kernel = [extent // count for extent, count in zip(extents, wanted, strict=True)]
        return [w.op("MaxPool", x.onnx, kernel_shape=kernel, strides=kernel), None]

    return row


def _padding(call: OpaqueCall, axes: int, kernel: Sequence[int]) -> list[int]:
    """Return the padding before and behind an image; of an odd one by name, the greater part is behind."""
    padding = call.arguments["padding"]
    if not isinstance(padding, str):
        return each_axis(padding, axes) * 2
    if padding == "valid":
        return [0] * (2 * axes)
    sums = [d * (k - 1) for d, k in zip(each_axis(call.arguments["dilation"], axes), kernel, strict=True)]
    return [*(total // 2 for total in sums), *(total - total // 2 for total in sums)]


def _convolution(rank: int | None = None, *, transposed: bool = False) -> OpaqueRow:
    def row(w: Writer, call: OpaqueCall) -> OnnxValue:
        arguments = call.arguments
        x, weight = call.operand("input"), call.operand("weight")
        axes = rank or weight.type.rank - 2
        bias = call.optional("bias")
        pads = _padding(call, axes, [as_number(dim) for dim in weight.type.dims[2:]])
        is_batched = x.type.rank == axes + 2
        given = x.onnx if is_batched else w.op("Unsqueeze", x.onnx, w.integers([0]))
        backwards = transposed or bool(arguments.get("transposed"))
        result = w.op(
            "ConvTranspose" if backwards else "Conv",
            given,
            weight.onnx,
            bias.onnx if bias is not None else None,
            strides=each_axis(arguments["stride"], axes),
            pads=pads,
            dilations=each_axis(arguments["dilation"], axes),
            group=as_number(arguments["groups"]),
            output_padding=each_axis(arguments["output_padding"], axes) if backwards else None,
        )
        return result if is_batched else w.op("Squeeze", result, w.integers([0]))

    return row


def _group_norm(w: Writer, call: OpaqueCall) -> Sequence[OnnxValue | None]:
    arguments = call.arguments
    groups = as_number(arguments["num_groups"] if "num_groups" in arguments else arguments["group"])
    result = group_normalized(w, _affine(call), call.types[0], groups, float(arguments["eps"]))
    return [result, *[None] * (len(call.types) - 1)]


def _affine(call: OpaqueCall) -> list[OnnxValue | None]:
    """Return what a call normalizes, its weight and its bias."""
    operands = [call.optional(name) for name in ("input", "weight", "bias")]
    return [None if operand is None else operand.onnx for operand in operands]


def _instance_norm(w: Writer, call: OpaqueCall) -> OnnxValue:
    if not call.arguments["use_input_stats"]:
        raise call.refuse("normalises by running statistics")
    return instance_normalized(w, _affine(call), call.types[0], float(call.arguments["eps"]))


def _resized(mode: str) -> OpaqueRow:
    """Return the row of an interpolation; ``mode`` is ONNX's name."""

    def row(w: Writer, call: OpaqueCall) -> OnnxValue:
        x, corners = call.operand("input" if "input" in call.arguments else "self"), call.arguments["align_corners"]
        rank = x.type.rank - 2
        factors = _factors(call, rank)
        before, after = x.type.dims[-rank:], call.types[0].dims[-rank:]
        scaled = not corners and all(factor is not None for factor in factors)
        sizes = None if scaled else w.dims([*x.type.dims[:2], *after])
        scales = resize_scales(w, factors) if scaled else None
        if scaled and any(int(as_number(b) * f) != a for b, a, f in zip(before, after, factors, strict=True)):
            raise call.refuse("resizes by factors that do not give the sizes")
        places = "align_corners" if corners else "half_pixel"
        attributes = {"mode": mode, "coordinate_transformation_mode": places}
        attributes |= {"cubic_coeff_a": -0.75} if mode == "cubic" else {}
        return w.op("Resize", x.onnx, None, scales, sizes, **attributes)

    return row


def _factors(call: OpaqueCall, rank: int) -> list[Any]:
    """Return the scale factors of a call, None where sizes were given."""
    if "scale_factors" in call.arguments:
        return list(call.arguments["scale_factors"] or [None] * rank)
    names = ["scales_d", "scales_h", "scales_w"][-rank:] if rank > 1 else ["scales"]
    return [call.arguments[name] for name in names]


def _nearest(kernel: str) -> OpaqueRow:
    """Return the row of nearest-neighbour resizing with the indices that a kernel of PyTorch's for one axis uses."""

    def places_on(before: int, after: int, factor: float | None) -> torch.Tensor:
        line = torch.arange(before, dtype=torch.float32, device="cpu").reshape(1, 1, -1)
        found: torch.Tensor = getattr(torch.ops.aten, kernel).default(line, [after], factor)
        return found.reshape(-1).long()

    def row(w: Writer, call: OpaqueCall) -> OnnxValue:
        x = call.operand("input" if "input" in call.arguments else "self")
        rank = x.type.rank - 2
        before = [as_number(dim) for dim in x.type.dims[-rank:]]
        after = [as_number(dim) for dim in call.types[0].dims[-rank:]]
        places = [places_on(b, a, f) for b, a, f in zip(before, after, _factors(call, rank), strict=True)]
        plain = [torch.arange(a, device="cpu") * b // a for b, a in zip(before, after, strict=True)]
        if all(map(torch.equal, places, plain)) and all(a % b == 0 for b, a in zip(before, after, strict=True)):
            return upsampled(w, x.onnx, [a / b for b, a in zip(before, after, strict=True)])
        result = x.onnx
        for axis, index in enumerate(places, start=2):
            result = w.op("Gather", result, w.integers(index.tolist()), axis=axis)
        return result

    return row


def _in_a_batch(row: Callable[[Writer, OnnxValue, OpaqueCall], OnnxValue]) -> OpaqueRow:
    """Return the row of an operator on images, given one for a batch of them: other axes in front become one."""

    def written(w: Writer, call: OpaqueCall) -> OnnxValue:
        x, (type_,) = call.operand(), call.types
        if x.type.rank == 4:
            return row(w, x.onnx, call)
        count = math.prod(map(as_number, x.type.dims[:-3]))
        found = row(w, reshaped(w, x.onnx, x.type, (count, *x.type.dims[-3:])), call)
        return reshaped(w, found, TensorType(type_.dtype, (count, *type_.dims[-3:])), type_.dims)

    return written


def _pixel_shuffle(w: Writer, x: OnnxValue, call: OpaqueCall) -> OnnxValue:
    return w.op("DepthToSpace", x, blocksize=call.arguments["upscale_factor"], mode="CRD")


def _pixel_unshuffle(w: Writer, x: OnnxValue, call: OpaqueCall) -> OnnxValue:
    factor = call.arguments["downscale_factor"]
    channels, height, width = (as_number(dim) for dim in call.operand().type.dims[-3:])
    apart = w.op("Reshape", x, w.integers([0, channels, height // factor, factor, width // factor, factor]))
    moved = w.op("Transpose", apart, perm=[0, 1, 3, 5, 2, 4])
    return w.op("Reshape", moved, w.integers([0, channels * factor**2, height // factor, width // factor]))


def _affine_grid(w: Writer, call: OpaqueCall) -> OnnxValue:
    """Write the places to which maps take those of an image's elements."""
    theta, corners = call.operand("theta"), bool(call.arguments["align_corners"])
    extents = [as_number(dim) for dim in call.arguments["size"][2:]]
    rank, count = len(extents), math.prod(extents)

    def make() -> torch.Tensor:
        same = torch.eye(rank, rank + 1, dtype=TORCH_DTYPES[theta.type.dtype], device="cpu").unsqueeze(0)
        places = torch.ops.aten.affine_grid_generator.default(same, [1, 1, *extents], corners).reshape(count, rank)
        return torch.cat([places, torch.ones_like(places[:, :1])], 1)

    key = ("grid", *extents, corners, theta.type.dtype)
    places = w.tensor(key, "_".join(map(str, key)), make)
    moved = w.op("MatMul", places, w.op("Transpose", theta.onnx, perm=[0, 2, 1]))
    batch = theta.type.dims[0]
    return reshaped(w, moved, TensorType(theta.type.dtype, (batch, count, rank)), (batch, *extents, rank))


def _grid_sample(w: Writer, call: OpaqueCall) -> OnnxValue:
    arguments, grid = call.arguments, call.operand("grid")
    places = grid.onnx
    if arguments["padding_mode"] == 1:
        # All places beyond show the border; engines would convert those that are far away to integers.
        places = w.op("Clip", places, *(w.number(limit, grid.type.dtype) for limit in (-2.0, 2.0)))
    return w.op(
        "GridSample",
        call.operand("input").onnx,
        places,
        mode=("linear", "nearest", "cubic")[arguments["interpolation_mode"]],
        padding_mode=("zeros", "border", "reflection")[arguments["padding_mode"]],
        align_corners=int(arguments["align_corners"]),
    )


def _forms(name: str, row: OpaqueRow, *ranks: str) -> Mapping[str, OpaqueRow]:
    """Return a row for several ranks of an operator, with sizes given and with factors."""
    return {f"aten.{name}{rank}.{form}": row for rank in ranks for form in ("default", "vec")}


ROWS: Mapping[str, OpaqueRow] = {
    **{f"aten.max_pool{rank}d.default": _max_pool(rank) for rank in (1, 2, 3)},
    "aten.max_pool2d_with_indices.default": _max_pool(2),
    "aten.max_pool3d_with_indices.default": _max_pool(3),
    **{f"aten.avg_pool{rank}d.default": _avg_pool(rank) for rank in (1, 2, 3)},
    **{f"aten.adaptive_avg_pool{rank}d.default": _adaptive for rank in (1, 2, 3)},
    **{f"aten._adaptive_avg_pool{rank}d.default": _adaptive for rank in (2, 3)},
    **{f"aten.adaptive_max_pool{rank}d.default": _adaptive_max(rank) for rank in (1, 2, 3)},
    **{f"aten.conv{rank}d.default": _convolution(rank) for rank in (1, 2, 3)},
    "aten.convolution.default": _convolution(),
    "aten.conv_transpose1d.default": _convolution(1, transposed=True),
    "aten.conv_transpose2d.input": _convolution(2, transposed=True),
    "aten.conv_transpose3d.input": _convolution(3, transposed=True),
    "aten.group_norm.default": _group_norm,
    "aten.native_group_norm.default": _group_norm,
    "aten.instance_norm.default": _instance_norm,
    **{f"aten.conv{rank}d.padding": _convolution(rank) for rank in (1, 2, 3)},
    **_forms("upsample_nearest", _nearest("upsample_nearest1d"), "1d", "2d", "3d"),
    **_forms("_upsample_nearest_exact", _nearest("_upsample_nearest_exact1d"), "1d", "2d", "3d"),
    **_forms("upsample_linear", _resized("linear"), "1d"),
    **_forms("upsample_bilinear", _resized("linear"), "2d"),
    **_forms("upsample_trilinear", _resized("linear"), "3d"),
    **_forms("upsample_bicubic", _resized("cubic"), "2d"),
    "aten.pixel_shuffle.default": _in_a_batch(_pixel_shuffle),
    "aten.pixel_unshuffle.default": _in_a_batch(_pixel_unshuffle),
    "aten.affine_grid_generator.default": _affine_grid,
    "aten.grid_sampler.default": _grid_sample,
    "aten.grid_sampler_2d.default": _grid_sample,
}
"""The rows, by the name of the overload."""
