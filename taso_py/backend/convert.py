"""Programs converted to another device, or to another floating-point type.

Invariant: the structure of the graph stays; provenance and lowering variants follow the nodes to their new digests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any, cast

import torch
from torch import Tensor

from taso_py.backend.program import Origin, Program
from taso_py.backend.schema import defaults, is_trusted, overload_named
from taso_py.backend.tensors import TORCH_DTYPES, TensorError, ir_dtype
from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, Value, make
from taso_py.ir.operator import AttributeValue
from taso_py.ir.types import DType, TensorType
from taso_py.ops.elementwise import Cast
from taso_py.ops.nested import PREFIX, Nested
from taso_py.ops.opaque import Opaque


def to_device(program: Program, device: torch.device) -> Program:
    """Return the program on another device: weights, example inputs and tensors that the graph creates."""
    moved = _mapped(program, _rebuilding(device), lambda tensor: tensor.to(device))
    return replace(moved, device=device)


def graph_on(graph: Graph, device: torch.device) -> Graph:
    """Return a graph on another device, which need not exist here: tensors it creates are created there."""
    return graph.map(_rebuilding(device))


def _rebuilding(device: torch.device) -> Callable[[Node, tuple[Value, ...]], Node]:
    """Return a function that rebuilds a node for a device, on inputs that are there."""

    def moved(value: AttributeValue) -> AttributeValue:
        if isinstance(value, str) and value.startswith("device:"):
            return f"device:{device}"
        if isinstance(value, str) and value.startswith(PREFIX):
            return _mapped_inside(value, rebuild)
        return tuple(map(moved, value)) if isinstance(value, tuple) else value

    def rebuild(node: Node, inputs: tuple[Value, ...]) -> Node:
        op = node.op
        if isinstance(op, Opaque):
            arguments, keywords = (tuple(map(moved, values)) for values in (op.arguments, op.keywords))
            op = replace(op, arguments=arguments, keywords=cast(Any, keywords))
        return make(op, inputs, node.token)

    return rebuild


def _mapped_inside(value: str, rebuild: Callable[[Node, tuple[Value, ...]], Node]) -> str:
    """Return the attribute of a graph that an operator takes, with the graph's nodes rebuilt."""
    nested = Nested.parse(value)
    return replace(nested, graph=nested.graph.map(rebuild)).text


def retype(program: Program, dtype: DType = DType.F64) -> Program:
    """Return the program with every floating-point type replaced: of weights, inputs, casts, constants and arguments.

    In double precision this is the reference that results are compared with; calling ``.double()`` on a module is not,
    since that leaves casts to float32 inside.

    Raises:
        TensorError: an operator reads the bits of floating-point numbers, or cannot compute in the type.
    """

    def converted(tensor: Tensor) -> Tensor:
        return tensor.to(TORCH_DTYPES[cast(DType, _retyped(ir_dtype(tensor.dtype), dtype))])

    return _mapped(program, _retyping(dtype), converted)


def retyped_graph(graph: Graph, dtype: DType = DType.F64) -> Graph:
    """Return a graph with every floating-point type replaced, as :func:`retype` does with a program's."""
    return graph.map(_retyping(dtype))


def _retyping(dtype: DType) -> Callable[[Node, tuple[Value, ...]], Node]:
    """Return a function that rebuilds a node in a floating-point type, on inputs of it."""

    def rebuild(node: Node, inputs: tuple[Value, ...]) -> Node:
        attributes = {field.name: inside(_retyped(getattr(node.op, field.name), dtype)) for field in fields(node.op)}
        op = replace(node.op, **attributes)
        if isinstance(node.op, Opaque) and isinstance(op, Opaque):
            return _opaque(node.op, op, inputs, token=node.token, dtype=dtype)
        return make(op, inputs, node.token)

    def inside(value: AttributeValue) -> AttributeValue:
        if isinstance(value, tuple):
            return tuple(map(inside, value))
        return _mapped_inside(value, rebuild) if isinstance(value, str) and value.startswith(PREFIX) else value

    return rebuild


def _retyped(value: AttributeValue, dtype: DType) -> AttributeValue:
    """Return an attribute with its floating-point and complex types replaced."""
    match value:
        case DType():
            if value.is_complex:
                return DType.C128 if dtype is DType.F64 else DType.C64
            return dtype if value.is_floating else value
        case TensorType():
            return TensorType(cast(DType, _retyped(value.dtype, dtype)), value.shape)
        case tuple():
            return tuple(_retyped(item, dtype) for item in value)
        case _:
            return value


_BITS = frozenset({"aten.view.dtype"})
"""Operators for which an operand's type is more than its precision."""


def _opaque(old: Opaque, new: Opaque, inputs: tuple[Value, ...], token: int | None, dtype: DType) -> Node:
    """Rebuild an opaque node in the type, setting its ``dtype`` argument where the schema needs it."""
    if new.target in _BITS:
        raise TensorError(f"{new.target} reads the bits of numbers, so the model cannot be computed in {dtype}")
    overload = overload_named(new.target)
    known = defaults(overload)
    if "half_to_float" in known:
        # There are no halves any more; it is the last argument.
        new = replace(new, arguments=(*new.arguments[:-1], False))
    reads_float = any(value.type.dtype.is_floating or value.type.dtype.is_complex for value in inputs)
    if reads_float or not any(type_.dtype is dtype for type_ in new.types):
        return make(new, inputs, token)
    # Without a floating-point operand, the type is the one given, or torch's default.
    if "dtype" in known:
        return make(_with_dtype(new, list(known).index("dtype"), dtype), inputs, token)
    is_pointwise = is_trusted(overload) and torch.Tag.pointwise in overload.tags
    if is_pointwise and any(value.type.dtype is not DType.BOOL for value in inputs):
        wide = [v if v.type.dtype is DType.BOOL else make(Cast(dtype), [v]).value for v in inputs]
        return make(new, wide, token)
    if len(old.types) != 1:
        raise TensorError(f"{new.target} decides the type of its results, so the model cannot be computed in {dtype}")
    return make(Cast(dtype), [make(old, inputs, token).value])


def _with_dtype(op: Opaque, position: int, dtype: DType) -> Opaque:
    """Return an operator with its argument ``dtype`` set, which may be positional or a keyword."""
    if position < len(op.arguments):
        return replace(op, arguments=(*op.arguments[:position], dtype, *op.arguments[position + 1 :]))
    given = dict(cast(Sequence[tuple[str, AttributeValue]], op.keywords))
    return replace(op, keywords=tuple({**given, "dtype": dtype}.items()))


def _mapped(
    program: Program, rebuild: Callable[[Node, tuple[Value, ...]], Node], convert: Callable[[Tensor], Tensor]
) -> Program:
    """Return the program with its nodes rebuilt and its tensors converted; tied tensors stay tied."""
    variants: dict[str, int] = {}
    provenance: dict[str, Origin] = {}

    def recorded(node: Node, inputs: tuple[Value, ...]) -> Node:
        new = rebuild(node, inputs)
        reordered = new.op.commutative and new.inputs != inputs
        if variant := program.variants.get(node.digest, 0) ^ reordered:
            variants[new.digest] = variant
        if node.digest in program.provenance:
            provenance.setdefault(new.digest, program.provenance[node.digest])
        return new

    graph = program.graph.map(recorded)
    return replace(
        program,
        graph=graph,
        weights={key: convert(tensor) for key, tensor in program.weights.items()},
        example_inputs=tuple(map(convert, program.example_inputs)),
        variants=variants,
        provenance=provenance,
    )
