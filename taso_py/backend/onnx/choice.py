"""Rows of comparisons, logic and choices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from taso_py.backend.onnx.row import Row, named
from taso_py.backend.onnx.writer import OnnxValue, Writer
from taso_py.ir.node import Node
from taso_py.ir.operator import Operator
from taso_py.ir.types import DType
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


def _where(w: Writer, op: Where, node: Node, operands: Sequence[OnnxValue]) -> OnnxValue:
    if node.types[0].dtype is not DType.BOOL:
        return w.op("Where", *operands)
    # Engines choose between numbers only.
    condition, chosen, other = operands
    return w.op("Or", w.op("And", condition, chosen), w.op("And", w.op("Not", condition), other))


def _not_equal(w: Writer, op: NotEqual, node: Node, operands: Sequence[OnnxValue]) -> OnnxValue:
    return w.op("Not", w.op("Equal", *operands))


ROWS: Mapping[type[Operator], Row] = {
    Where: _where,
    Greater: named("Greater"),
    GreaterEqual: named("GreaterOrEqual"),
    Equal: named("Equal"),
    NotEqual: _not_equal,
    LogicalAnd: named("And"),
    LogicalOr: named("Or"),
    LogicalNot: named("Not"),
}
"""The rows, by the class of the operator."""
