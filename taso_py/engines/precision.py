"""Operators that OpenVINO's CPU plugin would compute in another element type than the graph states.

It computes float64 in float32 and int64 in int32, and sums and products of short integers saturate where PyTorch's wrap
around. It compares integers in float32, and adds them up along axes in it. Operators that only move such values are
exact. So are sums and products of int64 if 32 bits hold them, as where a model counts tokens, and places of extremes
and sums along axes if float32 holds what is compared or added up. Results that nothing reads are not computed. How
large operands may be for that is derived from the graph (:mod:`taso_py.engines.magnitudes`).

It computes the remainder of floating-point numbers from a rounded quotient, so that 1 % 0.1 is 0. It sorts equal
elements into an order of its own, and NaN anywhere.

It computes float16 in float32, which loses nothing but where a cast to float16 is there to round: what is cast there
and back again would stay as it was.

Invariant: a graph that passes is computed in the types that it states, if no int64 operand exceeds
:func:`most_given` (:func:`check_range`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import torch
from torch import Tensor

from taso_py.backend.guard import ArgumentError
from taso_py.backend.tensors import is_power_of_two
from taso_py.engines.magnitudes import (
    LARGE,
    LEAST,
    MOST,
    PLACES,
    RUNNING_SUM,
    SUMS,
    WHOLE,
    aten_name,
    is_held,
    numbers_in,
)
from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, Value
from taso_py.ir.operator import Constant, Input, Weight
from taso_py.ir.size import Poly
from taso_py.ir.traits import Rounding
from taso_py.ir.types import DType
from taso_py.ops.elementwise import Add, Cast, Div, Mul, Sub
from taso_py.ops.nested import ControlFlow, graphs_in, is_control_flow
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
        "one_hot",
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
_FLOORING_ATEN = frozenset({"floor_divide", "fmod", "remainder"})
"""ATen operators that need to know on which side of an integer a quotient is."""
_DIVIDING_ATEN = frozenset({"div", "divide", "true_divide"})
"""ATen operators that divide, and round the quotient to an integer if they are told how."""
_ROUNDING_ATEN = frozenset({"ceil", "fix", "floor", "round", "trunc"})
"""ATen operators that round to integers."""
_SORTING_ATEN = frozenset({"argsort", "kthvalue", "msort", "sort"})
"""ATen operators whose results show the order of equal elements, and NaN among them."""
_CASTING_ATEN = frozenset({"_to_copy", "to"})
"""ATen operators that may cast."""
_CARRYING = ("higher_order.while_loop", "higher_order.scan")
"""Control flow that calls its bodies with what they have returned."""


def other_precision(graph: Graph, weights: Mapping[str, Tensor]) -> str | None:
    """Return why a graph would be computed in other types than it states, in a few words; None if it would not."""
    return next(_reasons(graph, weights), None)


def most_given(graph: Graph, weights: Mapping[str, Tensor]) -> int | None:
    """Return the largest magnitude of int64 operands for which all results are exact; None if there is none."""
    sizes = {key: _magnitude(weights[key]) for node in graph.nodes if (key := _whole_weight(node)) is not None}
    return next((most for most in _MAGNITUDES if is_held(graph, sizes, most)), None)


def check_range(name: str, tensor: Tensor, most: int | None) -> None:
    """Check that no integer of an operand of int64 or int32 is larger than it may be: 32 bits hold it unless told.

    Raises:
        ArgumentError: one is.
    """
    limit = MOST if most is None else most
    is_large = tensor.dtype is torch.int64 or (tensor.dtype is torch.int32 and limit < MOST)
    if is_large and _magnitude(tensor) > limit:
        reason = f"OpenVINO computes integers in 32 bits, and {name} has larger ones than {limit}"
        raise ArgumentError(f"{reason}; use another runtime")


def _whole_weight(node: Node) -> str | None:
    """Return the key of a weight of int64 or int32; None for all other nodes."""
    return node.op.key if isinstance(node.op, Weight) and node.types[0].dtype in LARGE else None


def _magnitude(tensor: Tensor) -> int:
    """Return the largest magnitude of the integers in a tensor; -2**31 counts as one less, since 32 bits hold it."""
    if not tensor.numel():
        return 0
    low, high = (int(bound) for bound in tensor.aminmax())
    return max(-low - (low == LEAST), high)


def _reasons(graph: Graph, weights: Mapping[str, Tensor]) -> Iterator[str]:
    read = {value for inner in graphs_in(graph) for node in inner.nodes for value in node.inputs}
    read.update(value for inner in graphs_in(graph) for value in inner.outputs)
    for node in (node for inner in graphs_in(graph) for node in inner.nodes):
        if any(type_.dtype is DType.F64 for type_ in node.types):
            yield "OpenVINO computes f64 in f32"
        key = _whole_weight(node)
        if key is not None and _magnitude(weights[key]) > MOST:
            yield f"OpenVINO computes integers in 32 bits, and {key} has larger ones"
        beyond = next(filter(_is_beyond, _integers(node)), None)
        if beyond is not None:
            yield f"OpenVINO computes integers in 32 bits, and {beyond} is larger"
        if isinstance(node.op, Opaque) and aten_name(node.op) in _SORTING_ATEN:
            yield f"OpenVINO orders equal elements otherwise than {node.op.target}"
        if isinstance(node.op, Opaque) and _divides(node.op) and node.types[0].dtype.is_floating:
            yield f"OpenVINO rounds the quotients of {node.op.target}"
        rounds = isinstance(node.op, Opaque) and aten_name(node.op) in _ROUNDING_ATEN
        if rounds and any(_is_quotient(value.node) for value in node.inputs):
            yield "OpenVINO rounds a quotient before it is rounded to an integer"
        wanted = (value.type.dtype for value in node.outputs if value in read or not isinstance(node.op, Opaque))
        dtype = next(filter(WHOLE.__contains__, wanted), None)
        if dtype is not None and not _is_exact(node, dtype):
            what = getattr(node.op, "target", node.op.name)
            yield f"OpenVINO computes {what} of {dtype} with a different overflow"
    if _rounded(graph)[1]:
        yield "OpenVINO computes f16 in f32, where a cast to f16 and back does not round"
    if most_given(graph, weights) is None:
        yield "OpenVINO computes i64 in 32 bits and compares integers in f32, which might not hold them"


def _divides(op: Opaque) -> bool:
    """Return whether a call gives a remainder, or a quotient rounded to an integer, of division that may round."""
    name = aten_name(op)
    is_rounded = name in _FLOORING_ATEN or (name in _DIVIDING_ATEN and "rounding_mode" in dict(op.keywords))
    return is_rounded and not is_power_of_two(op.arguments[1])


def _is_quotient(node: Node) -> bool:
    """Return whether a node divides by something other than a power of two, as which OpenVINO may multiply."""
    if isinstance(node.op, Opaque):
        return aten_name(node.op) in _DIVIDING_ATEN and not is_power_of_two(node.op.arguments[1])
    divisor = node.inputs[1].node.op if isinstance(node.op, Div) else None
    return divisor is not None and not (isinstance(divisor, Constant) and is_power_of_two(divisor.value))


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
        if name == RUNNING_SUM or name in SUMS:
            is_whole = name == "count_nonzero" or node.inputs[0].type.dtype in (DType.BOOL, *WHOLE)
            return is_whole and dtype in (DType.I32, DType.I64)
        return name in _MOVING_ATEN or (name in _CASTING_ATEN and _is_cast_exact(node, dtype))
    if isinstance(op, Add | Sub | Mul):
        return dtype in (DType.I32, DType.I64)
    is_moved = op.is_movement or isinstance(op, Input | Weight | Constant)
    return is_moved or (isinstance(op, Cast) and _is_cast_exact(node, dtype))


def _is_cast_exact(node: Node, dtype: DType) -> bool:
    """Return whether the result's type holds all values of the operand's."""
    given = node.inputs[0].type.dtype
    return given is dtype or given is DType.BOOL or (given in WHOLE and dtype in (DType.I32, DType.I64))


def _rounded(graph: Graph, given: Collection[Value] = ()) -> tuple[set[Value], bool]:
    """Return the values of f16 that a cast has rounded, and whether one of them is cast to another type.

    Args:
        graph: the graph.
        given: its inputs that are so rounded.
    """
    found, is_cast = set(given), False
    for node in graph.nodes:
        reads = not found.isdisjoint(node.inputs)
        flow = ControlFlow.of(node)
        if flow is not None:
            returns, inside = _rounded_by(flow, reads=reads)
            is_cast |= inside
            found.update(_halves(node.outputs) if returns else ())
        elif _casts(node):
            is_cast |= reads and not _halves(node.outputs)
            found.update(_halves(node.outputs))
        elif reads and _selects(node):
            found.update(_halves(node.outputs))
    return found, is_cast


def _rounded_by(flow: ControlFlow, *, reads: bool) -> tuple[bool, bool]:
    """Return whether control flow may return values of f16 that a cast has rounded, and whether it casts such.

    Args:
        flow: the control flow.
        reads: whether it is given such values; if one is, any of them may be.
    """
    returns, is_cast = False, False
    for is_again in (False, True):
        if is_again and (reads or not returns or flow.op.target not in _CARRYING):
            break
        for body in flow.bodies:
            inputs = [node.value for node in body.graph.inputs] if reads or is_again else []
            found, inside = _rounded(body.graph, _halves(inputs))
            returns |= not found.isdisjoint(body.graph.outputs)
            is_cast |= inside
    return returns, is_cast


def _halves(values: Collection[Value]) -> set[Value]:
    return {value for value in values if value.type.dtype is DType.F16}


def _casts(node: Node) -> bool:
    """Return whether a node changes the type of its operand."""
    is_cast = aten_name(node.op) in _CASTING_ATEN if isinstance(node.op, Opaque) else isinstance(node.op, Cast)
    return is_cast and node.inputs[0].type.dtype is not node.types[0].dtype


def _selects(node: Node) -> bool:
    """Return whether all results of a node are elements of its operands, or fixed numbers."""
    return aten_name(node.op) in _MOVING_ATEN if isinstance(node.op, Opaque) else node.op.rounding is Rounding.NEVER
