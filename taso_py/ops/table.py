"""The one table of operators, by name.

Invariant: every operator that the grammar can name is in ``OPERATORS``; those with a definition are in ``DEFINED``.
"""

from __future__ import annotations

from typing import TypeVar

from taso_py.ir.errors import InvariantError
from taso_py.ir.graph import Graph
from taso_py.ir.operator import LEAVES, Operator
from taso_py.ir.parse import parse_graph as _parse_graph
from taso_py.ops.base import TensorOperator
from taso_py.ops.choice import (
    Equal,
    Greater,
    GreaterEqual,
    LogicalAnd,
    LogicalNot,
    LogicalOr,
    NotEqual,
    Where,
)
from taso_py.ops.contraction import Baddbmm, Conv2d, Conv3d, ConvTranspose2d, Linear, Matmul
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
from taso_py.ops.movement import (
    Concat,
    Contiguous,
    Diagonal,
    DiagonalMatrix,
    Enlarge,
    Expand,
    Flip,
    Pad,
    Permute,
    Reshape,
    Slice,
    UpsampleNearest2d,
)
from taso_py.ops.normalization import Attention, BatchNorm, GroupNorm, InstanceNorm, LayerNorm, RmsNorm, Softmax
from taso_py.ops.opaque import Opaque
from taso_py.ops.pooling import AdaptiveAvgPool2d, AvgPool2d, MaxPool2d
from taso_py.ops.reduction import Cumsum, Max, Mean, Sum, VectorNorm
from taso_py.ops.resizing import UpsampleBilinear2d
from taso_py.ops.selection import Gather, Take

DEFINED: dict[str, type[TensorOperator]] = {
    op.name: op
    for op in (
        *(Add, Mul, Sub, Div, Addcmul, Relu, Sigmoid, Tanh, Exp, Erf, Sqrt, Rsqrt, Silu, Gelu, Cast, Sin, Cos),
        *(Maximum, Minimum, Abs, Log, Log1p, Pow),
        *(Hardtanh, Hardsigmoid, Hardswish, LeakyRelu, Celu, Elu, Softplus, Mish),
        *(Where, Greater, GreaterEqual, Equal, NotEqual, LogicalAnd, LogicalOr, LogicalNot),
        *(Matmul, Baddbmm, Linear, Conv2d, Conv3d, ConvTranspose2d),
        *(AvgPool2d, MaxPool2d, AdaptiveAvgPool2d),
        *(BatchNorm, GroupNorm, InstanceNorm, LayerNorm, RmsNorm, Softmax, Attention),
        *(Concat, Slice, Flip, Diagonal, DiagonalMatrix, Permute, Reshape, Expand, UpsampleNearest2d),
        *(Pad, Enlarge, Contiguous, UpsampleBilinear2d),
        *(Sum, Mean, Max, VectorNorm, Cumsum),
        *(Take, Gather),
    )
}

OPERATORS: dict[str, type[Operator]] = {**{op.name: op for op in (*LEAVES, Opaque)}, **DEFINED}

_Op = TypeVar("_Op", bound=type[TensorOperator])


def declare(op: _Op) -> _Op:
    """Add a custom operator to the table, so that texts may name it; a decorator.

    Raises:
        InvariantError: another operator has this name.
    """
    if OPERATORS.setdefault(op.name, op) is not op:
        raise InvariantError(f"an operator is called {op.name} already")
    DEFINED[op.name] = op
    return op


def parse_graph(text: str) -> Graph:
    """Parse one graph in the grammar of :mod:`taso_py.ir.text`, with the operators of the table."""
    return _parse_graph(text, OPERATORS)
