"""Import of elementwise operators: arithmetic with promotion, activations, casts.

Invariant: promotion is explicit. Where PyTorch computes in another element type than an operand's, that operand is
cast, which is what PyTorch does; a tensor of rank 0 promotes by rules of its own, and then the call stays opaque.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch

from taso_py.backend.elementwise import softplus_threshold
from taso_py.backend.tensors import TORCH_DTYPES
from taso_py.frontend.call import AtenCall, NotInDialectError, Result, apply
from taso_py.frontend.dialect.creation import fill_of
from taso_py.ir.node import Value
from taso_py.ir.operator import Constant, Operator
from taso_py.ir.types import DType
from taso_py.ops.elementwise import (
    MOST_FACTORS,
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
from taso_py.ops.functions import IRRATIONALS, RECIPROCALS
from taso_py.ops.movement import Expand, Reshape


def promoted(operand: Value | float, dtype: DType) -> Value:
    """Return an operand as PyTorch converts it to compute in ``dtype``; numbers become constants that round alike."""
    if isinstance(operand, Value):
        if operand.type.dtype is dtype:
            return operand
        if operand.type.rank == 0:
            raise NotInDialectError
        return apply(Cast(dtype), operand)
    if dtype is DType.BOOL or type(operand) not in (int, float) or not math.isfinite(operand):
        raise NotInDialectError
    if not dtype.is_floating:
        if not isinstance(operand, int):
            raise NotInDialectError
        return apply(Constant(operand, dtype))
    if float(operand) != operand:
        raise NotInDialectError
    return apply(Constant(_recognized(float(operand), dtype), dtype))


def _recognized(number: float, dtype: DType) -> float:
    """Return a number, or the irrational one that rounds to it in ``dtype``, which models write with some digits."""
    types = {torch.float32, TORCH_DTYPES[dtype]}  # half precision is computed with numbers in single precision
    for known in (*IRRATIONALS.values(), *itertools.chain(*RECIPROCALS.values())):
        is_near = math.isclose(number, known, rel_tol=1e-6)
        if is_near and all(torch.tensor(number, dtype=type_) == torch.tensor(known, dtype=type_) for type_ in types):
            return known
    return number


def _binary(op: Operator, left: str = "self", right: str = "other") -> Callable[[AtenCall], Result]:
    def row(call: AtenCall) -> Result:
        # alpha != 1 multiplies and adds with one rounding where the processor can; two operators would round twice.
        call.require(call.arguments.get("alpha", 1) == 1)
        dtype = call.types[0].dtype
        # On booleans + and * are or and and. A product of complex numbers is rounded by the order of its operands.
        call.require(dtype is not DType.BOOL and not dtype.is_complex)
        return apply(op, *_broadcast(op, [promoted(call[left], dtype), promoted(call[right], dtype)]))

    return row


def _broadcast(op: Operator, operands: Sequence[Value]) -> list[Value]:
    """Return operands without what makes no difference to broadcasting, so that rules are about one form of many.

    That is an expansion to the shape of another operand; and the first axes of a parameter where they have size 1:
    ``[1, C, 1, 1]`` and ``[C, 1, 1]`` say the same of an image. One axis stays, as a number alone may be computed with
    in another precision. Sums keep expansions: kernels of products add what has the product's shape.
    """
    found = list(operands)
    for place, value in enumerate(operands):
        others = [*found[:place], *found[place + 1 :]]
        is_stretched = isinstance(value.node.op, Expand) and value.node.inputs[0].type.rank > 0
        if is_stretched and not isinstance(op, Add) and any(other.type.shape == value.type.shape for other in others):
            found[place] = value.node.inputs[0]
    shapes = [value.type.shape for value in found if not value.node.is_static]
    rank = max(map(len, shapes), default=0)
    for place, value in enumerate(found):
        shape = value.type.shape
        ones = next((axis for axis, size in enumerate(shape[:-1]) if size != 1), len(shape) - 1)
        if value.node.is_static and ones > 0 and len(shape) <= rank and shape not in shapes:
            found[place] = apply(Reshape(value.type.dims[ones:]), value)
    return found


def _sum(sign: int) -> Callable[[AtenCall], Result]:
    """Return the row of a sum, or with a sign of -1 of a difference, whose second operand may have a factor."""
    plain = _binary(Add() if sign > 0 else Sub())

    def row(call: AtenCall) -> Result:
        dtype, factor = call.types[0].dtype, call["alpha"]
        if factor == 1 or not dtype.is_floating or factor == 0:
            return plain(call)
        left, right = (promoted(call[name], dtype) for name in ("self", "other"))
        call.require(not any(isinstance(value.node.op, Constant) for value in (left, right)))
        return apply(Addcmul(), *_broadcast(Addcmul(), [left, right]), promoted(sign * factor, dtype))

    return row


def _selecting(op: Operator, right: str = "other") -> Callable[[AtenCall], Result]:
    """Return the row of a maximum or minimum; a tensor of one number beside one of the result's type is that number."""
    row = _binary(op, right=right)

    def selecting(call: AtenCall) -> Result:
        left, other = call["self"], call[right]
        for name, operand, beside in (("self", left, other), (right, other, left)):
            if isinstance(operand, Value) and isinstance(beside, Value) and beside.type == call.types[0]:
                number = fill_of(operand)
                if number is not None and math.isfinite(number) and operand.type.dtype is beside.type.dtype:
                    return row(replace(call, arguments={**call.arguments, name: number}))
        return row(call)

    return selecting


def _unary(op: Operator) -> Callable[[AtenCall], Result]:
    return lambda call: apply(op, call.value("self"))


def _gelu(call: AtenCall) -> Result:
    return apply(Gelu(call["approximate"]), call.value("self"))


def _clamped(least: str, most: str) -> Callable[[AtenCall], Result]:
    """Return the row for a clamp whose limits are numbers in the arguments of these names."""

    def row(call: AtenCall) -> Result:
        return apply(Hardtanh(call.number(least), call.number(most)), call.value("self"))

    return row


def _clamp(call: AtenCall) -> Result:
    """Import a clamp between two numbers, or with one limit; with others it would take two operators for one call."""
    if call["max"] is None:
        return _selecting(Maximum(), right="min")(call)
    if call["min"] is None:
        return _selecting(Minimum(), right="max")(call)
    return _clamped("min", "max")(call)


def _leaky_relu(call: AtenCall) -> Result:
    return apply(LeakyRelu(call.number("negative_slope")), call.value("self"))


def _elu(call: AtenCall) -> Result:
    call.require(call["input_scale"] == 1)
    return apply(Elu(call.number("alpha"), call.number("scale")), call.value("self"))


def _celu(call: AtenCall) -> Result:
    return apply(Celu(call.number("alpha")), call.value("self"))


_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946
"""PyTorch's constants (Klambauer et al. 2017)."""


def _softplus(call: AtenCall) -> Result:
    """Import softplus with a threshold that changes no rounded result: in double precision, not PyTorch's own."""
    x = call.value("self")
    call.require(call["threshold"] == softplus_threshold(x.type.dtype))
    return apply(Softplus(call.number("beta")), x)


def _neg(call: AtenCall) -> Result:
    x = call.value("self")
    call.require(x.type.dtype.is_floating)
    return apply(Mul(), x, apply(Constant(-1.0, x.type.dtype)))


def _addcdiv(call: AtenCall) -> Result:
    """Import the sum with a quotient, which PyTorch's kernels round like two operators in these two types."""
    dtype = call.types[0].dtype
    call.require(call["value"] == 1 and dtype in (DType.F32, DType.F64))
    x, left, right = (promoted(call.value(name), dtype) for name in ("self", "tensor1", "tensor2"))
    return apply(Add(), x, apply(Div(), left, right))


def _addcmul(call: AtenCall) -> Result:
    dtype = call.types[0].dtype
    call.require(call["value"] == 1 and dtype.is_floating)
    operands = [promoted(call.value(name), dtype) for name in ("self", "tensor1", "tensor2")]
    return apply(Addcmul(), *_broadcast(Addcmul(), operands))


def _reciprocal(call: AtenCall) -> Result:
    x = call.value("self")
    return apply(Div(), apply(Constant(1.0, x.type.dtype)), x)


def _square(call: AtenCall) -> Result:
    x = call.value("self")
    call.require(x.type.dtype.is_floating)
    return apply(Mul(), x, x)


_ROOTS: Mapping[float, Operator] = {0.5: Sqrt(), -0.5: Rsqrt()}


def _pow(call: AtenCall) -> Result:
    """Import whole exponents, and those that PyTorch's kernels compute by products or roots.

    They compute 2 and 3 as ``x * x`` and ``x * x * x``, rounding after each product, and 0.5 and -0.5 by roots.
    """
    x, exponent = call.value("self"), call["exponent"]
    call.require(x.type.dtype in (DType.F32, DType.F64) and type(exponent) in (int, float))
    if exponent in _ROOTS:
        return apply(_ROOTS[exponent], x)
    call.require(exponent in range(2, MOST_FACTORS + 1))
    if exponent > 3:
        return apply(Pow(int(exponent)), x)
    square = apply(Mul(), x, x)
    return square if exponent == 2 else apply(Mul(), square, x)


def _type_as(call: AtenCall) -> Result:
    x, dtype = call.value("self"), call.types[0].dtype
    return x if dtype is x.type.dtype else apply(Cast(dtype), x)


def _to_copy(call: AtenCall) -> Result:
    x = call.value("self")
    device, layout = call["device"], call["layout"]
    call.require(call["dtype"] is not None and not call["pin_memory"] and layout in (None, torch.strided))
    call.require(device is None or _names(torch.device(device), call.layouts[x].device))
    call.require(call["memory_format"] in (None, torch.preserve_format))
    dtype = call.types[0].dtype
    call.require(TORCH_DTYPES[dtype] is call["dtype"])
    return x if dtype is x.type.dtype else apply(Cast(dtype), x)


def _names(name: torch.device, device: torch.device) -> bool:
    """Return whether a device name, with or without an index, means this device; a model runs on one device."""
    return name.type == device.type and name.index in (None, device.index)


ROWS: Mapping[str, Callable[[AtenCall], Result]] = {
    "aten.add.Tensor": _sum(1),
    "aten.add.Scalar": _binary(Add()),
    "aten.sub.Tensor": _sum(-1),
    "aten.sub.Scalar": _binary(Sub()),
    "aten.rsub.Scalar": _binary(Sub(), "other", "self"),
    "aten.rsub.Tensor": _binary(Sub(), "other", "self"),
    "aten.mul.Tensor": _binary(Mul()),
    "aten.mul.Scalar": _binary(Mul()),
    "aten.div.Tensor": _binary(Div()),
    "aten.div.Scalar": _binary(Div()),
    "aten.relu.default": _unary(Relu()),
    "aten.sigmoid.default": _unary(Sigmoid()),
    "aten.tanh.default": _unary(Tanh()),
    "aten.exp.default": _unary(Exp()),
    "aten.erf.default": _unary(Erf()),
    "aten.sin.default": _unary(Sin()),
    "aten.cos.default": _unary(Cos()),
    "aten.sqrt.default": _unary(Sqrt()),
    "aten.rsqrt.default": _unary(Rsqrt()),
    "aten.silu.default": _unary(Silu()),
    "aten.gelu.default": _gelu,
    "aten.hardtanh.default": _clamped("min_val", "max_val"),
    **{f"aten.{name}.{form}": _clamp for name in ("clamp", "clip") for form in ("default", "Tensor")},
    **{f"aten.clamp_min.{form}": _selecting(Maximum(), right="min") for form in ("default", "Tensor")},
    **{f"aten.clamp_max.{form}": _selecting(Minimum(), right="max") for form in ("default", "Tensor")},
    "aten.maximum.default": _selecting(Maximum()),
    "aten.max.other": _selecting(Maximum()),
    "aten.minimum.default": _selecting(Minimum()),
    "aten.min.other": _selecting(Minimum()),
    "aten.abs.default": _unary(Abs()),
    "aten.log.default": _unary(Log()),
    "aten.log1p.default": _unary(Log1p()),
    "aten.relu6.default": _unary(Hardtanh(0.0, 6.0)),
    "aten.hardsigmoid.default": _unary(Hardsigmoid()),
    "aten.hardswish.default": _unary(Hardswish()),
    "aten.leaky_relu.default": _leaky_relu,
    "aten.elu.default": _elu,
    "aten.celu.default": _celu,
    "aten.selu.default": _unary(Elu(_SELU_ALPHA, _SELU_SCALE)),
    "aten.softplus.default": _softplus,
    "aten.mish.default": _unary(Mish()),
    "aten.neg.default": _neg,
    "aten.reciprocal.default": _reciprocal,
    "aten.square.default": _square,
    "aten.addcmul.default": _addcmul,
    "aten.addcdiv.default": _addcdiv,
    "aten.pow.Tensor_Scalar": _pow,
    "aten._to_copy.default": _to_copy,
    "aten.type_as.default": _type_as,
}
"""One row per ATen overload."""
