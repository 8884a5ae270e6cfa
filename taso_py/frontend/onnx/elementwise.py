"""Rows of elementwise ONNX operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from taso_py.frontend.onnx.call import OnnxCall, Row

SIXTH = torch.tensor(1 / 6).item()
"""One sixth in single precision, as ONNX models write it."""


def _unary(function: Callable[[Tensor], Tensor]) -> Row:
    return lambda call: function(call.tensor())


def _binary(function: Callable[[Any, Any], Any]) -> Row:
    return lambda call: function(*call.pair())


def _of_tensors(function: Callable[[Tensor, Tensor], Tensor]) -> Row:
    return lambda call: function(call.tensor(0), call.tensor(1))


def _fold(function: Callable[[Tensor, Tensor], Tensor]) -> Row:
    return lambda call: reduce(function, call.tensors())


def _div(call: OnnxCall) -> Tensor:
    """Divide; integers round towards zero."""
    first, second = call.pair()
    if call.tensor().is_floating_point():
        return first / second
    return torch.div(call.tensor(0), call.tensor(1), rounding_mode="trunc")


def _pow(call: OnnxCall) -> Tensor:
    base, exponent = call.pair()
    return torch.pow(base, exponent).to(call.tensor().dtype)


def _mod(call: OnnxCall) -> Tensor:
    function = torch.fmod if call.get("fmod", 0) else torch.remainder
    return function(call.tensor(0), call.tensor(1))


def _mean(call: OnnxCall) -> Tensor:
    return reduce(torch.add, call.tensors()) / len(call.inputs)


def _clip(call: OnnxCall) -> Tensor:
    low, high = (call.scalar(index) if call.has(index) else None for index in (1, 2))
    x = call.tensor()
    if low is None and high is None:
        return x
    if not isinstance(low, Tensor) and not isinstance(high, Tensor):
        return torch.clamp(x, low, high)
    lifted = x if low is None else torch.maximum(x, call.tensor(1))
    return lifted if high is None else torch.minimum(lifted, call.tensor(2))


def _hard_sigmoid(call: OnnxCall) -> Tensor:
    alpha, beta = call.get("alpha", 0.2), call.get("beta", 0.5)
    if alpha == SIXTH and beta == 0.5:
        return functional.hardsigmoid(call.tensor())
    return torch.clamp(alpha * call.tensor() + beta, 0, 1)


def _gelu(call: OnnxCall) -> Tensor:
    return functional.gelu(call.tensor(), approximate=call.get("approximate", "none"))


def _prelu(call: OnnxCall) -> Tensor:
    x, slope = call.tensor(0), call.tensor(1)
    return torch.where(x < 0, slope * x, x)


def _swish(call: OnnxCall) -> Tensor:
    alpha = call.get("alpha", 1.0)
    return functional.silu(call.tensor()) if alpha == 1 else call.tensor() * torch.sigmoid(alpha * call.tensor())


def _where(call: OnnxCall) -> Tensor:
    return torch.where(call.tensor(0), call.tensor(1), call.tensor(2))


def _dropout(call: OnnxCall) -> Tensor:
    """Return the operand: inference drops nothing."""
    if call.has(2) and any(call.elements(2)):
        raise call.refuse("in training mode")
    if call.results > 1:
        raise call.refuse("with a mask")
    return call.tensor()


ROWS: Mapping[str, Row] = {
    "Abs": _unary(torch.abs),
    "Ceil": _unary(torch.ceil),
    "Cos": _unary(torch.cos),
    "Erf": _unary(torch.erf),
    "Exp": _unary(torch.exp),
    "Floor": _unary(torch.floor),
    "HardSwish": _unary(functional.hardswish),
    "Identity": _unary(lambda x: x),
    "IsNaN": _unary(torch.isnan),
    "Log": _unary(torch.log),
    "Mish": _unary(functional.mish),
    "Neg": _unary(torch.neg),
    "Not": _unary(torch.logical_not),
    "Reciprocal": _unary(torch.reciprocal),
    "Relu": _unary(torch.relu),
    "Round": _unary(torch.round),
    "Sigmoid": _unary(torch.sigmoid),
    "Sign": _unary(torch.sign),
    "Sin": _unary(torch.sin),
    "Softplus": _unary(functional.softplus),
    "Softsign": _unary(functional.softsign),
    "Sqrt": _unary(torch.sqrt),
    "Tanh": _unary(torch.tanh),
    "Add": _binary(lambda a, b: a + b),
    "Sub": _binary(lambda a, b: a - b),
    "Mul": _binary(lambda a, b: a * b),
    "Div": _div,
    "Pow": _pow,
    "Mod": _mod,
    "Equal": _of_tensors(torch.eq),
    "Greater": _of_tensors(torch.gt),
    "GreaterOrEqual": _of_tensors(torch.ge),
    "Less": _of_tensors(torch.lt),
    "LessOrEqual": _of_tensors(torch.le),
    "And": _of_tensors(torch.logical_and),
    "Or": _of_tensors(torch.logical_or),
    "Xor": _of_tensors(torch.logical_xor),
    "Max": _fold(torch.maximum),
    "Min": _fold(torch.minimum),
    "Sum": _fold(torch.add),
    "Mean": _mean,
    "Clip": _clip,
    "Dropout": _dropout,
    "Elu": lambda call: functional.elu(call.tensor(), call.get("alpha", 1.0)),
    "Gelu": _gelu,
    "HardSigmoid": _hard_sigmoid,
    "LeakyRelu": lambda call: functional.leaky_relu(call.tensor(), call.get("alpha", 0.01)),
    "PRelu": _prelu,
    "Swish": _swish,
    "Where": _where,
}
"""Rows by the name of the ONNX operator."""
