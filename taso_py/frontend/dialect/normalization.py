"""Import of normalization, softmax and attention.

Invariant: inference forms only; statistics that a kernel returns beside its result may not be read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from taso_py.backend.tensors import TORCH_DTYPES
from taso_py.frontend.call import AtenCall, Result, apply
from taso_py.frontend.dialect.creation import filled
from taso_py.frontend.dialect.movement import repeated
from taso_py.ir.node import Value
from taso_py.ir.size import Dim
from taso_py.ir.types import DType
from taso_py.ops.elementwise import Cast
from taso_py.ops.movement import Contiguous, Reshape
from taso_py.ops.normalization import Attention, BatchNorm, GroupNorm, InstanceNorm, LayerNorm, RmsNorm, Softmax


def _batch_norm(call: AtenCall) -> Value:
    """Import normalization by stored statistics; an absent scale or shift is one that does nothing."""
    call.require(not call.arguments.get("training", False))
    x, mean, variance = (call.value(name) for name in ("input", "running_mean", "running_var"))
    affine = [
        # Where vectors are not dense, PyTorch's kernel rounds differently.
        apply(Contiguous(), filled(number, mean.type)) if call[name] is None else call.value(name)
        for name, number in (("weight", 1.0), ("bias", 0.0))
    ]
    return apply(BatchNorm(float(call["eps"])), x, *affine, mean, variance)


def _first_of(row: Callable[[AtenCall], Value]) -> Callable[[AtenCall], Result]:
    """Return a row for a kernel that also returns statistics: taken where only the first result is read."""

    def first(call: AtenCall) -> Result:
        call.require(call.read <= {0})
        return [row(call), *[None] * (len(call.types) - 1)]

    return first


def _group_norm(call: AtenCall) -> Value:
    groups = call["num_groups"] if "num_groups" in call.arguments else call["group"]
    call.require(type(groups) is int)
    return apply(GroupNorm(groups, float(call["eps"])), call.value("input"), *call.optional("weight", "bias"))


def _instance_norm(call: AtenCall) -> Value:
    call.require(bool(call["use_input_stats"]) and call["running_mean"] is None and call["running_var"] is None)
    return apply(InstanceNorm(float(call["eps"])), call.value("input"), *call.optional("weight", "bias"))


def _layer_norm(call: AtenCall) -> Value:
    op = LayerNorm(len(call["normalized_shape"]), float(call["eps"]))
    return apply(op, call.value("input"), *call.optional("weight", "bias"))


def _rms_norm(call: AtenCall) -> Value:
    x, eps = call.value("input"), call["eps"]
    # Without eps the kernel takes the one of its computation type, which is the tensor's own for these two.
    call.require(eps is not None or x.type.dtype in (DType.F32, DType.F64))
    if eps is None:
        eps = torch.finfo(TORCH_DTYPES[x.type.dtype]).eps
    return apply(RmsNorm(len(call["normalized_shape"]), float(eps)), x, *call.optional("weight"))


def _softmax(call: AtenCall) -> Result:
    x, dtype = call.value("self"), call.types[0].dtype
    call.require(dtype.is_floating)
    # With an element type given, the kernel converts first.
    return apply(Softmax(call.axis("dim", x)), x if x.type.dtype is dtype else apply(Cast(dtype), x))


def attention(call: AtenCall) -> Value:
    """Import attention with the mask that the call has; heads of keys and values that queries share are repeated."""
    q, k, v = (call.value(name) for name in ("query", "key", "value"))
    call.require(call["dropout_p"] == 0)
    if call["enable_gqa"]:
        # Kernels of GPUs share heads without copies, which this would make; that of the CPU makes them itself.
        call.require(q.type.rank > 2 and call.layouts[q].device.type == "cpu")
        k, v = (_with_heads(call, value, q.type.dims[-3]) for value in (k, v))
    scale = call["scale"]
    op = Attention(None if scale is None else float(scale), bool(call["is_causal"]))
    return apply(op, q, k, v, *call.optional("attn_mask"))


def _with_heads(call: AtenCall, value: Value, heads: Dim) -> Value:
    """Return keys or values with as many heads as queries have, each repeated for the heads that share it."""
    *batch, shared, rows, width = value.type.dims
    if shared == heads:
        return value
    call.require(isinstance(heads, int) and isinstance(shared, int) and heads % shared == 0)
    return apply(Reshape((*batch, heads, rows, width)), repeated(value, -3, heads // shared))


ROWS: Mapping[str, Callable[[AtenCall], Result]] = {
    "aten.batch_norm.default": _batch_norm,
    "aten._native_batch_norm_legit_no_training.default": _first_of(_batch_norm),
    "aten.group_norm.default": _group_norm,
    "aten.native_group_norm.default": _first_of(_group_norm),
    "aten.instance_norm.default": _instance_norm,
    "aten.layer_norm.default": _layer_norm,
    "aten.native_layer_norm.default": _first_of(_layer_norm),
    "aten.rms_norm.default": _rms_norm,
    "aten._fused_rms_norm.default": _first_of(_rms_norm),
    "aten.softmax.int": _softmax,
    "aten._softmax.default": _softmax,
}
"""One row per ATen overload."""
