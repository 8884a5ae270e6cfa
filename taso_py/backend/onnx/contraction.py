"""Rows of matrix products and convolution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from taso_py.backend.onnx.row import Row
from taso_py.backend.onnx.writer import OnnxValue, Writer, as_float, as_number
from taso_py.ir.node import Node, Value
from taso_py.ir.operator import Operator, Weight
from taso_py.ops.contraction import Baddbmm, Conv2d, Conv3d, ConvTranspose2d, Linear, Matmul


def _matmul(w: Writer, op: Matmul, node: Node, operands: Sequence[OnnxValue]) -> OnnxValue:
    return w.op("MatMul", *operands)


def _baddbmm(w: Writer, op: Baddbmm, node: Node, operands: Sequence[OnnxValue]) -> OnnxValue:
    summand, left, right = operands
    alpha, beta = as_float(op.alpha), as_float(op.beta)
    if node.types[0].rank == 2:
        return w.op("Gemm", left, right, summand, alpha=alpha, beta=beta)
    dtype, product = node.types[0].dtype, w.op("MatMul", left, right)
    product = product if alpha == 1 else w.op("Mul", product, w.number(alpha, dtype))
    return w.op("Add", summand if beta == 1 else w.op("Mul", summand, w.number(beta, dtype)), product)


def _linear(w: Writer, op: Linear, node: Node, operands: Sequence[OnnxValue]) -> OnnxValue:
    if node.inputs[0].type.rank == 2:
        return w.op("Gemm", *operands, transB=1)
    product = w.op("MatMul", operands[0], _transposed(w, node.inputs[1], operands[1]))
    return w.op("Add", product, operands[2]) if len(operands) == 3 else product


def _transposed(w: Writer, value: Value, operand: OnnxValue) -> OnnxValue:
    """Write a matrix of weights, transposed: as an initializer, unless other readers need it as it is."""
    op = value.node.op
    if isinstance(op, Weight) and w.is_read_only_as(value, lambda reader: _transposes(reader, value)):
        return w.weight(op, transposed=True)
    return w.op("Transpose", operand, perm=[1, 0])


def _transposes(reader: Node, weight: Value) -> bool:
    """Return whether a node reads a weight only transposed."""
    others = [value for place, value in enumerate(reader.inputs) if place != 1]
    return isinstance(reader.op, Linear) and reader.inputs[0].type.rank != 2 and weight not in others


def _convolution(w: Writer, op: Conv2d | Conv3d, node: Node, operands: Sequence[OnnxValue]) -> OnnxValue:
    padding = [as_number(pad) for pad in op.padding]
    return w.op(
        "Conv",
        *operands,
        strides=[as_number(step) for step in op.stride],
        pads=[*padding, *padding],
        dilations=[as_number(step) for step in op.dilation],
        group=as_number(op.groups),
    )


def _conv_transpose2d(w: Writer, op: ConvTranspose2d, node: Node, operands: Sequence[OnnxValue]) -> OnnxValue:
    padding = [as_number(pad) for pad in op.padding]
    return w.op(
        "ConvTranspose",
        *operands,
        strides=[as_number(step) for step in op.stride],
        pads=[*padding, *padding],
        output_padding=list(op.output_padding),
        dilations=[as_number(step) for step in op.dilation],
        group=as_number(op.groups),
    )


ROWS: Mapping[type[Operator], Row] = {
    Matmul: _matmul,
    Baddbmm: _baddbmm,
    Linear: _linear,
    Conv2d: _convolution,
    Conv3d: _convolution,
    ConvTranspose2d: _conv_transpose2d,
}
"""The rows, by the class of the operator."""
