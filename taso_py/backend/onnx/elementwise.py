"""Rows of elementwise operators and casts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from taso_py.backend.onnx.row import Row, named
from taso_py.backend.onnx.writer import OnnxValue, Writer, as_float, overflows
from taso_py.ir.node import Node
from taso_py.ir.operator import Constant, Operator
from taso_py.ir.types import DType
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


def _binary(name: str, of_booleans: str | None = None) -> Row:
    """Return the row of an operator of two operands; ``of_booleans`` is the operator for booleans, if it differs."""

    def row(w: Writer, op: Operator, node: Node, operands: Sequence[OnnxValue]) -> OnnxValue:
        dtype = node.types[0].dtype
        if dtype is DType.BOOL and of_booleans is not None:
            return w.op(of_booleans, *operands)
        wide = _widened(w, node, operands)
        return w.op(name, *operands) if wide is None else w.cast(w.op(name, *wide), dtype)

    return row


def _widened(w: Writer, node: Node, operands: Sequence[OnnxValue]) -> list[OnnxValue] | None:
    """Return the operands in single precision if one is a number beyond the element type, which PyTorch computes with.

    None if all numbers are in range.
    """
    numbers = [value.node.op.value if isinstance(value.node.op, Constant) else None for value in node.inputs]
    if not any(isinstance(number, float) and overflows(number, node.types[0].dtype) for number in numbers):
        return None
    return [
        w.number(number, DType.F32) if isinstance(number, float) else w.cast(operand, DType.F32)
        for number, operand in zip(numbers, operands, strict=True)
    ]


def _addcmul(w: Writer, op: Addcmul, node: Node, operands: Sequence[OnnxValue]) -> OnnxValue:
    wide = _widened(w, node, operands)
    summand, left, right = operands if wide is None else wide
    result = w.op("Add", summand, w.op("Mul", left, right))
    return result if wide is None else w.cast(result, node.types[0].dtype)


def _rsqrt(w: Writer, op: Rsqrt, node: Node, operands: Sequence[OnnxValue]) -> OnnxValue:
    return w.op("Reciprocal", w.op("Sqrt", operands[0]))


def log1p(w: Writer, x: OnnxValue, dtype: DType) -> OnnxValue:
    """Write ``log(1 + x)``, accurate even where 1 + x is rounded (Goldberg 1991, theorem 4)."""
    one = w.number(1.0, dtype)
    total = w.op("Add", x, one)
    logarithm = w.op("Log", total)
    corrected = w.op("Div", w.op("Mul", x, logarithm), w.op("Sub", total, one))
    # If nothing was lost, and at infinity, the logarithm is correct without a correction.
    lost = w.op("And", w.op("Less", w.op("Abs", x), one), w.op("Not", w.op("Equal", total, one)))
    return w.op("Where", w.op("Equal", total, one), x, w.op("Where", lost, corrected, logarithm))


def is_not_zero(w: Writer, x: OnnxValue, dtype: DType) -> OnnxValue:
    """Write whether numbers are not zero, as NaN is not; converted to a truth value it would be false in OpenVINO."""
    return w.op("Not", w.op("Equal", x, w.number(0, dtype)))


def _log1p(w: Writer, op: Log1p, node: Node, operands: Sequence[OnnxValue]) -> OnnxValue:
    return log1p(w, operands[0], node.types[0].dtype)


def _silu(w: Writer, op: Silu, node: Node, operands: Sequence[OnnxValue]) -> OnnxValue:
    return w.op("Mul", operands[0], w.op("Sigmoid", operands[0]))


def _gelu(w: Writer, op: Gelu, node: Node, operands: Sequence[OnnxValue]) -> OnnxValue:
    x, dtype = operands[0], node.types[0].dtype
    if dtype is not DType.F64 or op.approximate == "none":
        return w.op("Gelu", x, approximate=op.approximate)
    # Engines compute the operator by numbers in single precision.
    cubic = w.op("Add", w.op("Mul", w.op("Mul", x, x), w.number(0.044715, dtype)), w.number(1.0, dtype))
    inner = w.op("Mul", w.op("Mul", x, cubic), w.number(math.sqrt(2 / math.pi), dtype))
    gate = w.op("Add", w.op("Tanh", inner), w.number(1.0, dtype))
    return w.op("Mul", w.op("Mul", x, w.number(0.5, dtype)), gate)


def _hardtanh(w: Writer, op: Hardtanh, node: Node, operands: Sequence[OnnxValue]) -> OnnxValue:
    dtype = node.types[0].dtype
    return w.op("Clip", operands[0], w.number(op.min_val, dtype), w.number(op.max_val, dtype))


def _hardsigmoid(w: Writer, op: Hardsigmoid, node: Node, operands: Sequence[OnnxValue]) -> OnnxValue:
    return w.op("HardSigmoid", operands[0], alpha=1 / 6, beta=0.5)


def _pow(w: Writer, op: Pow, node: Node, operands: Sequence[OnnxValue]) -> OnnxValue:
    return w.op("Pow", operands[0], w.number(float(op.exponent), node.types[0].dtype))


def _leaky_relu(w: Writer, op: LeakyRelu, node: Node, operands: Sequence[OnnxValue]) -> OnnxValue:
    return w.op("LeakyRelu", operands[0], alpha=as_float(op.negative_slope))


def _elu(w: Writer, op: Elu, node: Node, operands: Sequence[OnnxValue]) -> OnnxValue:
    result = w.op("Elu", operands[0], alpha=op.alpha)
    return result if op.scale == 1 else w.op("Mul", result, w.number(op.scale, node.types[0].dtype))


def _celu(w: Writer, op: Celu, node: Node, operands: Sequence[OnnxValue]) -> OnnxValue:
    # ONNX has its Celu for single precision only.
    alpha = w.number(op.alpha, node.types[0].dtype)
    return w.op("Mul", w.op("Elu", w.op("Div", operands[0], alpha)), alpha)


def _softplus(w: Writer, op: Softplus, node: Node, operands: Sequence[OnnxValue]) -> OnnxValue:
    (x,), dtype = operands, node.types[0].dtype
    if op.beta == 1:
        return w.op("Softplus", x)
    beta = w.number(op.beta, dtype)
    return w.op("Div", w.op("Softplus", w.op("Mul", x, beta)), beta)


def _cast(w: Writer, op: Cast, node: Node, operands: Sequence[OnnxValue]) -> OnnxValue:
    given = node.inputs[0].type.dtype
    if op.dtype is DType.BOOL and given.is_floating:
        return is_not_zero(w, operands[0], given)
    return w.cast(operands[0], op.dtype)


ROWS: Mapping[type[Operator], Row] = {
    Add: _binary("Add", "Or"),
    Mul: _binary("Mul", "And"),
    Sub: _binary("Sub"),
    Div: _binary("Div"),
    Addcmul: _addcmul,
    Maximum: _binary("Max", "Or"),
    Minimum: _binary("Min", "And"),
    Abs: named("Abs"),
    Log: named("Log"),
    Log1p: _log1p,
    Relu: named("Relu"),
    Sigmoid: named("Sigmoid"),
    Tanh: named("Tanh"),
    Exp: named("Exp"),
    Erf: named("Erf"),
    Sin: named("Sin"),
    Cos: named("Cos"),
    Sqrt: named("Sqrt"),
    Rsqrt: _rsqrt,
    Silu: _silu,
    Gelu: _gelu,
    Hardtanh: _hardtanh,
    Hardsigmoid: _hardsigmoid,
    Hardswish: named("HardSwish"),
    LeakyRelu: _leaky_relu,
    Pow: _pow,
    Elu: _elu,
    Celu: _celu,
    Softplus: _softplus,
    Mish: named("Mish"),
    Cast: _cast,
}
"""The rows, by the class of the operator."""
