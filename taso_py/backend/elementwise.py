"""Lowering of elementwise operators to plain ATen calls, numbers among the operands taken as they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch

from taso_py.backend.tensors import TORCH_DTYPES
from taso_py.ir.node import Node
from taso_py.ir.operator import Operator
from taso_py.ir.types import DType
from taso_py.ops import choice
from taso_py.ops.elementwise import (
    Abs,
    Add,
    Addcmul,
    Cast,
    Celu,
    Cos,
    Div,
    Elu,
    Erf,
    Exp,
    Gelu,
    Hardsigmoid,
    Hardswish,
    Hardtanh,
    LeakyRelu,
    Log,
    Log1p,
    Maximum,
    Minimum,
    Mish,
    Mul,
    Pow,
    Relu,
    Rsqrt,
    Sigmoid,
    Silu,
    Sin,
    Softplus,
    Sqrt,
    Sub,
    Tanh,
)

aten = torch.ops.aten

Caller: TypeAlias = Callable[..., Any]
"""Called as ``call(overload, *arguments, **keywords)``; returns the result, a node or a tensor. Sizes among the
arguments may be open; the caller resolves them."""

Lowering: TypeAlias = Callable[[Caller, Any, Node, Sequence[Any]], Any]
"""Maps the caller, the operator, its node and its operands to the result, a tuple if the operator has several."""


def _is_number(operand: Any) -> bool:
    return isinstance(operand, int | float)


def _commutative(overload: Any) -> Lowering:
    def lowering(call: Caller, op: Any, node: Node, operands: Sequence[Any]) -> Any:
        left, right = reversed(operands) if _is_number(operands[0]) else operands
        return call(overload, left, right)

    return lowering


def _mul(call: Caller, op: Mul, node: Node, operands: Sequence[Any]) -> Any:
    left, right = reversed(operands) if _is_number(operands[0]) else operands
    if _is_number(right) and right == -1 and node.types[0].dtype.is_floating:
        return call(aten.neg.default, left)
    return call(aten.mul.Tensor, left, right)


def _sub(call: Caller, op: Sub, node: Node, operands: Sequence[Any]) -> Any:
    left, right = operands
    if _is_number(left):
        return call(aten.rsub.Scalar, right, left)
    return call(aten.sub.Tensor, left, right)


def _div(call: Caller, op: Div, node: Node, operands: Sequence[Any]) -> Any:
    left, right = operands
    if not _is_number(left):
        return call(aten.div.Tensor, left, right)
    reciprocal = call(aten.reciprocal.default, right)
    return reciprocal if left == 1 else call(aten.mul.Tensor, reciprocal, left)


def _addcmul(call: Caller, op: Addcmul, node: Node, operands: Sequence[Any]) -> Any:
    summand, *factors = operands
    numbers = [factor for factor in factors if _is_number(factor)]
    if _is_number(summand):
        left, right = reversed(factors) if _is_number(factors[0]) else factors
        return call(aten.add.Tensor, call(aten.mul.Tensor, left, right), summand)
    if numbers:
        (other,) = (factor for factor in factors if not _is_number(factor))
        return call(aten.add.Tensor, summand, other, alpha=numbers[0])
    return call(aten.addcmul.default, *operands)


def _selecting(overload: Any, clamp: Any) -> Lowering:
    """Return the lowering of a maximum or minimum; ``clamp`` is the overload for a number."""

    def lowering(call: Caller, op: Any, node: Node, operands: Sequence[Any]) -> Any:
        left, right = reversed(operands) if _is_number(operands[0]) else operands
        return call(clamp if _is_number(right) else overload, left, right)

    return lowering


def _where(call: Caller, op: choice.Where, node: Node, operands: Sequence[Any]) -> Any:
    places = [place for place, operand in enumerate(operands) if _is_number(operand)]
    overload = {1: aten.where.ScalarSelf, 2: aten.where.ScalarOther}[places[0]] if places else aten.where.self
    return call(overload, *operands)


def _comparing(name: str, exchanged: str) -> Lowering:
    """Return the lowering of a comparison; ``exchanged`` is the one for the operands the other way round."""

    def lowering(call: Caller, op: Any, node: Node, operands: Sequence[Any]) -> Any:
        left, right = operands
        if _is_number(left):
            return call(getattr(aten, exchanged).Scalar, right, left)
        return call(getattr(getattr(aten, name), "Scalar" if _is_number(right) else "Tensor"), left, right)

    return lowering


def _unary(overload: Any) -> Lowering:
    return lambda call, _op, _node, operands: call(overload, operands[0])


def _gelu(call: Caller, op: Gelu, node: Node, operands: Sequence[Any]) -> Any:
    keywords = {} if op.approximate == "none" else {"approximate": op.approximate}
    return call(aten.gelu.default, operands[0], **keywords)


def _hardtanh(call: Caller, op: Hardtanh, node: Node, operands: Sequence[Any]) -> Any:
    return call(aten.hardtanh.default, operands[0], op.min_val, op.max_val)


def _leaky_relu(call: Caller, op: LeakyRelu, node: Node, operands: Sequence[Any]) -> Any:
    return call(aten.leaky_relu.default, operands[0], op.negative_slope)


def _elu(call: Caller, op: Elu, node: Node, operands: Sequence[Any]) -> Any:
    return call(aten.elu.default, operands[0], op.alpha, op.scale)


def _celu(call: Caller, op: Celu, node: Node, operands: Sequence[Any]) -> Any:
    return call(aten.celu.default, operands[0], op.alpha)


def softplus_threshold(dtype: DType) -> float:
    """Return the operand beyond which softplus returns it unchanged; no digit of a result depends on it.

    PyTorch's own, 20, changes digits of double precision.
    """
    return 40.0 if dtype is DType.F64 else 20.0


def _softplus(call: Caller, op: Softplus, node: Node, operands: Sequence[Any]) -> Any:
    threshold = softplus_threshold(node.types[0].dtype)
    return call(aten.softplus.default, operands[0], op.beta, *(() if threshold == 20 else (threshold,)))


def _pow(call: Caller, op: Pow, node: Node, operands: Sequence[Any]) -> Any:
    return call(aten.pow.Tensor_Scalar, operands[0], op.exponent)


def _cast(call: Caller, op: Cast, node: Node, operands: Sequence[Any]) -> Any:
    return call(aten.to.dtype, operands[0], TORCH_DTYPES[op.dtype])


ELEMENTWISE: Mapping[type[Operator], Lowering] = {
    Add: _commutative(aten.add.Tensor),
    Mul: _mul,
    Sub: _sub,
    Div: _div,
    Addcmul: _addcmul,
    Maximum: _selecting(aten.maximum.default, aten.clamp_min.default),
    Minimum: _selecting(aten.minimum.default, aten.clamp_max.default),
    choice.Where: _where,
    choice.Greater: _comparing("gt", "lt"),
    choice.GreaterEqual: _comparing("ge", "le"),
    choice.Equal: _comparing("eq", "eq"),
    choice.NotEqual: _comparing("ne", "ne"),
    choice.LogicalAnd: _commutative(aten.logical_and.default),
    choice.LogicalOr: _commutative(aten.logical_or.default),
    choice.LogicalNot: _unary(aten.logical_not.default),
    Abs: _unary(aten.abs.default),
    Log: _unary(aten.log.default),
    Log1p: _unary(aten.log1p.default),
    Relu: _unary(aten.relu.default),
    Sigmoid: _unary(aten.sigmoid.default),
    Tanh: _unary(aten.tanh.default),
    Exp: _unary(aten.exp.default),
    Erf: _unary(aten.erf.default),
    Sin: _unary(aten.sin.default),
    Cos: _unary(aten.cos.default),
    Sqrt: _unary(aten.sqrt.default),
    Rsqrt: _unary(aten.rsqrt.default),
    Silu: _unary(aten.silu.default),
    Gelu: _gelu,
    Hardtanh: _hardtanh,
    Hardsigmoid: _unary(aten.hardsigmoid.default),
    Hardswish: _unary(aten.hardswish.default),
    LeakyRelu: _leaky_relu,
    Pow: _pow,
    Elu: _elu,
    Celu: _celu,
    Softplus: _softplus,
    Mish: _unary(aten.mish.default),
    Cast: _cast,
}
"""The rows, by operator."""
