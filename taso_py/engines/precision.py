"""Operators that OpenVINO's CPU plugin would compute in another element type than the graph states.

It computes float64 in float32 and int64 in int32, and sums and products of short integers saturate where PyTorch's wrap
around. Operators that only move such values are exact.

Invariant: a graph that passes is computed in the types that it states, if no int64 operand exceeds 32 bits
(:func:`check_range`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from taso_py.backend.guard import ArgumentError
from taso_py.ir.graph import Graph
from taso_py.ir.node import Node
from taso_py.ir.operator import Constant, Input, Weight
from taso_py.ir.size import Poly
from taso_py.ir.types import DType
from taso_py.ops.elementwise import Add, Cast, Mul, Sub
from taso_py.ops.opaque import Opaque

_WHOLE = frozenset({DType.U8, DType.I8, DType.I16, DType.I32, DType.I64})
"""Integer types that engines have."""
_LEAST, _MOST = -(2**31), 2**31 - 1
_MOVING_ATEN = frozenset(
    [
        "_unsafe_view",
        "alias",
        "arange",
        "clone",
        "constant_pad_nd",
        "contiguous",
        "detach",
        "expand",
        "flip",
        "full",
        "full_like",
        "gather",
        "index",
        "lift_fresh_copy",
        "masked_fill",
        "new_full",
        "new_ones",
        "new_zeros",
        "ones",
        "ones_like",
        "pad",
        "repeat",
        "repeat_interleave",
        "reshape",
        "roll",
        "select_scatter",
        "slice_scatter",
        "tril",
        "triu",
        "view",
        "view_copy",
        "where",
        "zeros",
        "zeros_like",
    ]
)
"""ATen operators whose integer results are elements of their operands, or constants in the graph."""
_PLACES = frozenset(("argmax", "argmin", "max", "min", "topk"))
"""ATen operators that return indices, and compare integers as floating-point numbers."""


def other_precision(graph: Graph, weights: Mapping[str, Tensor]) -> str | None:
    """Return why a graph would be computed in other types than it states, in a few words; None if it would not."""
    return next(_reasons(graph, weights), None)


def check_range(name: str, tensor: Tensor) -> None:
    """Check that all integers of an operand fit into 32 bits.

    Raises:
        ArgumentError: one does not.
    """
    if not fits_in_32_bits(tensor):
        raise ArgumentError(f"OpenVINO computes integers in 32 bits, and {name} has larger ones; use another runtime")


def fits_in_32_bits(tensor: Tensor) -> bool:
    """Return whether 32 bits hold all integers of a tensor."""
    if tensor.dtype is not torch.int64 or not tensor.numel():
        return True
    low, high = tensor.aminmax()
    return int(low) >= _LEAST and int(high) <= _MOST


def _reasons(graph: Graph, weights: Mapping[str, Tensor]) -> Iterator[str]:
    for node in graph.nodes:
        if any(type_.dtype is DType.F64 for type_ in node.types):
            yield "OpenVINO computes f64 in f32"
        if isinstance(node.op, Weight) and not fits_in_32_bits(weights[node.op.key]):
            yield f"OpenVINO computes integers in 32 bits, and {node.op.key} has larger ones"
        beyond = next(filter(_is_beyond, _integers(node)), None)
        if beyond is not None:
            yield f"OpenVINO computes integers in 32 bits, and {beyond} is larger"
        dtype = next((type_.dtype for type_ in node.types if type_.dtype in _WHOLE), None)
        if dtype is not None and not _is_exact(node, dtype):
            what = getattr(node.op, "target", node.op.name)
            yield f"OpenVINO computes {what} of {dtype} with a different overflow"


def _integers(node: Node) -> Iterator[float]:
    """Yield the numbers in a node that are used as integers; ends of slices are not."""
    types = [type_.dtype for type_ in (*node.types, *(value.type for value in node.inputs))]
    if not _WHOLE.isdisjoint(types):
        if isinstance(node.op, Constant) and not isinstance(node.op.value, Poly):
            yield node.op.value
        elif isinstance(node.op, Opaque) and "slice" not in node.op.target:
            written = (*node.op.arguments, *(value for _, value in node.op.keywords))
            yield from (value for value in written if isinstance(value, int | float))


def _is_beyond(value: float) -> bool:
    return not _LEAST <= value <= _MOST


def _is_exact(node: Node, dtype: DType) -> bool:
    """Return whether a node with integer results only moves them, or computes them in 32 bits as PyTorch does."""
    op = node.op
    if isinstance(op, Opaque):
        _, name, _ = op.target.split(".")
        if name in _PLACES:
            return node.inputs[0].type.dtype not in _WHOLE
        return name in _MOVING_ATEN or (name in ("_to_copy", "to") and _is_cast_exact(node, dtype))
    if isinstance(op, Add | Sub | Mul):
        return dtype is DType.I32
    is_moved = op.is_movement or isinstance(op, Input | Weight | Constant)
    return is_moved or (isinstance(op, Cast) and _is_cast_exact(node, dtype))


def _is_cast_exact(node: Node, dtype: DType) -> bool:
    """Return whether the result's type holds all values of the operand's."""
    given = node.inputs[0].type.dtype
    return given is dtype or given is DType.BOOL or (given in _WHOLE and dtype in (DType.I32, DType.I64))
