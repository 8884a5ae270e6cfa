"""Elementwise operators, with broadcasting; casts.

Invariant: the output element at an index depends on the operands' elements at the same (broadcast) index only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import inf
from typing import ClassVar

from taso_py.ir.operator import Constant
from taso_py.ir.size import Dim, Poly
from taso_py.ir.traits import Rounding
from taso_py.ir.types import DType, TensorType
from taso_py.ir.unify import STRICT, Unifier
from taso_py.ops.base import TensorOperator, broadcast, broadcast_read, check_operands, common_shape, require
from taso_py.ops.functions import IRRATIONALS, RECIPROCALS, cast_function
from taso_py.ops.scalar import (
    Apply,
    Condition,
    Guard,
    Index,
    Irrational,
    Operand,
    Scalar,
    greatest,
    number,
    reciprocal,
)

MOST_FACTORS = 16
"""The greatest exponent of a power."""


@dataclass(frozen=True)
class _Elementwise(TensorOperator):
    is_elementwise = True
    keeps_format = True


@dataclass(frozen=True)
class _Binary(_Elementwise):
    arity = (2, 2)
    combine: ClassVar[Callable[[Scalar, Scalar], Scalar]]

    def infer(self, inputs: Sequence[TensorType], unifier: Unifier = STRICT) -> tuple[TensorType, ...]:
        dtype = check_operands(self, inputs)
        return (TensorType(dtype, broadcast(inputs[0].shape, inputs[1].shape, unifier, self.name)),)

    def define(self, operands: Sequence[Operand], out: Index) -> Scalar:
        shape = broadcast(operands[0].shape, operands[1].shape, STRICT, self.name)
        left, right = (broadcast_read(operand, shape, out) for operand in operands)
        return type(self).combine(left, right)


@dataclass(frozen=True)
class Add(_Binary):
    """``a + b``."""

    name = "add"
    rounding = Rounding.BEYOND_INTEGERS
    commutative = True
    combine = staticmethod(lambda a, b: a + b)


@dataclass(frozen=True)
class Mul(_Binary):
    """``a * b``; the scalar multiple is a product with a constant."""

    name = "mul"
    multiplies = True
    rounding = Rounding.BEYOND_INTEGERS
    commutative = True
    combine = staticmethod(lambda a, b: a * b)


@dataclass(frozen=True)
class Sub(_Binary):
    """``a - b``."""

    name = "sub"
    rounding = Rounding.BEYOND_INTEGERS
    combine = staticmethod(lambda a, b: a - b)


@dataclass(frozen=True)
class Div(_Binary):
    """``a / b``, of floating-point operands."""

    name = "div"
    multiplies = True
    applies = frozenset({"reciprocal"})
    combine = staticmethod(lambda a, b: a * reciprocal(b))

    def infer(self, inputs: Sequence[TensorType], unifier: Unifier = STRICT) -> tuple[TensorType, ...]:
        require(check_operands(self, inputs).is_floating, "div is defined on floating-point operands")
        return super().infer(inputs, unifier)


def _greater(a: Scalar, b: Scalar) -> Scalar:
    """Return the greater of two expressions."""

    def chosen(which: Dim) -> Scalar:
        return Guard((Condition(which, True),), a) + Guard((Condition(which - 1, True),), b)

    return greatest([2], chosen)


def _negative(scalar: Scalar) -> Scalar:
    return number(-1) * scalar


def _lesser(a: Scalar, b: Scalar) -> Scalar:
    """Return the lesser of two expressions."""
    return _negative(_greater(_negative(a), _negative(b)))


@dataclass(frozen=True)
class Maximum(_Binary):
    """The greater of ``a`` and ``b``; NaN where either is."""

    name = "maximum"
    rounding = Rounding.NEVER
    commutative = True
    combine = staticmethod(_greater)


@dataclass(frozen=True)
class Minimum(_Binary):
    """The lesser of ``a`` and ``b``; NaN where either is."""

    name = "minimum"
    rounding = Rounding.NEVER
    commutative = True
    combine = staticmethod(_lesser)


@dataclass(frozen=True)
class Addcmul(_Elementwise):
    """``a + b * c``, which kernels round once, or after the product as well."""

    name = "addcmul"
    arity = (3, 3)
    multiplies = True
    rounding = Rounding.BEYOND_INTEGERS

    def infer(self, inputs: Sequence[TensorType], unifier: Unifier = STRICT) -> tuple[TensorType, ...]:
        dtype = check_operands(self, inputs)
        require(dtype.is_floating, "addcmul is defined on floating-point operands")
        return (TensorType(dtype, common_shape([type_.shape for type_ in inputs], unifier, self.name)),)

    def define(self, operands: Sequence[Operand], out: Index) -> Scalar:
        shape = common_shape([operand.shape for operand in operands], STRICT, self.name)
        summand, left, right = (broadcast_read(operand, shape, out) for operand in operands)
        return summand + left * right


@dataclass(frozen=True)
class _Unary(_Elementwise):
    def infer(self, inputs: Sequence[TensorType], unifier: Unifier = STRICT) -> tuple[TensorType, ...]:
        require(check_operands(self, inputs).is_floating, f"{self.name} is defined on floating-point operands")
        return (inputs[0],)

    def define(self, operands: Sequence[Operand], out: Index) -> Scalar:
        return self.scalar(operands[0](*out))

    def scalar(self, x: Scalar) -> Scalar:
        """Return the function's value at an element."""
        return Apply(self.name, x)


@dataclass(frozen=True)
class Relu(_Unary):
    """``max(x, 0)``."""

    name = "relu"
    applies = frozenset({name})
    rounding = Rounding.NEVER
    epilogue = "relu"


@dataclass(frozen=True)
class Sigmoid(_Unary):
    """``1 / (1 + exp(-x))``."""

    name = "sigmoid"
    applies = frozenset({name})
    epilogue = "sigmoid"


@dataclass(frozen=True)
class Tanh(_Unary):
    """The hyperbolic tangent."""

    name = "tanh"
    applies = frozenset({name})
    epilogue = "tanh"


@dataclass(frozen=True)
class Exp(_Unary):
    """The exponential function."""

    name = "exp"
    applies = frozenset({name})


@dataclass(frozen=True)
class Log(_Unary):
    """The natural logarithm."""

    name = "log"
    applies = frozenset({name})


@dataclass(frozen=True)
class Log1p(_Unary):
    """``log(1 + x)``, accurate near zero."""

    name = "log1p"
    applies = frozenset({"log"})

    def scalar(self, x: Scalar) -> Scalar:
        return Apply("log", number(1) + x)


@dataclass(frozen=True)
class Abs(_Unary):
    """The greater of ``x`` and ``-x``."""

    name = "abs"
    rounding = Rounding.NEVER

    def scalar(self, x: Scalar) -> Scalar:
        return _greater(x, _negative(x))


@dataclass(frozen=True)
class Sqrt(_Unary):
    """The square root."""

    name = "sqrt"
    applies = frozenset({name})


@dataclass(frozen=True)
class Rsqrt(_Unary):
    """``1 / sqrt(x)``."""

    name = "rsqrt"
    applies = frozenset({name})


@dataclass(frozen=True)
class Pow(_Unary):
    """``x`` multiplied by itself, ``exponent`` factors in all; kernels compute it as a power of real numbers."""

    name = "pow"
    rounding = Rounding.BEYOND_INTEGERS
    exponent: int = 4

    def __post_init__(self) -> None:
        if not 2 <= self.exponent <= MOST_FACTORS:
            raise ValueError(f"pow takes whole exponents from 2 to {MOST_FACTORS}, not {self.exponent}")

    def scalar(self, x: Scalar) -> Scalar:
        product = x
        for _ in range(self.exponent - 1):
            product = product * x
        return product


@dataclass(frozen=True)
class Erf(_Unary):
    """The error function: twice the area under the normal curve of variance 1/2 from 0 to x."""

    name = "erf"
    applies = frozenset({name})


@dataclass(frozen=True)
class Sin(_Unary):
    """The sine of an angle in radians."""

    name = "sin"
    applies = frozenset({name})


@dataclass(frozen=True)
class Cos(_Unary):
    """The cosine of an angle in radians."""

    name = "cos"
    applies = frozenset({name})


@dataclass(frozen=True)
class Silu(_Unary):
    """``x * sigmoid(x)`` (Elfwing et al. 2017)."""

    name = "silu"
    applies = frozenset({"sigmoid"})
    epilogue = "swish"

    def scalar(self, x: Scalar) -> Scalar:
        return x * Apply("sigmoid", x)


@dataclass(frozen=True)
class Gelu(_Unary):
    """``x * Phi(x)``, with the normal distribution function Phi by erf or approximated by tanh.

    See Hendrycks and Gimpel 2016, section 2.
    """

    name = "gelu"
    applies = frozenset({"erf", "tanh"})
    epilogue = "gelu"
    approximate: str = "none"

    def __post_init__(self) -> None:
        if self.approximate not in ("none", "tanh"):
            raise ValueError(f"gelu knows the approximations none and tanh, not {self.approximate}")

    def scalar(self, x: Scalar) -> Scalar:
        if self.approximate == "none":
            return number(0.5) * x * (number(1) + Apply("erf", x * reciprocal(Irrational("sqrt(2)"))))
        inner = Irrational("sqrt(2/pi)") * (x + number(0.044715) * x * x * x)
        return number(0.5) * x * (number(1) + Apply("tanh", inner))


@dataclass(frozen=True)
class Hardtanh(_Unary):
    """``min(max(x, min_val), max_val)``; with 0 and 6, relu6."""

    name = "hardtanh"
    rounding = Rounding.NEVER
    epilogue = "hardtanh"
    min_val: float = -1.0
    max_val: float = 1.0

    def __post_init__(self) -> None:
        if not -inf < self.min_val <= self.max_val < inf:
            raise ValueError(f"hardtanh needs finite limits in order, not {self.min_val} and {self.max_val}")

    def scalar(self, x: Scalar) -> Scalar:
        return _lesser(_greater(x, number(self.min_val)), number(self.max_val))


def _above(x: Scalar, least: float) -> Scalar:
    """``max(x - number, 0)``."""
    return Apply("relu", x - number(least))


@dataclass(frozen=True)
class Hardsigmoid(_Unary):
    """``min(max(x + 3, 0), 6) / 6`` (Courbariaux et al. 2015)."""

    name = "hardsigmoid"
    applies = frozenset({"relu"})
    epilogue = "hardsigmoid"

    def scalar(self, x: Scalar) -> Scalar:
        return (_above(x, -3) - _above(x, 3)) * number(Fraction(1, 6))


@dataclass(frozen=True)
class Hardswish(_Unary):
    """``x * hardsigmoid(x)`` (Howard et al. 2019, section 5.2)."""

    name = "hardswish"
    applies = frozenset({"relu"})
    epilogue = "hardswish"

    def scalar(self, x: Scalar) -> Scalar:
        return x * Hardsigmoid().scalar(x)


@dataclass(frozen=True)
class LeakyRelu(_Unary):
    """``x`` where that is positive, ``negative_slope * x`` elsewhere (Maas et al. 2013)."""

    name = "leaky_relu"
    applies = frozenset({"relu"})
    epilogue = "leaky_relu"
    negative_slope: float | Poly = 0.01

    def scalar(self, x: Scalar) -> Scalar:
        return Apply("relu", x) - number(self.negative_slope) * Apply("relu", number(-1) * x)


@dataclass(frozen=True)
class Elu(_Unary):
    """``scale * x`` where x is positive, ``scale * alpha * (exp(x) - 1)`` elsewhere (Clevert et al. 2015)."""

    name = "elu"
    applies = frozenset({"relu", "exp"})
    alpha: float = 1.0
    scale: float = 1.0

    def scalar(self, x: Scalar) -> Scalar:
        below = Apply("exp", number(-1) * Apply("relu", number(-1) * x)) - number(1)
        return number(self.scale) * (Apply("relu", x) + number(self.alpha) * below)


@dataclass(frozen=True)
class Celu(_Unary):
    """x where it is positive, ``alpha * (exp(x / alpha) - 1)`` elsewhere, for a positive alpha (Barron 2017)."""

    name = "celu"
    applies = frozenset({"relu", "exp"})
    alpha: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.alpha < inf:
            raise ValueError(f"celu needs a positive, finite alpha, not {self.alpha}")

    def scalar(self, x: Scalar) -> Scalar:
        below = Apply("exp", number(-1 / Fraction(self.alpha)) * Apply("relu", number(-1) * x)) - number(1)
        return Apply("relu", x) + number(self.alpha) * below


@dataclass(frozen=True)
class Softplus(_Unary):
    """``log(1 + exp(beta * x)) / beta`` (Dugas et al. 2001), for a positive beta."""

    name = "softplus"
    applies = frozenset({"log", "exp"})
    beta: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.beta < inf:
            raise ValueError(f"softplus needs a positive, finite beta, not {self.beta}")

    def scalar(self, x: Scalar) -> Scalar:
        return Apply("log", number(1) + Apply("exp", number(self.beta) * x)) * number(1 / Fraction(self.beta))


@dataclass(frozen=True)
class Mish(_Unary):
    """``x * tanh(softplus(x))`` (Misra 2019)."""

    name = "mish"
    applies = frozenset({"log", "exp", "tanh"})

    def scalar(self, x: Scalar) -> Scalar:
        return x * Apply("tanh", Softplus().scalar(x))


@dataclass(frozen=True)
class Cast(_Elementwise):
    """Conversion to another element type: rounding, so an opaque function in the definition."""

    name = "cast"
    rounding = Rounding.NEVER
    dtype: DType

    def infer(self, inputs: Sequence[TensorType], unifier: Unifier = STRICT) -> tuple[TensorType, ...]:
        check_operands(self, inputs)
        return (TensorType(self.dtype, inputs[0].shape),)

    def define(self, operands: Sequence[Operand], out: Index) -> Scalar:
        return Apply(cast_function(operands[0].type.dtype, self.dtype), operands[0](*out))


def define_constant(op: Constant) -> Scalar:
    """Return the definition of the leaf operator that holds a number; it must be finite.

    A number that equals a rounded constant, or its reciprocal, stands for it: the difference is one rounding, or two
    if the reciprocal is computed from the rounded constant.
    """
    for name, value in IRRATIONALS.items():
        if op.value == value:
            return Irrational(name)
        if op.value in RECIPROCALS[name]:
            return reciprocal(Irrational(name))
    return number(op.value)
