"""Rows of lookups. ONNX takes negative integers to count from the end, also where PyTorch raises an error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from taso_py.backend.onnx.row import Row
from taso_py.backend.onnx.writer import OnnxValue, Writer
from taso_py.ir.node import Node
from taso_py.ir.operator import Operator
from taso_py.ops.selection import Gather, Take


def _take(w: Writer, op: Take, node: Node, operands: Sequence[OnnxValue]) -> OnnxValue:
    return w.op("Gather", *operands, axis=node.inputs[0].type.rank + op.axis)


def _gather(w: Writer, op: Gather, node: Node, operands: Sequence[OnnxValue]) -> OnnxValue:
    return w.op("GatherElements", *operands, axis=node.types[0].rank + op.axis)


ROWS: Mapping[type[Operator], Row] = {Take: _take, Gather: _gather}
"""The rows, by the class of the operator."""
