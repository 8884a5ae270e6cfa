"""Import of pooling and reductions.

Invariant: other divisors and returned indices stay opaque, and so do windows that might lie beyond the padding, which
PyTorch leaves out. ``ceil_mode`` is taken for what it is only where it makes the result larger.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from taso_py.frontend.call import AtenCall, Result, apply, negative
from taso_py.ir.node import Value
from taso_py.ir.size import Dim
from taso_py.ops.elementwise import Abs
from taso_py.ops.movement import Reshape
from taso_py.ops.pooling import AdaptiveAvgPool2d, AvgPool2d, MaxPool2d
from taso_py.ops.reduction import Cumsum, Max, Mean, Sum, VectorNorm


def _stride(call: AtenCall) -> tuple[int, int]:
    return call.pair("stride") if call["stride"] else call.pair("kernel_size")


def _avg_pool2d(call: AtenCall) -> Result:
    call.require(call["divisor_override"] is None)
    op = AvgPool2d(call.pair("kernel_size"), _stride(call), call.pair("padding"), bool(call["count_include_pad"]))
    return _pooled(call, op)


def _max_pool2d(call: AtenCall) -> Value:
    op = MaxPool2d(call.pair("kernel_size"), _stride(call), call.pair("padding"), call.pair("dilation"))
    return _pooled(call, op)


def _pooled(call: AtenCall, op: AvgPool2d | MaxPool2d) -> Value:
    found = apply(op, call.value("self"))
    if not call["ceil_mode"] or found.type.dims[-2:] == _counts(call):
        return found
    return apply(replace(op, ceil=True), call.value("self"))


def _counts(call: AtenCall) -> tuple[Dim, Dim]:
    """Return the numbers of windows along both axes of an image; a line has one row."""
    *_, rows, columns = call.types[0].dims if call.types[0].rank == 4 else (1, *call.types[0].dims[-1:])
    return rows, columns


def _max_pool2d_with_indices(call: AtenCall) -> Result:
    call.require(call.read <= {0})
    return [_max_pool2d(call), None]


def _as_image(row: Callable[[AtenCall], Result]) -> Callable[[AtenCall], Result]:
    """Return the row of pooling along a line, which is that of an image of height one."""
    of_rows = {"kernel_size": 1, "stride": 1, "padding": 0, "dilation": 1, "output_size": 1}

    def pooling(call: AtenCall) -> Result:
        x, arguments = call.value("self"), dict(call.arguments)
        call.require(x.type.rank == 3)
        for name, number in of_rows.items():
            if arguments.get(name):
                arguments[name] = [number, call.pair(name)[0]]
        *lead, length = x.type.dims
        arguments["self"] = apply(Reshape((*lead, 1, length)), x)
        pooled = row(replace(call, arguments={"divisor_override": None, **arguments}))
        call.require(isinstance(pooled, Value))
        assert isinstance(pooled, Value)
        return apply(Reshape(call.types[0].dims), pooled)

    return pooling


def _adaptive_avg_pool2d(call: AtenCall) -> Result:
    return apply(AdaptiveAvgPool2d(call.pair("output_size")), call.value("self"))


def _reduction(op_type: type[Sum] | type[Mean] | type[Max]) -> Callable[[AtenCall], Result]:
    def row(call: AtenCall) -> Result:
        x = call.value("self")
        # Another element type given is another way of computing, not a cast before or after.
        call.require(call.types[0].dtype is x.type.dtype)
        axes = call.arguments.get("dim") or range(x.type.rank)
        axes = [axes] if isinstance(axes, int) else axes
        op = op_type(tuple(sorted(negative(axis, x.type.rank) for axis in axes)), bool(call.arguments.get("keepdim")))
        return apply(op, x)

    return row


def _norm(order: str) -> Callable[[AtenCall], Result]:
    """Return the row of a norm of vectors whose order has this name; none stands for 2.

    That of order infinity selects a magnitude, which rounds nothing.
    """

    def row(call: AtenCall) -> Result:
        x, power = call.value("self"), 2 if call[order] is None else call[order]
        call.require(call.types[0].dtype is x.type.dtype)
        axes = call.arguments.get("dim") or range(x.type.rank)
        along = tuple(sorted(negative(axis, x.type.rank) for axis in axes))
        keeps = bool(call.arguments.get("keepdim"))
        if power == math.inf:
            return apply(Max(along, keeps), apply(Abs(), x))
        call.require(power in (1, 2))
        return apply(VectorNorm(along, keeps, int(power)), x)

    return row


def _linalg_norm(call: AtenCall) -> Result:
    """Import a norm that is one of vectors: of matrices there are others of the same order."""
    axes, rank = call["dim"], call.value("self").type.rank
    call.require(call["ord"] is None or (rank if axes is None else len(axes)) == 1)
    return _norm("ord")(call)


def _cumsum(call: AtenCall) -> Result:
    x = call.value("self")
    # Another element type given is another way of computing, not a cast before or after.
    call.require(call.types[0].dtype is x.type.dtype)
    return apply(Cumsum(call.axis("dim", x)), x)


def _greatest(call: AtenCall) -> Result:
    """Import the maximum along an axis where nothing reads its index."""
    call.require(call.read <= {0})
    return [apply(Max((call.axis("dim", call.value("self")),), bool(call["keepdim"])), call.value("self")), None]


ROWS: Mapping[str, Callable[[AtenCall], Result]] = {
    "aten.avg_pool2d.default": _avg_pool2d,
    "aten.max_pool2d.default": _max_pool2d,
    "aten.max_pool2d_with_indices.default": _max_pool2d_with_indices,
    "aten.avg_pool1d.default": _as_image(_avg_pool2d),
    "aten.max_pool1d.default": _as_image(_max_pool2d),
    "aten.adaptive_avg_pool1d.default": _as_image(_adaptive_avg_pool2d),
    "aten.adaptive_avg_pool2d.default": _adaptive_avg_pool2d,
    "aten._adaptive_avg_pool2d.default": _adaptive_avg_pool2d,
    "aten.sum.default": _reduction(Sum),
    "aten.sum.dim_IntList": _reduction(Sum),
    "aten.mean.default": _reduction(Mean),
    "aten.mean.dim": _reduction(Mean),
    "aten.amax.default": _reduction(Max),
    "aten.max.dim": _greatest,
    "aten.cumsum.default": _cumsum,
    "aten.linalg_vector_norm.default": _norm("ord"),
    "aten.norm.ScalarOpt_dim": _norm("p"),
    "aten.norm.Scalar": _norm("p"),
    "aten.linalg_norm.default": _linalg_norm,
}
"""One row per ATen overload."""
