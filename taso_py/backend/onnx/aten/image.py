"""Rows of image and signal operators: pooling, convolution, resizing, group normalisation, window padding."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from taso_py.backend.onnx.movement import padded, resize_scales, upsampled
from taso_py.backend.onnx.normalization import group_normalized, instance_normalized
from taso_py.backend.onnx.pooling import adaptive_average
from taso_py.backend.onnx.row import OpaqueCall, OpaqueRow
from taso_py.backend.onnx.writer import OnnxValue, Writer, as_number
from taso_py.backend.tensors import TORCH_DTYPES


def _each_axis(given: Sequence[int] | int, rank: int) -> list[int]:
    """Return one number per axis; PyTorch accepts a single one for all."""
    if isinstance(given, int):
        return [given] * rank
    numbers = [as_number(number) for number in given]
    return numbers * rank if len(numbers) == 1 else numbers


class _Windows:
    """The windows of a pooling call, with one number per axis for each property."""

    def __init__(self, call: OpaqueCall, rank: int) -> None:
        arguments = call.arguments
        self.kernel = _each_axis(arguments["kernel_size"], rank)
        self.stride = _each_axis(arguments["stride"], rank) if arguments["stride"] else self.kernel
        self.padding = _each_axis(arguments["padding"], rank)
        self.dilation = _each_axis(arguments.get("dilation", 1), rank)
        self.is_batched = call.operand().type.rank == rank + 2
        self.extents = call.operand().type.dims[-rank:]
        self.counts = call.types[0].dims[-rank:]

    def end_padding(self) -> list[int]:
        """Return the padding needed after the image, which in ceiling mode may exceed the requested one."""
        if self.extents_and_counts_are_known():
            reach = [
                (as_number(n) - 1) * s + d * (k - 1) + 1 - as_number(extent) - p
                for n, s, d, k, p, extent in zip(
                    self.counts, self.stride, self.dilation, self.kernel, self.padding, self.extents, strict=True
                )
            ]
            return [max(p, needed) for p, needed in zip(self.padding, reach, strict=True)]
        return self.padding

    def extents_and_counts_are_known(self) -> bool:
        """Return whether none of the sizes is open."""
        return all(isinstance(dim, int) for dim in (*self.extents, *self.counts))


def _pooled(w: Writer, call: OpaqueCall, windows: _Windows, name: str, **attributes: Any) -> OnnxValue:
    """Write a pooling operator; an operand without a batch axis gets one of size one for it."""
    if call.arguments["ceil_mode"] and not windows.extents_and_counts_are_known():
        raise call.refuse("rounds up how many windows fit into open sizes")
    x = call.operand().onnx
    x = x if windows.is_batched else w.op("Unsqueeze", x, w.integers([0]))
    pads = [*windows.padding, *windows.end_padding()]
    if name == "MaxPool" and any(pad >= k for pad, k in zip(pads, windows.kernel * 2, strict=True)):
        # With dilation, a window may reach farther than engines accept as padding.
        padding = windows.padding, windows.end_padding()
        x, pads = padded(w, x, call.types[0], *padding, -math.inf), [0] * len(pads)
    result = w.op(name, x, kernel_shape=windows.kernel, strides=windows.stride, pads=pads, **attributes)
    return result if windows.is_batched else w.op("Squeeze", result, w.integers([0]))


def _max_pool(rank: int) -> OpaqueRow:
    def row(w: Writer, call: OpaqueCall) -> Sequence[OnnxValue | None]:
        windows = _Windows(call, rank)
        result = _pooled(w, call, windows, "MaxPool", dilations=windows.dilation)
        return [result, *[None] * (len(call.types) - 1)]

    return row


def _avg_pool(rank: int) -> OpaqueRow:
    def row(w: Writer, call: OpaqueCall) -> OnnxValue:
        windows, includes = _Windows(call, rank), bool(call.arguments["count_include_pad"])
        override = call.arguments.get("divisor_override")
        if override is not None:
            mean = _pooled(w, call, windows, "AveragePool", count_include_pad=1)
            return w.op("Mul", mean, w.number(math.prod(windows.kernel) / override, call.types[0].dtype))
        mean = _pooled(w, call, windows, "AveragePool", count_include_pad=int(includes))
        if not includes or windows.end_padding() == windows.padding:
            return mean
        # PyTorch counts the padding that was asked for, not what rounding up adds behind it.
        share = _counted_share(windows)
        sizes = "x".join(map(str, (*windows.kernel, *windows.stride, *windows.padding, *share.shape)))
        dtype = call.types[0].dtype
        key = ("share", sizes, windows.extents, dtype)
        factor = w.tensor(key, f"share_{sizes}", lambda: share.to(TORCH_DTYPES[dtype]))
        return w.op("Mul", mean, factor)

    return row


def _counted_share(windows: _Windows) -> torch.Tensor:
    """Return, for each window, its size divided by the number of its elements in the image or the requested padding."""
    share = torch.ones((), dtype=torch.float64, device="cpu")
    parts = zip(windows.extents, windows.counts, windows.kernel, windows.stride, windows.padding, strict=True)
    for extent, count, k, s, p in parts:
        starts = torch.arange(as_number(count), device="cpu") * s - p
        ends = (starts + k).clamp(max=as_number(extent) + p)
        share = share.unsqueeze(-1) * (k / (ends - starts).double())
    return share


def _adaptive(w: Writer, call: OpaqueCall) -> OnnxValue:
    x, rank = call.operand(), len(call.arguments["output_size"])
    return adaptive_average(w, x.onnx, x.type.dims[-rank:], call.arguments["output_size"])


def _adaptive_max(rank: int) -> OpaqueRow:
    def row(w: Writer, call: OpaqueCall) -> Sequence[OnnxValue | None]:
        x, wanted = call.operand(), _each_axis(call.arguments["output_size"], rank)
        extents = [as_number(dim) for dim in x.type.dims[-rank:]]
        if any(extent % count for extent, count in zip(extents, wanted, strict=True)) or x.type.rank != rank + 2:
            raise call.refuse("takes maxima over windows of different sizes")
        kernel = [extent // count for extent, count in zip(extents, wanted, strict=True)]
        return [w.op("MaxPool", x.onnx, kernel_shape=kernel, strides=kernel), None]

    return row


def _convolution(rank: int | None = None, *, transposed: bool = False) -> OpaqueRow:
    def row(w: Writer, call: OpaqueCall) -> OnnxValue:
        arguments = call.arguments
        x, weight = call.operand("input"), call.operand("weight")
        axes = rank or weight.type.rank - 2
        bias = call.optional("bias")
        padding = arguments["padding"]
        if isinstance(padding, str):
            raise call.refuse(f"pads by the name {padding}")
        is_batched = x.type.rank == axes + 2
        given = x.onnx if is_batched else w.op("Unsqueeze", x.onnx, w.integers([0]))
        pads = _each_axis(padding, axes)
        backwards = transposed or bool(arguments.get("transposed"))
        result = w.op(
            "ConvTranspose" if backwards else "Conv",
            given,
            weight.onnx,
            bias.onnx if bias is not None else None,
            strides=_each_axis(arguments["stride"], axes),
            pads=[*pads, *pads],
            dilations=_each_axis(arguments["dilation"], axes),
            group=as_number(arguments["groups"]),
            output_padding=_each_axis(arguments["output_padding"], axes) if backwards else None,
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


def _nearest(w: Writer, call: OpaqueCall) -> OnnxValue:
    """Write nearest-neighbour resizing with the indices that PyTorch uses."""
    x = call.operand("input" if "input" in call.arguments else "self")
    rank = x.type.rank - 2
    before = [as_number(dim) for dim in x.type.dims[-rank:]]
    after = [as_number(dim) for dim in call.types[0].dims[-rank:]]
    factors = _factors(call, rank)
    places = [_nearest_places(b, a, f) for b, a, f in zip(before, after, factors, strict=True)]
    plain = [torch.arange(a, device="cpu") * b // a for b, a in zip(before, after, strict=True)]
    if all(map(torch.equal, places, plain)) and all(a % b == 0 for b, a in zip(before, after, strict=True)):
        return upsampled(w, x.onnx, [a / b for b, a in zip(before, after, strict=True)])
    result = x.onnx
    for axis, index in enumerate(places, start=2):
        result = w.op("Gather", result, w.integers(index.tolist()), axis=axis)
    return result


def _nearest_places(before: int, after: int, factor: float | None) -> torch.Tensor:
    line = torch.arange(before, dtype=torch.float32, device="cpu").reshape(1, 1, -1)
    return torch.ops.aten.upsample_nearest1d.default(line, [after], factor).reshape(-1).long()


def _pixel_shuffle(w: Writer, call: OpaqueCall) -> OnnxValue:
    x = call.operand()
    if x.type.rank != 4:
        raise call.refuse("shuffles pixels of an image without a batch")
    return w.op("DepthToSpace", x.onnx, blocksize=call.arguments["upscale_factor"], mode="CRD")


def _pixel_unshuffle(w: Writer, call: OpaqueCall) -> OnnxValue:
    x, factor = call.operand(), call.arguments["downscale_factor"]
    if x.type.rank != 4:
        raise call.refuse("shuffles pixels of an image without a batch")
    _, channels, height, width = (as_number(dim) if axis else 0 for axis, dim in enumerate(x.type.dims))
    apart = w.op("Reshape", x.onnx, w.integers([0, channels, height // factor, factor, width // factor, factor]))
    moved = w.op("Transpose", apart, perm=[0, 1, 3, 5, 2, 4])
    return w.op("Reshape", moved, w.integers([0, channels * factor**2, height // factor, width // factor]))


def _grid_sample(w: Writer, call: OpaqueCall) -> OnnxValue:
    arguments = call.arguments
    return w.op(
        "GridSample",
        call.operand("input").onnx,
        call.operand("grid").onnx,
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
    **_forms("upsample_nearest", _nearest, "1d", "2d", "3d"),
    **_forms("upsample_linear", _resized("linear"), "1d"),
    **_forms("upsample_bilinear", _resized("linear"), "2d"),
    **_forms("upsample_trilinear", _resized("linear"), "3d"),
    **_forms("upsample_bicubic", _resized("cubic"), "2d"),
    "aten.pixel_shuffle.default": _pixel_shuffle,
    "aten.pixel_unshuffle.default": _pixel_unshuffle,
    "aten.grid_sampler.default": _grid_sample,
    "aten.grid_sampler_2d.default": _grid_sample,
}
"""The rows, by the name of the overload."""
