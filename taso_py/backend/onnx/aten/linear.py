"""Rows of linear algebra: products of matrices and vectors, distances, diagonals."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import chain

from taso_py.backend.onnx.aten.elementwise import each, operand_as, operands_as
from taso_py.backend.onnx.aten.reduction import norm_of
from taso_py.backend.onnx.movement import reshaped
from taso_py.backend.onnx.row import OnnxOperand, OpaqueCall, OpaqueRow
from taso_py.backend.onnx.writer import OnnxValue, Writer, as_number
from taso_py.ir.size import Dim
from taso_py.ir.types import TensorType

_MOST_BY_DIFFERENCE = 25
"""Up to as many rows PyTorch computes the distances between them from differences, and beyond from a product."""


def _einsum(w: Writer, call: OpaqueCall) -> OnnxValue:
    return w.op("Einsum", *(operand.onnx for operand in call.arguments["tensors"]), equation=call.arguments["equation"])


def _product(w: Writer, call: OpaqueCall) -> OnnxValue:
    other = next(name for name in ("mat2", "other", "vec", "tensor") if name in call.arguments)
    return w.op("MatMul", call.operand().onnx, call.operand(other).onnx)


def _product_of_all(w: Writer, call: OpaqueCall) -> OnnxValue:
    first, *others = (matrix.onnx for matrix in call.arguments["matrices"])
    for other in others:
        first = w.op("MatMul", first, other)
    return first


def _outer(w: Writer, call: OpaqueCall) -> OnnxValue:
    dtype = call.types[0].dtype
    column, row = operands_as(w, call, dtype, "self", "vec2")
    return w.op("Mul", w.op("Unsqueeze", column, w.integers([1])), row)


def _added(w: Writer, call: OpaqueCall, product: OnnxValue) -> OnnxValue:
    """Write the sum of multiples of a product and of the operand, which are not read if they are multiplied by 0.

    PyTorch reads the product of ``baddbmm`` in any case.
    """
    dtype, alpha, beta = call.types[0].dtype, call.arguments["alpha"], call.arguments["beta"]
    if alpha == 0 and "batch1" not in call.arguments:
        product = w.op("Expand", w.number(0.0 if dtype.is_floating else 0, dtype), w.dims(call.types[0].dims))
    elif alpha != 1:
        product = w.op("Mul", product, w.number(alpha, dtype))
    if beta == 0:
        return product
    base = call.operand().onnx
    return w.op("Add", base if beta == 1 else w.op("Mul", base, w.number(beta, dtype)), product)


def _added_product(w: Writer, call: OpaqueCall) -> OnnxValue:
    first, second = (name for name in call.arguments if name.startswith(("batch", "mat", "vec")))
    return _added(w, call, w.op("MatMul", call.operand(first).onnx, call.operand(second).onnx))


def _added_products(w: Writer, call: OpaqueCall) -> OnnxValue:
    products = w.op("MatMul", call.operand("batch1").onnx, call.operand("batch2").onnx)
    return _added(w, call, w.op("ReduceSum", products, w.integers([0]), keepdims=0))


def _added_outer(w: Writer, call: OpaqueCall) -> OnnxValue:
    column = w.op("Unsqueeze", call.operand("vec1").onnx, w.integers([1]))
    return _added(w, call, w.op("Mul", column, call.operand("vec2").onnx))


def _power(w: Writer, call: OpaqueCall) -> OnnxValue:
    """Write a power by squaring."""
    square, count = call.operand().onnx, call.arguments["n"]
    if count < 1:
        raise call.refuse("inverts a matrix, or makes one")
    found: OnnxValue | None = None
    while True:
        if count % 2:
            found = square if found is None else w.op("MatMul", found, square)
        count //= 2
        if not count:
            return found or square
        square = w.op("MatMul", square, square)


def _bilinear(w: Writer, call: OpaqueCall) -> OnnxValue:
    """Write a product with the first operand, and that of its rows with the second one."""
    (x, y, weight), bias = map(call.operand, ("input1", "input2", "weight")), call.optional("bias")
    dtype, (outputs, given, other) = x.type.dtype, weight.type.dims
    turned = w.op("Transpose", weight.onnx, perm=[1, 0, 2])
    size = as_number(outputs) * as_number(other)
    matrix = reshaped(w, turned, TensorType(dtype, (given, outputs, other)), (given, size))
    lead = x.type.dims[:-1]
    product = w.op("MatMul", x.onnx, matrix)
    rows = reshaped(w, product, TensorType(dtype, (*lead, size)), (*lead, outputs, other))
    total = w.op("MatMul", rows, w.op("Unsqueeze", y.onnx, w.integers([-1])))
    result = w.op("Squeeze", total, w.integers([-1]))
    return result if bias is None else w.op("Add", result, bias.onnx)


def _distances(w: Writer, call: OpaqueCall) -> OnnxValue:
    """Write the distances of all pairs of rows."""
    x, y, power = call.operand("x1"), call.operand("x2"), call.arguments["p"]
    if power == 2 and _is_by_product(call, x, y):
        return _euclidean(w, x, y)
    apart = w.op("Sub", w.op("Unsqueeze", x.onnx, w.integers([-2])), w.op("Unsqueeze", y.onnx, w.integers([-3])))
    if power in (0, math.inf):
        raise call.refuse("counts differences or takes the greatest one, with rules of its own for NaN")
    return norm_of(w, apart, power, call.types[0].dtype, [-1], keep=0)


def _is_by_product(call: OpaqueCall, x: OnnxOperand, y: OnnxOperand) -> bool:
    mode = call.arguments["compute_mode"] or 0
    counts = [as_number(operand.type.dims[-2]) for operand in (x, y)]
    return mode == 1 or (mode == 0 and max(counts) > _MOST_BY_DIFFERENCE)


def _euclidean(w: Writer, x: OnnxOperand, y: OnnxOperand) -> OnnxValue:
    """Write distances from squares and products, as PyTorch computes many, with the same loss of digits."""
    dtype, last = x.type.dtype, w.integers([-1])
    squares = [w.op("ReduceSum", w.op("Mul", v, v), last, keepdims=1) for v in (x.onnx, y.onnx)]
    ones = [w.op("Expand", w.number(1.0, dtype), w.dims((*v.type.dims[:-1], 1))) for v in (x, y)]
    left = w.op("Concat", w.op("Mul", x.onnx, w.number(-2.0, dtype)), squares[0], ones[0], axis=-1)
    right = w.op("Concat", y.onnx, ones[1], squares[1], axis=-1)
    rank = y.type.rank
    turned = w.op("Transpose", right, perm=[*range(rank - 2), rank - 1, rank - 2])
    return w.op("Sqrt", w.op("Max", w.number(0.0, dtype), w.op("MatMul", left, turned)))


def _cross(w: Writer, call: OpaqueCall) -> OnnxValue:
    (type_,), axis = call.types, call.arguments["dim"]
    if axis is None:
        axis = next(place for place, dim in enumerate(type_.dims) if dim == 3)
    x, y = operands_as(w, call, type_.dtype, "self", "other")

    def turned(value: OnnxValue, order: list[int]) -> OnnxValue:
        return w.op("Gather", value, w.integers(order), axis=axis)

    next_, after = [1, 2, 0], [2, 0, 1]
    forth = w.op("Mul", turned(x, next_), turned(y, after))
    return w.op("Sub", forth, w.op("Mul", turned(x, after), turned(y, next_)))


def _kron(w: Writer, call: OpaqueCall) -> OnnxValue:
    (type_,), operands = call.types, [call.operand(), call.operand("other")]
    rank = max(operand.type.rank for operand in operands)
    sides: list[OnnxValue] = []
    shapes: list[list[Dim]] = []
    for place, operand in enumerate(operands):
        dims: list[Dim] = [1] * (rank - operand.type.rank) + list(operand.type.dims)
        shapes.append(dims)
        pairs = [(dim, 1) if place == 0 else (1, dim) for dim in dims]
        value = operand_as(w, operand, type_.dtype)
        sides.append(reshaped(w, value, TensorType(type_.dtype, operand.type.dims), list(chain(*pairs))))
    apart = TensorType(type_.dtype, tuple(chain(*zip(*shapes, strict=True))))
    return reshaped(w, w.op("Mul", *sides), apart, type_.dims)


def _diagonal_of(w: Writer, value: OnnxValue, type_: TensorType, offset: int) -> OnnxValue:
    """Write a diagonal of the matrices in the last two axes, as steps of one row and one column in one long row."""
    *lead, rows, columns = type_.dims
    height, width = as_number(rows), as_number(columns)
    count = min(height, width - offset) if offset > 0 else min(height + offset, width)
    start = offset if offset > 0 else -offset * width
    line = reshaped(w, value, type_, (*lead, height * width))
    bounds = [[start], [start + (count - 1) * (width + 1) + 1], [-1], [width + 1]]
    return w.op("Slice", line, *map(w.integers, bounds))


def _diagonal(w: Writer, call: OpaqueCall) -> OnnxValue:
    x, arguments = call.operand(), call.arguments
    rank, first, second = x.type.rank, arguments.get("dim1", 0), arguments.get("dim2", 1)
    if rank < 2 or call.types[0].may_be_empty:
        raise call.refuse("makes a matrix, or takes a diagonal without elements")
    axes = [first % rank, second % rank]
    order = [*(axis for axis in range(rank) if axis not in axes), *axes]
    moved = x.onnx if order == list(range(rank)) else w.op("Transpose", x.onnx, perm=order)
    type_ = TensorType(x.type.dtype, tuple(x.type.dims[axis] for axis in order))
    return _diagonal_of(w, moved, type_, arguments["offset"] if "offset" in arguments else arguments["diagonal"])


def _trace(w: Writer, call: OpaqueCall) -> OnnxValue:
    (type_,), x = call.types, call.operand()
    value = operand_as(w, x, type_.dtype)
    line = _diagonal_of(w, value, TensorType(type_.dtype, x.type.dims), 0)
    return w.op("ReduceSum", line, w.integers([0]), keepdims=0)


_PRODUCTS = ("mm", "bmm", "matmul", "mv", "dot", "vdot")

ROWS: Mapping[str, OpaqueRow] = {
    "aten.einsum.default": _einsum,
    **{f"aten.{name}.default": _product for name in _PRODUCTS},
    "aten.chain_matmul.default": _product_of_all,
    **each("outer.default", "ger.default", row=_outer),
    **each("addmm.default", "baddbmm.default", "addmv.default", row=_added_product),
    "aten.addbmm.default": _added_products,
    "aten.addr.default": _added_outer,
    "aten.matrix_power.default": _power,
    "aten.bilinear.default": _bilinear,
    "aten.cdist.default": _distances,
    **each("linalg_cross.default", "cross.default", row=_cross),
    "aten.kron.default": _kron,
    **each("diagonal.default", "diag.default", row=_diagonal),
    "aten.trace.default": _trace,
}
"""The rows, by the name of the overload."""
