"""Rows of ONNX operators that reduce or compare along axes: matrix products, normalization, reductions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from taso_py.frontend.onnx.call import OnnxCall, Row


def _gemm(call: OnnxCall) -> Tensor:
    a, b, c = call.tensor(0), call.tensor(1), call.optional(2)
    alpha, beta = call.get("alpha", 1.0), call.get("beta", 1.0)
    a = a.t() if call.get("transA", 0) else a
    if call.get("transB", 0) and alpha == beta == 1 and (c is None or c.shape == b.shape[:1]):
        return functional.linear(a, b, c)
    product = torch.matmul(a, b.t() if call.get("transB", 0) else b)
    product = product if alpha == 1 else product * alpha
    return product if c is None else product + (c if beta == 1 else c * beta)


def _einsum(call: OnnxCall) -> Tensor:
    return torch.einsum(call.get("equation"), *call.tensors())


def _softmax(function: Callable[..., Tensor]) -> Row:
    return lambda call: function(call.tensor(), dim=call.axis(-1))


def _batch_normalization(call: OnnxCall) -> Tensor:
    if call.get("training_mode", 0) or call.results > 1:
        raise call.refuse("in training mode")
    scale, bias, mean, variance = (call.tensor(index) for index in range(1, 5))
    return functional.batch_norm(call.tensor(), mean, variance, scale, bias, eps=call.get("epsilon", 1e-5))


def _affine(call: OnnxCall, normal: Callable[..., Tensor], eps: float) -> Tensor:
    """Normalize over the last axes; scale and bias are passed to the kernel if they have the shape of these axes."""
    x = call.tensor()
    shape = tuple(x.shape[call.axis(-1) :])
    scale, bias = call.optional(1), call.optional(2)
    if all(one is None or tuple(one.shape) == shape for one in (scale, bias)):
        return normal(x, shape, scale, bias, eps)
    found = normal(x, shape, None, None, eps)
    found = found if scale is None else found * scale
    return found if bias is None else found + bias


def _layer_normalization(call: OnnxCall) -> Tensor:
    if call.results > 1:
        raise call.refuse("with mean and deviation as results")
    return _affine(call, functional.layer_norm, call.get("epsilon", 1e-5))


def _rms_normalization(call: OnnxCall) -> Tensor:
    def normal(x: Tensor, shape: Any, scale: Tensor | None, _bias: Tensor | None, eps: float) -> Tensor:
        return functional.rms_norm(x, shape, scale, eps)

    return _affine(call, normal, call.get("epsilon", 1e-5))


def _instance_normalization(call: OnnxCall) -> Tensor:
    return functional.instance_norm(
        call.tensor(), weight=call.tensor(1), bias=call.tensor(2), eps=call.get("epsilon", 1e-5)
    )


def _group_normalization(call: OnnxCall) -> Tensor:
    scale, bias, groups, x = call.tensor(1), call.tensor(2), int(call.get("num_groups")), call.tensor()
    if call.opset < 21:
        scale, bias = (one.repeat_interleave(x.shape[1] // groups) for one in (scale, bias))
    return functional.group_norm(x, groups, scale, bias, eps=call.get("epsilon", 1e-5))


def axes_of(call: OnnxCall, index: int = 1) -> tuple[int, ...]:
    """Return the axes to reduce: an operand in newer versions, an attribute in older ones; all if none are stated."""
    stated = call.integers(index) if call.has(index) else tuple(call.get("axes", ()))
    if not stated and call.get("noop_with_empty_axes", 0):
        return ()
    return stated or tuple(range(call.tensor().ndim))


def _reduce(function: Callable[[Tensor, tuple[int, ...], bool], Tensor]) -> Row:
    def row(call: OnnxCall) -> Tensor:
        axes = axes_of(call)
        if not axes and call.tensor().ndim:
            raise call.refuse("without axes")
        return function(call.tensor(), axes, bool(call.get("keepdims", 1)))

    return row


def _product(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    for axis in sorted((axis % x.ndim for axis in axes), reverse=True):
        x = x.prod(axis, keepdim=keep, dtype=x.dtype)
    return x


def _extreme_place(function: Callable[..., Tensor]) -> Row:
    def row(call: OnnxCall) -> Tensor:
        if call.get("select_last_index", 0):
            raise call.refuse("with select_last_index")
        return function(call.tensor(), dim=call.axis(0), keepdim=bool(call.get("keepdims", 1)))

    return row


def _cumulative_sum(call: OnnxCall) -> Tensor:
    if call.get("exclusive", 0) or call.get("reverse", 0):
        raise call.refuse("that is exclusive or runs backwards")
    x = call.tensor()
    return torch.cumsum(x, int(call.number(1)), dtype=x.dtype)


def _top_k(call: OnnxCall) -> Sequence[Tensor]:
    (count,) = call.integers(1)
    return torch.topk(call.tensor(), count, dim=call.axis(-1), largest=bool(call.get("largest", 1)))


ROWS: Mapping[str, Row] = {
    "MatMul": lambda call: torch.matmul(call.tensor(0), call.tensor(1)),
    "Gemm": _gemm,
    "Einsum": _einsum,
    "Softmax": _softmax(torch.softmax),
    "LogSoftmax": _softmax(torch.log_softmax),
    "BatchNormalization": _batch_normalization,
    "LayerNormalization": _layer_normalization,
    "RMSNormalization": _rms_normalization,
    "InstanceNormalization": _instance_normalization,
    "GroupNormalization": _group_normalization,
    "ReduceMean": _reduce(lambda x, axes, keep: x.mean(axes, keepdim=keep)),
    "ReduceSum": _reduce(lambda x, axes, keep: x.sum(axes, keepdim=keep, dtype=x.dtype)),
    "ReduceMax": _reduce(lambda x, axes, keep: x.amax(axes, keepdim=keep)),
    "ReduceMin": _reduce(lambda x, axes, keep: x.amin(axes, keepdim=keep)),
    "ReduceProd": _reduce(_product),
    "ReduceL1": _reduce(lambda x, axes, keep: x.abs().sum(axes, keepdim=keep)),
    "ReduceL2": _reduce(lambda x, axes, keep: (x * x).sum(axes, keepdim=keep).sqrt()),
    "ReduceSumSquare": _reduce(lambda x, axes, keep: (x * x).sum(axes, keepdim=keep)),
    "ReduceLogSumExp": _reduce(lambda x, axes, keep: torch.logsumexp(x, axes, keepdim=keep)),
    "ArgMax": _extreme_place(torch.argmax),
    "ArgMin": _extreme_place(torch.argmin),
    "CumSum": _cumulative_sum,
    "TopK": _top_k,
}
"""Rows by the name of the ONNX operator."""
