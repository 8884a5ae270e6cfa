"""Rows of elementwise functions that ONNX has no operator for, made of several others.

Invariant: NaN, infinities and signed zeros give what they give in PyTorch, where the engine's own operators keep them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from taso_py.backend.onnx.aten.elementwise import each, operand_as, operands_as
from taso_py.backend.onnx.elementwise import log1p
from taso_py.backend.onnx.row import OnnxOperand, OpaqueCall, OpaqueRow
from taso_py.backend.onnx.writer import OnnxValue, Writer
from taso_py.backend.tensors import TORCH_DTYPES
from taso_py.ir.types import DType


def _operand(w: Writer, call: OpaqueCall) -> tuple[OnnxValue, DType]:
    """Return the operand in the element type of the result, and that type."""
    dtype = call.types[0].dtype
    return operand_as(w, call.arguments["self"], dtype), dtype


def _both(w: Writer, call: OpaqueCall) -> tuple[OnnxValue, OnnxValue, DType]:
    dtype = call.types[0].dtype
    left, right = operands_as(w, call, dtype, "self", "other")
    return left, right, dtype


def _expm1(w: Writer, call: OpaqueCall) -> OnnxValue:
    """Write ``exp(x) - 1``, accurate even where exp(x) is close to 1 (Higham 2002, section 1.14.1)."""
    x, dtype = _operand(w, call)
    one, power = w.number(1.0, dtype), w.op("Exp", x)
    less = w.op("Sub", power, one)
    corrected = w.op("Div", w.op("Mul", less, x), w.op("Log", power))
    near = w.op("Where", w.op("Less", w.op("Abs", x), one), corrected, less)
    return w.op("Where", w.op("Equal", power, one), x, near)


def _exp2(w: Writer, call: OpaqueCall) -> OnnxValue:
    x, dtype = _operand(w, call)
    return w.op("Pow", w.number(2.0, dtype), x)


def _sign(w: Writer, call: OpaqueCall) -> OnnxValue:
    """Write the sign, which PyTorch takes to be 0 for NaN."""
    x, dtype = _operand(w, call)
    sign = w.op("Sign", x)
    return w.op("Where", w.op("IsNaN", x), w.number(0.0, dtype), sign) if dtype.is_floating else sign


def _frac(w: Writer, call: OpaqueCall) -> OnnxValue:
    x, _ = _operand(w, call)
    return w.op("Sub", x, w.op("Mul", w.op("Sign", x), w.op("Floor", w.op("Abs", x))))


def _sinc(w: Writer, call: OpaqueCall) -> OnnxValue:
    x, dtype = _operand(w, call)
    angle = w.op("Mul", x, w.number(math.pi, dtype))
    quotient = w.op("Div", w.op("Sin", angle), angle)
    return w.op("Where", w.op("Equal", x, w.number(0.0, dtype)), w.number(1.0, dtype), quotient)


def _logit(w: Writer, call: OpaqueCall) -> OnnxValue:
    (x, dtype), eps = _operand(w, call), call.arguments["eps"]
    if eps is not None and eps >= 0:
        x = w.op("Clip", x, w.number(eps, dtype), w.number(1 - eps, dtype))
    return w.op("Log", w.op("Div", x, w.op("Sub", w.number(1.0, dtype), x)))


def _times(factor: float) -> OpaqueRow:
    def row(w: Writer, call: OpaqueCall) -> OnnxValue:
        x, dtype = _operand(w, call)
        return w.op("Mul", x, w.number(factor, dtype))

    return row


def _rounded_to_decimals(w: Writer, call: OpaqueCall) -> OnnxValue:
    (x, dtype), decimals = _operand(w, call), call.arguments["decimals"]
    if not decimals:
        return w.op("Round", x)
    power = w.number(10.0 ** abs(decimals), dtype)
    there, back = ("Mul", "Div") if decimals > 0 else ("Div", "Mul")
    return w.op(back, w.op("Round", w.op(there, x, power)), power)


def _is_finite(w: Writer, call: OpaqueCall) -> OnnxValue:
    x = call.operand()
    dtype = x.type.dtype if x.type.dtype.is_floating else DType.F32
    return w.op("Less", w.op("Abs", operand_as(w, x, dtype)), w.number(math.inf, dtype))


def _is_infinite(sign: str) -> OpaqueRow:
    """Return the row that asks for infinities that have not a sign, "positive" or "negative"."""

    def row(w: Writer, call: OpaqueCall) -> OnnxValue:
        x = call.operand()
        value = operand_as(w, x, x.type.dtype if x.type.dtype.is_floating else DType.F32)
        return w.op("IsInf", value, **{f"detect_{sign}": 0})

    return row


def _nan_to_num(w: Writer, call: OpaqueCall) -> OnnxValue:
    x = call.operand()
    dtype = x.type.dtype
    if not dtype.is_floating:
        return x.onnx
    most = torch.finfo(TORCH_DTYPES[dtype]).max
    found = x.onnx
    for name, held, default in (("neginf", -math.inf, -most), ("posinf", math.inf, most)):
        given = call.arguments[name]
        is_held = w.op("Equal", x.onnx, w.number(held, dtype))
        found = w.op("Where", is_held, w.number(default if given is None else given, dtype), found)
    return w.op("Where", w.op("IsNaN", x.onnx), w.number(call.arguments["nan"] or 0.0, dtype), found)


def _has_minus(w: Writer, x: OnnxValue, dtype: DType) -> OnnxValue:
    """Write whether a number is negative, or the negative zero."""
    zero = w.number(0.0, dtype)
    return w.op("Less", w.op("Where", w.op("Equal", x, zero), w.op("Reciprocal", x), x), zero)


def _atan2(w: Writer, call: OpaqueCall) -> OnnxValue:
    """Write the angle of a point in the first quadrant, and from it that in its own."""
    y, x, dtype = _both(w, call)
    up, right = w.op("Abs", y), w.op("Abs", x)
    # Of two infinities the angle is that of 1, of two zeros it is 0; their quotients are NaN.
    slope = w.op("Where", w.op("Equal", up, right), w.op("Sign", up), w.op("Div", up, right))
    angle = w.op("Atan", slope)
    angle = w.op("Where", _has_minus(w, x, dtype), w.op("Sub", w.number(math.pi, dtype), angle), angle)
    return w.op("Where", _has_minus(w, y, dtype), w.op("Neg", angle), angle)


def _greater_and_less(w: Writer, left: OnnxValue, right: OnnxValue) -> tuple[OnnxValue, OnnxValue]:
    """Write the greater of two numbers and the other one; one of them is NaN if one was given."""
    is_less = w.op("Less", left, right)
    return w.op("Where", is_less, right, left), w.op("Where", is_less, left, right)


def _hypot(w: Writer, call: OpaqueCall) -> OnnxValue:
    """Write the root of a sum of squares that do not overflow: of the numbers divided by the greater one."""
    x, y, dtype = _both(w, call)
    one, infinity = w.number(1.0, dtype), w.number(math.inf, dtype)
    high, low = _greater_and_less(w, w.op("Abs", x), w.op("Abs", y))
    ratio = w.op("Where", w.op("Equal", low, high), one, w.op("Div", low, high))
    length = w.op("Mul", high, w.op("Sqrt", w.op("Add", one, w.op("Mul", ratio, ratio))))
    is_infinite = w.op("Or", w.op("IsInf", x), w.op("IsInf", y))  # also beside NaN
    return w.op("Where", is_infinite, infinity, length)


def _added_exponents(base: float) -> OpaqueRow:
    """Return the row of the logarithm, in a base, of a sum of powers of it."""

    def row(w: Writer, call: OpaqueCall) -> OnnxValue:
        x, y, dtype = _both(w, call)
        high, low = _greater_and_less(w, x, y)
        # Equal infinities have no difference.
        apart = w.op("Where", w.op("Equal", low, high), w.number(0.0, dtype), w.op("Sub", low, high))
        if base == math.e:
            return w.op("Add", high, log1p(w, w.op("Exp", apart), dtype))
        added = log1p(w, w.op("Pow", w.number(base, dtype), apart), dtype)
        return w.op("Add", high, w.op("Mul", added, w.number(1 / math.log(base), dtype)))

    return row


def _soft_shrink(w: Writer, call: OpaqueCall) -> OnnxValue:
    (x, dtype), limit = _operand(w, call), call.arguments["lambd"]
    return w.op("Sub", x, w.op("Clip", x, w.number(-limit, dtype), w.number(limit, dtype)))


def _hard_shrink(w: Writer, call: OpaqueCall) -> OnnxValue:
    x, dtype = _operand(w, call)
    is_small = w.op("LessOrEqual", w.op("Abs", x), w.number(call.arguments["lambd"], dtype))
    return w.op("Where", is_small, w.number(0.0, dtype), x)


def _rrelu(w: Writer, call: OpaqueCall) -> OnnxValue:
    if call.arguments["training"]:
        raise call.refuse("draws slopes")
    return w.op("LeakyRelu", call.operand().onnx, alpha=(call.arguments["lower"] + call.arguments["upper"]) / 2)


def _xlogy(*, plus_one: bool = False) -> OpaqueRow:
    """Return the row of ``x * log(y)``, or of ``x * log(1 + y)``, which is 0 where x is."""

    def row(w: Writer, call: OpaqueCall) -> OnnxValue:
        x, y, dtype = _both(w, call)
        product = w.op("Mul", x, log1p(w, y, dtype) if plus_one else w.op("Log", y))
        is_zero = w.op("And", w.op("Equal", x, w.number(0.0, dtype)), w.op("Not", w.op("IsNaN", y)))
        return w.op("Where", is_zero, w.number(0.0, dtype), product)

    return row


def _heaviside(w: Writer, call: OpaqueCall) -> OnnxValue:
    x, dtype = _operand(w, call)
    zero = w.number(0, dtype)
    step = w.cast(w.op("Less", zero, x), dtype)
    return w.op("Where", w.op("Equal", x, zero), operand_as(w, call.operand("values"), dtype), step)


def _without_nan(name: str) -> OpaqueRow:
    """Return the row of the extreme of two numbers that is NaN only if both are."""

    def row(w: Writer, call: OpaqueCall) -> OnnxValue:
        x, y, dtype = _both(w, call)
        found = w.op(name, x, y)
        if not dtype.is_floating:
            return found
        return w.op("Where", w.op("IsNaN", x), y, w.op("Where", w.op("IsNaN", y), x, found))

    return row


def _subtracted_from(w: Writer, call: OpaqueCall) -> OnnxValue:
    (x, y, dtype), alpha = _both(w, call), call.arguments["alpha"]
    return w.op("Sub", y, x if alpha == 1 else w.op("Mul", x, w.number(alpha, dtype)))


def _ldexp(w: Writer, call: OpaqueCall) -> OnnxValue:
    x, power, dtype = _both(w, call)
    return w.op("Mul", x, w.op("Pow", w.number(2.0, dtype), power))


_BITS = {DType.I32: 32, DType.I64: 64}


def _shifted(*, left: bool) -> OpaqueRow:
    """Return the row of a shift of bits by a number, which is a product or a quotient."""

    def row(w: Writer, call: OpaqueCall) -> OnnxValue:
        (x, dtype), count = _operand(w, call), call.arguments["other"]
        if isinstance(count, OnnxOperand) or not 0 <= count < _BITS.get(dtype, 0) - 1:
            raise call.refuse("shifts by a tensor, by all bits, or short integers")
        factor = w.number(1 << count, dtype)
        # ONNX divides towards zero; nothing is left over once the remainder is taken off, which is not negative.
        return w.op("Mul", x, factor) if left else w.op("Div", w.op("Sub", x, w.op("Mod", x, factor)), factor)

    return row


ROWS: Mapping[str, OpaqueRow] = {
    "aten.expm1.default": _expm1,
    "aten.exp2.default": _exp2,
    **each("sign.default", "sgn.default", row=_sign),
    "aten.frac.default": _frac,
    "aten.sinc.default": _sinc,
    "aten.logit.default": _logit,
    "aten.deg2rad.default": _times(math.pi / 180),
    "aten.rad2deg.default": _times(180 / math.pi),
    "aten.round.decimals": _rounded_to_decimals,
    "aten.isfinite.default": _is_finite,
    "aten.isposinf.default": _is_infinite("negative"),
    "aten.isneginf.default": _is_infinite("positive"),
    "aten.nan_to_num.default": _nan_to_num,
    **each("atan2.default", "arctan2.default", row=_atan2),
    "aten.hypot.default": _hypot,
    "aten.logaddexp.default": _added_exponents(math.e),
    "aten.logaddexp2.default": _added_exponents(2.0),
    "aten.softshrink.default": _soft_shrink,
    "aten.hardshrink.default": _hard_shrink,
    "aten.rrelu.default": _rrelu,
    **each("xlogy.Tensor", "xlogy.Scalar_Self", "xlogy.Scalar_Other", row=_xlogy()),
    "aten.special_xlog1py.default": _xlogy(plus_one=True),
    "aten.heaviside.default": _heaviside,
    "aten.fmax.default": _without_nan("Max"),
    "aten.fmin.default": _without_nan("Min"),
    **each("rsub.Tensor", "rsub.Scalar", row=_subtracted_from),
    "aten.ldexp.Tensor": _ldexp,
    **each("__lshift__.Scalar", "bitwise_left_shift.Tensor_Scalar", row=_shifted(left=True)),
    **each("__rshift__.Scalar", "bitwise_right_shift.Tensor_Scalar", row=_shifted(left=False)),
}
"""The rows, by the name of the overload."""
