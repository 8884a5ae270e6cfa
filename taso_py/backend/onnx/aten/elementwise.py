"""Rows of elementwise calls: functions, comparisons, logic, choice.

Invariant: operands are cast to the element type that PyTorch promotes them to before anything is computed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from taso_py.backend.onnx.elementwise import is_not_zero, log1p
from taso_py.backend.onnx.row import OnnxOperand, OpaqueCall, OpaqueRow
from taso_py.backend.onnx.writer import OnnxValue, Writer
from taso_py.backend.tensors import TORCH_DTYPES, ir_dtype, is_power_of_two
from taso_py.ir.size import Poly, at_example
from taso_py.ir.types import DType


def operand_as(w: Writer, argument: Any, dtype: DType) -> OnnxValue:
    """Return a tensor or a number in an element type."""
    if not isinstance(argument, OnnxOperand):
        return w.number(argument, dtype)
    if dtype is DType.BOOL and argument.type.dtype.is_floating:
        return is_not_zero(w, argument.onnx, argument.type.dtype)
    return argument.onnx if argument.type.dtype is dtype else w.cast(argument.onnx, dtype)


def operands_as(w: Writer, call: OpaqueCall, dtype: DType, *names: str) -> Sequence[OnnxValue]:
    """Return arguments of a call, which are tensors or numbers, in an element type."""
    return [operand_as(w, call.arguments[name], dtype) for name in names]


def each(*names: str, row: OpaqueRow) -> Mapping[str, OpaqueRow]:
    """Return one row for several overloads, by their names."""
    return {f"aten.{name}": row for name in names}


def promoted(*arguments: Any) -> DType:
    """Return the element type to which PyTorch promotes tensors and numbers."""

    def stand_in(argument: Any) -> Any:
        if not isinstance(argument, OnnxOperand):
            return at_example(argument) if isinstance(argument, Poly) else argument
        shape = (1,) * argument.type.rank
        return torch.empty(shape, dtype=TORCH_DTYPES[argument.type.dtype], device="meta")

    found = stand_in(arguments[0])
    for argument in arguments[1:]:
        other = stand_in(argument)
        dtype = torch.result_type(found, other)
        rank = max(x.dim() if isinstance(x, Tensor) else 0 for x in (found, other))
        found = torch.empty((1,) * rank, dtype=dtype, device="meta")
    return ir_dtype(found.dtype)


def _function(name: str) -> OpaqueRow:
    """Return the row of a function of one operand, computed in the element type of the result."""

    def row(w: Writer, call: OpaqueCall) -> OnnxValue:
        return w.op(name, operand_as(w, call.operand(), call.types[0].dtype))

    return row


def _celu(w: Writer, call: OpaqueCall) -> OnnxValue:
    return w.op("Celu", call.operand().onnx, alpha=float(call.arguments["alpha"]))


def _rounded(name: str) -> OpaqueRow:
    """Return the row of a rounding function, which leaves integers unchanged."""

    def row(w: Writer, call: OpaqueCall) -> OnnxValue:
        x = call.operand()
        return w.op(name, x.onnx) if x.type.dtype.is_floating else x.onnx

    return row


def _trunc(w: Writer, call: OpaqueCall) -> OnnxValue:
    x = call.operand()
    return _towards_zero(w, x.onnx) if x.type.dtype.is_floating else x.onnx


def _towards_zero(w: Writer, x: OnnxValue) -> OnnxValue:
    return w.op("Mul", w.op("Sign", x), w.op("Floor", w.op("Abs", x)))


def _elu(w: Writer, call: OpaqueCall) -> OnnxValue:
    if call.arguments["input_scale"] != 1:
        raise call.refuse("scales its input")
    result = w.op("Elu", call.operand().onnx, alpha=float(call.arguments["alpha"]))
    scale = call.arguments["scale"]
    return result if scale == 1 else w.op("Mul", result, w.number(scale, call.types[0].dtype))


def _softplus(w: Writer, call: OpaqueCall) -> OnnxValue:
    x, dtype = call.operand().onnx, call.types[0].dtype
    beta, threshold = call.arguments["beta"], call.arguments["threshold"]
    scaled = x if beta == 1 else w.op("Mul", x, w.number(beta, dtype))
    soft = w.op("Softplus", scaled)
    soft = soft if beta == 1 else w.op("Div", soft, w.number(beta, dtype))
    return w.op("Where", w.op("Greater", scaled, w.number(threshold, dtype)), x, soft)


def _log_sigmoid(w: Writer, call: OpaqueCall) -> OnnxValue:
    return w.op("Neg", w.op("Softplus", w.op("Neg", call.operand().onnx)))


def _logarithm(base: float) -> OpaqueRow:
    """Return the row of a logarithm that is exact where it is an integer, as PyTorch's is."""

    def row(w: Writer, call: OpaqueCall) -> OnnxValue:
        dtype = call.types[0].dtype
        x = operand_as(w, call.operand(), dtype)
        found = w.op("Div", w.op("Log", x), w.number(math.log(base), dtype))
        whole = w.op("Round", found)
        return w.op("Where", w.op("Equal", w.op("Pow", w.number(base, dtype), whole), x), whole, found)

    return row


def _log1p(w: Writer, call: OpaqueCall) -> OnnxValue:
    dtype = call.types[0].dtype
    return log1p(w, operand_as(w, call.operand(), dtype), dtype)


def _clamped(least: str | None = None, most: str | None = None) -> OpaqueRow:
    """Return the row of a clamp, given the names of the arguments that hold its limits."""

    def row(w: Writer, call: OpaqueCall) -> OnnxValue:
        dtype = call.types[0].dtype
        x = operand_as(w, call.operand(), dtype)
        low, high = (call.arguments[name] if name is not None else None for name in (least, most))
        if not isinstance(low, OnnxOperand) and not isinstance(high, OnnxOperand):
            if dtype.is_floating:  # a limit that is left out is the greatest finite number to engines
                low, high = -math.inf if low is None else low, math.inf if high is None else high
            limits = (None if limit is None else w.number(limit, dtype) for limit in (low, high))
            return w.op("Clip", x, *limits)
        x = x if low is None else w.op("Max", x, operand_as(w, low, dtype))
        return x if high is None else w.op("Min", x, operand_as(w, high, dtype))

    return row


def _binary(name: str) -> OpaqueRow:
    """Return the row of an operator of two operands, computed in the element type of the result."""

    def row(w: Writer, call: OpaqueCall) -> OnnxValue:
        dtype = call.types[0].dtype
        return w.op(name, *operands_as(w, call, dtype, "self", "other"))

    return row


def _sum_with_factor(name: str) -> OpaqueRow:
    def row(w: Writer, call: OpaqueCall) -> OnnxValue:
        dtype = call.types[0].dtype
        left, right = operands_as(w, call, dtype, "self", "other")
        if dtype is DType.BOOL:
            raise call.refuse("is of booleans")
        alpha = call.arguments.get("alpha", 1)
        return w.op(name, left, right if alpha == 1 else w.op("Mul", right, w.number(alpha, dtype)))

    return row


def _pow(base: str, exponent: str) -> OpaqueRow:
    def row(w: Writer, call: OpaqueCall) -> OnnxValue:
        dtype = call.types[0].dtype
        power = call.arguments[exponent]
        x = operand_as(w, call.arguments[base], dtype)
        if power == 2:
            return w.op("Mul", x, x)
        if not dtype.is_floating:
            return _whole_power(w, call, x, power)
        if power == 0.5:
            return w.op("Sqrt", x)
        return w.op("Pow", x, operand_as(w, power, dtype))

    return row


def _whole_power(w: Writer, call: OpaqueCall, x: OnnxValue, power: object) -> OnnxValue:
    """Write a power of integers as products, which wrap around; engines compute others in double precision."""
    if not isinstance(call.arguments["self"], OnnxOperand) or not isinstance(power, int) or power < 1:
        raise call.refuse("raises integers to other powers than the first and higher ones")
    if power == 1:
        return x
    half = _whole_power(w, call, x, power // 2)
    square = w.op("Mul", half, half)
    return w.op("Mul", square, x) if power % 2 else square


def _compared(name: str, *, inverted: bool = False) -> OpaqueRow:
    def row(w: Writer, call: OpaqueCall) -> OnnxValue:
        left, right = call.arguments["self"], call.arguments["other"]
        dtype = promoted(left, right)
        if dtype is DType.BOOL and name != "Equal":
            dtype = DType.I32
        result = w.op(name, operand_as(w, left, dtype), operand_as(w, right, dtype))
        return w.op("Not", result) if inverted else result

    return row


def _bitwise(name: str) -> OpaqueRow:
    def row(w: Writer, call: OpaqueCall) -> OnnxValue:
        dtype = call.types[0].dtype
        given = operands_as(w, call, dtype, "self", "other")
        return w.op(name if dtype is DType.BOOL else f"Bitwise{name}", *given)

    return row


def _logical(name: str) -> OpaqueRow:
    def row(w: Writer, call: OpaqueCall) -> OnnxValue:
        return w.op(name, *operands_as(w, call, DType.BOOL, "self", "other"))

    return row


def _bitwise_not(w: Writer, call: OpaqueCall) -> OnnxValue:
    x = call.operand()
    return w.op("Not" if x.type.dtype is DType.BOOL else "BitwiseNot", x.onnx)


def _logical_not(w: Writer, call: OpaqueCall) -> OnnxValue:
    return w.op("Not", operand_as(w, call.operand(), DType.BOOL))


def _divided(w: Writer, call: OpaqueCall) -> OnnxValue:
    """Write a quotient that may be rounded."""
    dtype, mode = call.types[0].dtype, call.arguments.get("rounding_mode", "floor")
    left, right = operands_as(w, call, dtype, "self", "other")
    if mode is None:
        return w.op("Div", left, right)
    if dtype.is_floating:
        if mode == "floor" and not is_power_of_two(call.arguments["other"]):
            return _floored(w, left, right, dtype)
        quotient = w.op("Div", left, right)
        if mode != "floor":
            return _towards_zero(w, quotient)
        return w.op("Where", w.op("IsInf", left), w.number(math.nan, dtype), w.op("Floor", quotient))
    quotient = w.op("Div", left, right)  # towards zero
    if mode != "floor":
        return quotient
    rest = w.op("Sub", left, w.op("Mul", quotient, right))
    return w.op("Sub", quotient, w.cast(_has_other_sign(w, rest, right, dtype), dtype))


def _floored(w: Writer, left: OnnxValue, right: OnnxValue, dtype: DType) -> OnnxValue:
    """Write the largest integer that is not above a quotient, even if that is rounded up to an integer."""
    rest, wrong = _rest(w, left, right, dtype)
    quotient, one = w.op("Div", w.op("Sub", left, rest), right), w.number(1.0, dtype)
    quotient = w.op("Where", wrong, w.op("Sub", quotient, one), quotient)
    floor = w.op("Floor", quotient)
    is_less = w.op("Less", w.number(0.5, dtype), w.op("Sub", quotient, floor))
    floor = w.op("Where", is_less, w.op("Add", floor, one), floor)
    return w.op("Where", w.op("Equal", right, w.number(0.0, dtype)), w.op("Div", left, right), floor)


def _rest(w: Writer, left: OnnxValue, right: OnnxValue, dtype: DType) -> tuple[OnnxValue, OnnxValue]:
    """Write the remainder of division towards zero, which has the dividend's sign, and whether another was wanted."""
    rest = w.op("Mod", left, right, fmod=1)
    return rest, _has_other_sign(w, rest, right, dtype)


def _has_other_sign(w: Writer, rest: OnnxValue, right: OnnxValue, dtype: DType) -> OnnxValue:
    """Write whether the remainder of division towards zero has another sign than the divisor, as zero does not."""
    zero = w.number(0, dtype)
    differs = w.op("Xor", w.op("Less", rest, zero), w.op("Less", right, zero))
    return w.op("And", differs, is_not_zero(w, rest, dtype))


def _remainder(w: Writer, call: OpaqueCall) -> OnnxValue:
    dtype = call.types[0].dtype
    left, right = operands_as(w, call, dtype, "self", "other")
    if not dtype.is_floating:
        return w.op("Mod", left, right)
    rest, wrong = _rest(w, left, right, dtype)
    return w.op("Where", wrong, w.op("Add", rest, right), rest)


def _fmod(w: Writer, call: OpaqueCall) -> OnnxValue:
    dtype = call.types[0].dtype
    left, right = operands_as(w, call, dtype, "self", "other")
    if dtype.is_floating:
        return w.op("Mod", left, right, fmod=1)
    return w.op("Sub", left, w.op("Mul", w.op("Div", left, right), right))


def _where(w: Writer, call: OpaqueCall) -> OnnxValue:
    dtype = call.types[0].dtype
    condition = operand_as(w, call.arguments["condition"], DType.BOOL)
    return w.op("Where", condition, *operands_as(w, call, dtype, "self", "other"))


def _masked_fill(w: Writer, call: OpaqueCall) -> OnnxValue:
    dtype = call.types[0].dtype
    value = operand_as(w, call.arguments["value"], dtype)
    return w.op("Where", call.operand("mask").onnx, value, operand_as(w, call.operand(), dtype))


def _is_infinite(w: Writer, call: OpaqueCall) -> OnnxValue:
    return w.op("IsInf", call.operand().onnx)


def _prelu(w: Writer, call: OpaqueCall) -> OnnxValue:
    x, weight = call.operand(), call.operand("weight")
    slope = weight.onnx
    if weight.type.rank == 1 and x.type.rank > 2:
        # One slope a channel; PyTorch has the channels second.
        slope = w.op("Reshape", slope, w.integers([-1, *[1] * (x.type.rank - 2)]))
    return w.op("PRelu", x.onnx, slope)


def _addc(name: str) -> OpaqueRow:
    def row(w: Writer, call: OpaqueCall) -> OnnxValue:
        dtype = call.types[0].dtype
        base, first, second = operands_as(w, call, dtype, "self", "tensor1", "tensor2")
        result, factor = w.op(name, first, second), call.arguments["value"]
        return w.op("Add", base, result if factor == 1 else w.op("Mul", result, w.number(factor, dtype)))

    return row


def _lerp(w: Writer, call: OpaqueCall) -> OnnxValue:
    dtype, given = call.types[0].dtype, call.arguments["weight"]
    start, end, weight = operands_as(w, call, dtype, "self", "end", "weight")
    return lerped(w, start, end, weight, dtype, given=None if isinstance(given, OnnxOperand) else given)


def lerped(
    w: Writer, start: OnnxValue, end: OnnxValue, weight: OnnxValue, dtype: DType, given: float | None = None
) -> OnnxValue:
    """Write a weighted mean from the end that is nearer, as PyTorch computes it, so that either end is met exactly.

    Args:
        w: the writer.
        start: the value for the weight 0.
        end: the value for the weight 1.
        weight: the weight.
        dtype: the element type of all three.
        given: the weight, if it is known.
    """
    way = w.op("Sub", end, start)

    def from_start() -> OnnxValue:
        return w.op("Add", start, w.op("Mul", weight, way))

    def from_end() -> OnnxValue:
        return w.op("Sub", end, w.op("Mul", w.op("Sub", w.number(1.0, dtype), weight), way))

    if given is not None:
        return from_start() if abs(given) < 0.5 else from_end()
    return w.op("Where", w.op("Less", w.op("Abs", weight), w.number(0.5, dtype)), from_start(), from_end())


def _threshold(w: Writer, call: OpaqueCall) -> OnnxValue:
    x, dtype = call.operand().onnx, call.types[0].dtype
    threshold, value = (w.number(call.arguments[key], dtype) for key in ("threshold", "value"))
    return w.op("Where", w.op("LessOrEqual", x, threshold), value, x)


def _glu(w: Writer, call: OpaqueCall) -> OnnxValue:
    value, gate = w.ops("Split", 2, call.operand().onnx, axis=call.arguments["dim"], num_outputs=2)
    return w.op("Mul", value, w.op("Sigmoid", gate))


ROWS: Mapping[str, OpaqueRow] = {
    "aten.hardtanh.default": _clamped("min_val", "max_val"),
    **each("clamp.default", "clamp.Tensor", row=_clamped("min", "max")),
    **each("clamp_min.default", "clamp_min.Tensor", row=_clamped("min")),
    **each("clamp_max.default", "clamp_max.Tensor", row=_clamped(None, "max")),
    "aten.elu.default": _elu,
    "aten.celu.default": _celu,
    "aten.softplus.default": _softplus,
    "aten.log_sigmoid.default": _log_sigmoid,
    "aten.relu.default": _function("Relu"),
    "aten.threshold.default": _threshold,
    "aten.glu.default": _glu,
    **each("prelu.default", "_prelu_kernel.default", row=_prelu),
    **{
        f"aten.{ours}.default": _function(theirs)
        for ours, theirs in {
            "abs": "Abs",
            "neg": "Neg",
            "sin": "Sin",
            "cos": "Cos",
            "tan": "Tan",
            "asin": "Asin",
            "acos": "Acos",
            "atan": "Atan",
            "sinh": "Sinh",
            "cosh": "Cosh",
            "asinh": "Asinh",
            "acosh": "Acosh",
            "atanh": "Atanh",
            "log": "Log",
            "exp": "Exp",
            "sqrt": "Sqrt",
            "tanh": "Tanh",
            "sigmoid": "Sigmoid",
            "erf": "Erf",
            "reciprocal": "Reciprocal",
            "absolute": "Abs",
            "negative": "Neg",
            "arcsin": "Asin",
            "arccos": "Acos",
            "arctan": "Atan",
            "arcsinh": "Asinh",
            "arccosh": "Acosh",
            "arctanh": "Atanh",
        }.items()
    },
    "aten.log1p.default": _log1p,
    "aten.log2.default": _logarithm(2.0),
    "aten.log10.default": _logarithm(10.0),
    "aten.floor.default": _rounded("Floor"),
    "aten.ceil.default": _rounded("Ceil"),
    "aten.round.default": _rounded("Round"),
    **each("trunc.default", "fix.default", row=_trunc),
    "aten.isnan.default": lambda w, call: w.op("IsNaN", call.operand().onnx),
    "aten.isinf.default": _is_infinite,
    **each("add.Tensor", "add.Scalar", row=_sum_with_factor("Add")),
    **each("sub.Tensor", "sub.Scalar", "subtract.Tensor", row=_sum_with_factor("Sub")),
    **each("mul.Tensor", "mul.Scalar", "multiply.Tensor", row=_binary("Mul")),
    **each(
        "div.Tensor",
        "div.Scalar",
        "divide.Tensor",
        "true_divide.Tensor",
        row=_binary("Div"),
    ),
    **each(
        "div.Tensor_mode",
        "div.Scalar_mode",
        "divide.Tensor_mode",
        "floor_divide.default",
        "floor_divide.Scalar",
        row=_divided,
    ),
    **each("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor", row=_remainder),
    **each("fmod.Tensor", "fmod.Scalar", row=_fmod),
    **each("maximum.default", row=_binary("Max")),
    **each("minimum.default", row=_binary("Min")),
    **each("pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", row=_pow("self", "exponent")),
    **each("eq.Tensor", "eq.Scalar", row=_compared("Equal")),
    **each("ne.Tensor", "ne.Scalar", "not_equal.Tensor", "not_equal.Scalar", row=_compared("Equal", inverted=True)),
    **each("lt.Tensor", "lt.Scalar", "less.Tensor", "less.Scalar", row=_compared("Less")),
    **each("le.Tensor", "le.Scalar", "less_equal.Tensor", "less_equal.Scalar", row=_compared("LessOrEqual")),
    **each("gt.Tensor", "gt.Scalar", "greater.Tensor", "greater.Scalar", row=_compared("Greater")),
    **each("ge.Tensor", "ge.Scalar", "greater_equal.Tensor", "greater_equal.Scalar", row=_compared("GreaterOrEqual")),
    **{
        f"aten.{stem}.{kind}": _bitwise(theirs)
        for ours, theirs in {"and": "And", "or": "Or", "xor": "Xor"}.items()
        for stem in (f"bitwise_{ours}", f"__{ours}__")
        for kind in ("Tensor", "Scalar")
    },
    **{f"aten.logical_{theirs.lower()}.default": _logical(theirs) for theirs in ("And", "Or", "Xor")},
    "aten.bitwise_not.default": _bitwise_not,
    "aten.logical_not.default": _logical_not,
    **each("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar", row=_where),
    **each("masked_fill.Scalar", "masked_fill.Tensor", row=_masked_fill),
    **each("lerp.Scalar", "lerp.Tensor", row=_lerp),
    "aten.addcmul.default": _addc("Mul"),
    "aten.addcdiv.default": _addc("Div"),
}
"""The rows, by the name of the overload."""
