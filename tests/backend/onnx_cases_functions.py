"""Elementwise functions made of several operators, as cases for the rows of the lowering to ONNX."""

from __future__ import annotations

import math

import torch

from tests.backend.onnx_calls import Call, J, M, P, X, Y, call, floats, integers, signed

_WIDE = torch.tensor([-math.inf, -90.0, -3.0, -1.0, -0.3, -1e-4, -1e-9, 0.0, 1e-7, 0.02, 0.7, 1.0, 5.0, 88.0, math.inf])
_AXES = torch.tensor([0.0, -0.0, 1.5, -2.0, math.inf, -math.inf, 1e-30, -1e30])
_GRID = _AXES.unsqueeze(1).expand(8, 8), _AXES.expand(8, 8)
"""All pairs of zeros, infinities, and numbers."""
_TIES = torch.tensor([-2.5, -0.25, 0.0, 0.25, 0.125, 1.5, 1234.567])


def _of_one() -> list[Call]:
    names = "absolute negative arcsin arccos arctan arcsinh arctanh fix"
    return [
        *(call(f"{name}.default", X.tanh()) for name in names.split()),
        call("arccosh.default", P + 1),
        call("fix.default", M),
        call("expm1.default", _WIDE),
        call("expm1.default", M),
        call("exp2.default", _WIDE),
        call("exp2.default", J),
        call("frac.default", _TIES),
        call("sinc.default", torch.cat([_TIES, 3 * X.flatten()])),
        call("sinc.default", M),
        call("logit.default", X.sigmoid()),
        call("logit.default", torch.tensor([-0.5, 0.0, 0.1, 0.6, 1.0, 2.0]), 0.2),
        call("logit.default", torch.tensor([0.0, 0.5, 1.0])),
        call("deg2rad.default", 100 * X),
        call("rad2deg.default", X),
        call("rad2deg.default", M),
        *(call("round.decimals", 100 * X, decimals=decimals) for decimals in (2, 0, -1)),
        *(call(f"{name}.default", torch.tensor([1.0, math.nan, math.inf, -math.inf])) for name in _QUESTIONS),
        *(call(f"{name}.default", M) for name in _QUESTIONS),
        *(call("nan_to_num.default", torch.tensor([1.0, math.nan, math.inf, -math.inf]), *given) for given in _NUMBERS),
        call("nan_to_num.default", torch.tensor([1.0, math.nan, math.inf, -math.inf]).half()),
        call("nan_to_num.default", M),
        call("sign.default", torch.tensor([-math.inf, -2.0, -0.0, 0.0, 3.0, math.inf, math.nan])),
        call("sgn.default", signed(7).int()),
        call("sgn.default", torch.tensor([-2.0, math.nan])),
        call("softshrink.default", torch.tensor([-math.inf, -1.0, -0.5, 0.0, 0.4, 0.7, math.inf, math.nan])),
        call("softshrink.default", X, 0.1),
        call("hardshrink.default", torch.tensor([-math.inf, -1.0, -0.5, 0.0, 0.4, 0.7, math.inf, math.nan])),
        call("hardshrink.default", X, 0.1),
        call("rrelu.default", X),
        call("rrelu.default", X, 0.1, 0.3),
    ]


_QUESTIONS = ("isfinite", "isposinf", "isneginf")
_NUMBERS = ((), (2.0,), (None, 5.0, -6.0), (0.5, math.inf, 1.0))


def _of_two() -> list[Call]:
    nan, numbers = torch.tensor([math.nan, 1.0, math.nan, -2.0]), torch.tensor([3.0, math.nan, math.nan, 4.0])
    zeros, logs = torch.tensor([0.0, 0.0, 0.0, 2.0, -1.0]), torch.tensor([0.0, math.inf, math.nan, 0.5, 0.0])
    return [
        *(call(f"{name}.default", *_GRID) for name in ("atan2", "arctan2", "hypot", "logaddexp", "logaddexp2")),
        *(call(f"{name}.default", 3 * X, Y) for name in ("atan2", "hypot", "logaddexp", "logaddexp2")),
        call("atan2.default", M, J),
        call("atan2.default", X, Y[0]),
        call("atan2.default", nan, numbers),
        call("hypot.default", 1e30 * X, 1e30 * Y),
        call("hypot.default", nan, numbers),
        call("hypot.default", torch.tensor([math.inf, math.nan]), torch.tensor([math.nan, -math.inf])),
        *(call(f"{name}.default", a, b) for name in ("fmax", "fmin") for a, b in ((nan, numbers), (X, Y), (M, J))),
        call("xlogy.Tensor", zeros, logs),
        call("xlogy.Scalar_Self", 2.0, P),
        call("xlogy.Scalar_Other", X, 3.0),
        call("special_xlog1py.default", torch.tensor([0.0, 2.0, -1.0]), torch.tensor([-1.0, 1e-5, -1.0])),
        call("heaviside.default", torch.tensor([-1.0, 0.0, 2.0, math.nan]), torch.tensor(0.5)),
        call("heaviside.default", M, J),
        call("rsub.Tensor", X, Y, alpha=2),
        call("rsub.Tensor", M, J),
        call("rsub.Scalar", M, 5, 3),
        call("ldexp.Tensor", X, signed(2, 3)),
        *(call(f"{name}.Tensor", X, Y) for name in ("subtract", "multiply", "divide", "true_divide")),
        call("true_divide.Tensor", M, J),
        *(call(f"{name}.{kind}", M, other) for name in _COMPARED for kind, other in (("Tensor", J), ("Scalar", 0.5))),
        *(call(f"{name}.Scalar", integers(5) - 2, 3) for name in ("__lshift__", "__rshift__")),
        call("bitwise_left_shift.Tensor_Scalar", signed(7).int(), 4),
        call("bitwise_right_shift.Tensor_Scalar", signed(7).int(), 2),
    ]


_COMPARED = ("greater", "greater_equal", "less", "less_equal", "not_equal")


def _quotients() -> list[Call]:
    """Floating-point divisions whose quotient is not rounded up to an integer, or by a power of two."""
    x, y = 7.3 * floats(4, 5), floats(4, 5, seed=1)
    return [
        call("floor_divide.default", x, y),
        call("floor_divide.default", x, torch.tensor(-0.5)),
        call("div.Tensor_mode", torch.tensor([1.0, -1.0, 0.0]), torch.tensor(0.0), rounding_mode="floor"),
        call("divide.Tensor_mode", x, y, rounding_mode="floor"),
        call("divide.Tensor_mode", x, y, rounding_mode="trunc"),
        call("remainder.Scalar_Tensor", 5.0, y),
        call("remainder.Scalar", x, -0.25),
    ]


CASES = [*_of_one(), *_of_two(), *_quotients()]
