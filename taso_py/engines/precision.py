"""Operators that OpenVINO's CPU plugin would compute in another element type than the graph states.

It computes float64 in float32 and int64 in int32, and sums and products of short integers saturate where PyTorch's wrap
around. It compares integers in float32. Operators that only move such values are exact. So are sums and products of
int64 if 32 bits hold them, as where a model counts tokens, and places of extremes if float32 holds what is compared.
How large operands may be for that is derived from the graph (:mod:`taso_py.engines.magnitudes`).

Invariant: a graph that passes is computed in the types that it states, if no int64 operand exceeds
:func:`most_given` (:func:`check_range`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from taso_py.backend.guard import ArgumentError
from taso_py.engines.magnitudes import LEAST, MOST, PLACES, RUNNING_SUM, WHOLE, aten_name, is_held, numbers_in
from taso_py.ir.graph import Graph
from taso_py.ir.node import Node
from taso_py.ir.operator import Constant, Input, Weight
from taso_py.ir.size import Poly
from taso_py.ir.types import DType
from taso_py.ops.elementwise import Add, Cast, Mul, Sub
from taso_py.ops.nested import graphs_in, is_control_flow
from taso_py.ops.opaque import Opaque

_MAGNITUDES = (MOST, 2**30, 2**24, 2**15)
"""Magnitudes of int64 operands to try, the largest first: all of 32 bits, and room for a sum, and for products."""
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


def other_precision(graph: Graph, weights: Mapping[str, Tensor]) -> str | None:
    """Return why a graph would be computed in other types than it states, in a few words; None if it would not."""
    return next(_reasons(graph, weights), None)


def most_given(graph: Graph, weights: Mapping[str, Tensor]) -> int | None:
    """Return the largest magnitude of int64 operands for which all results are exact; None if there is none."""
    sizes = {key: _magnitude(weights[key]) for node in graph.nodes if (key := _whole_weight(node)) is not None}
    return next((most for most in _MAGNITUDES if is_held(graph, sizes, most)), None)


def check_range(name: str, tensor: Tensor, most: int | None) -> None:
    """Check that no integer of an int64 operand is larger than it may be: any that fits into 32 bits unless told.

    Raises:
        ArgumentError: one is.
    """
    limit = MOST if most is None else most
    if tensor.dtype is torch.int64 and _magnitude(tensor) > limit:
        reason = f"OpenVINO computes integers in 32 bits, and {name} has larger ones than {limit}"
        raise ArgumentError(f"{reason}; use another runtime")


def _whole_weight(node: Node) -> str | None:
    """Return the key of a weight of int64; None for all other nodes."""
    return node.op.key if isinstance(node.op, Weight) and node.types[0].dtype is DType.I64 else None


def _magnitude(tensor: Tensor) -> int:
    """Return the largest magnitude of the integers in a tensor; -2**31 counts as one less, since 32 bits hold it."""
    if not tensor.numel():
        return 0
    low, high = (int(bound) for bound in tensor.aminmax())
    return max(-low - (low == LEAST), high)


def _reasons(graph: Graph, weights: Mapping[str, Tensor]) -> Iterator[str]:
    for node in (node for inner in graphs_in(graph) for node in inner.nodes):
        if any(type_.dtype is DType.F64 for type_ in node.types):
            yield "OpenVINO computes f64 in f32"
        key = _whole_weight(node)
        if key is not None and _magnitude(weights[key]) > MOST:
            yield f"OpenVINO computes integers in 32 bits, and {key} has larger ones"
        beyond = next(filter(_is_beyond, _integers(node)), None)
        if beyond is not None:
            yield f"OpenVINO computes integers in 32 bits, and {beyond} is larger"
        dtype = next((type_.dtype for type_ in node.types if type_.dtype in WHOLE), None)
        if dtype is not None and not _is_exact(node, dtype):
            what = getattr(node.op, "target", node.op.name)
            yield f"OpenVINO computes {what} of {dtype} with a different overflow"
    if most_given(graph, weights) is None:
        yield "OpenVINO computes i64 in 32 bits and compares integers in f32, which might not hold them"


def _integers(node: Node) -> Iterator[float]:
    """Yield the numbers in a node that are used as integers; open sizes, and ends of slices, are not."""
    types = [type_.dtype for type_ in (*node.types, *(value.type for value in node.inputs))]
    if not WHOLE.isdisjoint(types):
        yield from (number for number in numbers_in(node.op) if not isinstance(number, Poly))


def _is_beyond(value: float) -> bool:
    return not LEAST <= value <= MOST


def _is_exact(node: Node, dtype: DType) -> bool:
    """Return whether a node with integer results only moves them, or computes them in 32 bits as PyTorch does."""
    op = node.op
    if is_control_flow(op):
        return True  # its bodies are looked at
    if isinstance(op, Opaque):
        name = aten_name(op)
        if name in PLACES:
            return True  # what is compared is looked at
        if name == RUNNING_SUM:
            return dtype in (DType.I32, DType.I64) and node.inputs[0].type.dtype in (DType.BOOL, *WHOLE)
        return name in _MOVING_ATEN or (name in ("_to_copy", "to") and _is_cast_exact(node, dtype))
    if isinstance(op, Add | Sub | Mul):
        return dtype in (DType.I32, DType.I64)
    is_moved = op.is_movement or isinstance(op, Input | Weight | Constant)
    return is_moved or (isinstance(op, Cast) and _is_cast_exact(node, dtype))


def _is_cast_exact(node: Node, dtype: DType) -> bool:
    """Return whether the result's type holds all values of the operand's."""
    given = node.inputs[0].type.dtype
    return given is dtype or given is DType.BOOL or (given in WHOLE and dtype in (DType.I32, DType.I64))
