"""The scalar functions and constants that definitions name, as real numbers, with numpy.

Invariant: every name that a definition in :mod:`taso_py.ops` uses in ``Apply`` or ``Irrational`` has a value here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from taso_py.ir.errors import InvariantError
from taso_py.ir.types import DType

Floats: TypeAlias = NDArray[np.float64]

IRRATIONALS: Mapping[str, float] = {"sqrt(2/pi)": math.sqrt(2 / math.pi), "sqrt(2)": math.sqrt(2)}
"""The constants' values, rounded to double precision, by name."""

RECIPROCALS: Mapping[str, tuple[float, ...]] = {
    "sqrt(2/pi)": (1 / math.sqrt(2 / math.pi),),
    "sqrt(2)": (math.sqrt(0.5), 1 / math.sqrt(2)),
}
"""Accepted values for the reciprocal of a constant: the nearest double, and one over the nearest to the constant."""

_erf = np.frompyfunc(math.erf, 1, 1)

_FUNCTIONS: Mapping[str, Callable[[Floats], Floats]] = {
    "relu": lambda x: np.maximum(x, 0.0),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "reciprocal": lambda x: 1 / x,
    "erf": lambda x: np.asarray(_erf(x), dtype=np.float64),
    "sin": np.sin,
    "cos": np.cos,
}

COMPOSED: Mapping[str, Callable[[Callable[[str, Floats], Floats], Floats], Floats]] = {
    "rsqrt": lambda apply, x: apply("reciprocal", apply("sqrt", x)),
    "sigmoid": lambda apply, x: apply("reciprocal", 1 + apply("exp", -x)),
}
"""Functions that are compositions of others, which are applied by name."""

TRANSCENDENTAL = frozenset({"sigmoid", "tanh", "exp", "log", "erf", "sin", "cos"})
"""Functions that are approximated, unlike roots and quotients, which are rounded correctly."""

CAST = "cast_"
"""How the names of conversions between types of elements begin."""

_ROUNDING: Mapping[DType, type[np.generic]] = {
    DType.F16: np.float16,
    DType.F32: np.float32,
    DType.F64: np.float64,
    DType.BOOL: np.bool_,
    DType.U8: np.uint8,
    DType.I8: np.int8,
    DType.I16: np.int16,
    DType.I32: np.int32,
    DType.I64: np.int64,
    DType.U16: np.uint16,
    DType.U32: np.uint32,
    DType.U64: np.uint64,
}


def cast_function(before: DType, after: DType) -> str:
    """Return the name of the function that converts elements from one type to another."""
    return f"{CAST}{before}_{after}"


def types_of_cast(name: str) -> tuple[DType, DType]:
    """Return the types that a function of :func:`cast_function` converts from and to."""
    before, after = name.removeprefix(CAST).split("_")
    return DType(before), DType(after)


def real_function(name: str) -> Callable[[Floats], Floats]:
    """Return the function of that name.

    Raises:
        InvariantError: there is none, e.g. a cast to an element type that numpy does not know.
    """
    if name in _FUNCTIONS:
        return _FUNCTIONS[name]
    if name.startswith(CAST):
        _, dtype = types_of_cast(name)
        if dtype is DType.BF16:
            return _to_bf16
        if dtype in _ROUNDING:
            return lambda x: x.astype(_ROUNDING[dtype]).astype(np.float64)
    raise InvariantError(f"the function {name} cannot be evaluated over the reals")


def _to_bf16(x: Floats) -> Floats:
    """Round to bfloat16, ties to even."""
    bits = x.astype(np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return rounded.view(np.float32).astype(np.float64)
