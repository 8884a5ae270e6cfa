"""Constant folding: values that depend on weights and constants only are computed once.

Invariant: the folded graph computes the same function; arithmetic was carried out in double precision and rounded once,
but as the graph has it where the last bit decides something, as before a comparison; data movement is exact, and the
bytes of all weights together, counted per storage, have grown by no more than the limit. Folded weights of the same
bits are stored once.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensor

from taso_py.backend.bits import content_of, resolved
from taso_py.backend.lowering import lower
from taso_py.backend.program import Program
from taso_py.backend.run import call_now
from taso_py.backend.schema import stored_bytes
from taso_py.backend.tensors import TORCH_DTYPES
from taso_py.ir.graph import Graph, topological
from taso_py.ir.node import Node, Value, make
from taso_py.ir.operator import Constant, Operator, Weight
from taso_py.ops.choice import ComparisonOperator
from taso_py.ops.elementwise import Add, Cast, Mul, Sub
from taso_py.ops.nested import is_control_flow
from taso_py.ops.opaque import Opaque
from taso_py.ops.work import most_stored

_AS_DECLARED = (Opaque, Cast, ComparisonOperator)

UNLIMITED = math.inf
"""Growth limit for a searched graph: the search keeps to a limit of its own, and has priced its result as folded."""

SAMPLED = 4
"""Elements along each axis, at least, by which tensors that differ are told apart at once."""


def fold(program: Program, growth_limit: float = 1.25) -> Program:
    """Return the program with the largest static subgraphs of its graph replaced by weights of their own.

    Args:
        program: its graph may be a rewritten one; growth is measured against the weights that it has now.
        growth_limit: the largest allowed ratio of bytes after and before; see :func:`~taso_py.ops.work.most_stored`.
            If all foldings together exceed it, the largest results are not folded, but their operands if possible.

    Returns:
        A program with the weights that its graph names; they are views of the given ones if folding only moves data.
    """
    graph, weights = _fold_numbers(program.graph), program.weights
    limit = most_stored(stored_bytes(weights.values()), growth_limit)
    computed: dict[Value, Tensor] = {}
    refused: set[Value] = set()
    while True:
        frontier = _frontier(graph, refused)
        for value in frontier:
            if value not in computed:
                computed[value] = evaluate(value, weights, program.device)
        keys = {value: f"folded.w{value.node.digest[:12]}_{value.output}" for value in frontier}
        folded = graph.replace({value: make(Weight(key, value.type)).value for value, key in keys.items()})
        known = {**weights, **{key: computed[value] for value, key in keys.items()}}
        tensors = {node.op.key: known[node.op.key] for node in folded.nodes if isinstance(node.op, Weight)}
        if not frontier or stored_bytes(tensors.values()) <= limit:
            tensors = _deduplicated(folded, tensors, keys.values())
            parameters = {key: flag for key, flag in program.parameters.items() if key in tensors}
            return replace(program, graph=folded, weights=tensors, parameters=parameters)
        refused.add(max(frontier, key=lambda value: (stored_bytes([computed[value]]), value.key)))


def _deduplicated(graph: Graph, tensors: Mapping[str, Tensor], keys: Iterable[str]) -> dict[str, Tensor]:
    """Return the weights of a graph; a folded weight that is bitwise equal to another shares its tensor.

    Operands of control flow do not: PyTorch refuses to export it if two of them share memory.
    """
    nodes = [node.op for node in graph.nodes if isinstance(node.op, Weight) and not node.op.mutable]
    nodes = [op for op in nodes if not tensors[op.key].is_meta and not isinstance(tensors[op.key], FakeTensor)]
    apart = [value for node in graph.nodes if is_control_flow(node.op) for value in node.inputs]
    candidates = set(keys) - {value.node.op.key for value in apart if isinstance(value.node.op, Weight)}
    result = dict(tensors)
    alike: dict[object, list[Tensor]] = {}
    # Weights as they were come first: what equals one of them needs no memory of its own.
    for op in sorted(nodes, key=lambda op: op.key in candidates):
        tensor = tensors[op.key]
        others = alike.setdefault(_likeness(tensor), [])
        same = next((other for other in others if torch.equal(content_of(other), content_of(tensor))), None)
        if same is None:
            others.append(tensor)
        elif op.key in candidates:
            result[op.key] = same
    return result


def _likeness(tensor: Tensor) -> object:
    """Return a key that is equal for equal tensors, so that only tensors with the same key need be compared."""
    sample = tensor[tuple(slice(None, None, max(1, size // SAMPLED)) for size in tensor.shape)]
    return tensor.device, tensor.dtype, tensor.shape, tensor.stride(), content_of(sample).cpu().numpy().tobytes()


_EXACT: Mapping[type[Operator], Callable[[Any, Any], Any]] = {
    Add: operator.add,
    Sub: operator.sub,
    Mul: operator.mul,
}


def _fold_numbers(graph: Graph) -> Graph:
    """Return the graph with arithmetic between constants carried out."""

    def rebuild(node: Node, inputs: tuple[Value, ...]) -> Node:
        numbers = [value.node.op.value for value in inputs if isinstance(value.node.op, Constant)]
        function = _EXACT.get(type(node.op))
        if function is not None and len(numbers) == 2:
            return make(Constant(function(*numbers), node.types[0].dtype))
        return node if inputs == node.inputs else make(node.op, inputs, node.token)

    return graph.map(rebuild)


def _frontier(graph: Graph, refused: set[Value]) -> list[Value]:
    """Return the static values read by non-static nodes or outputs, except leaves; a refused one's operands instead."""
    stack = [value for node in graph.nodes if not node.is_static for value in node.inputs]
    stack += graph.outputs
    found: dict[Value, None] = {}
    while stack:
        value = stack.pop()
        if not value.node.is_static or isinstance(value.node.op, Weight | Constant) or value in found:
            continue
        if value in refused:
            stack += value.node.inputs
        else:
            found[value] = None
    return list(found)


def evaluate(value: Value, weights: Mapping[str, Tensor], device: torch.device) -> Tensor:
    """Compute a static value, arithmetic in double precision where :func:`_declared` does not say otherwise.

    Intermediate results are freed after their last use.
    """
    held: dict[Value, Tensor] = {}
    nodes = topological([value.node])
    declared = _declared(nodes)
    last = {operand: node for node in nodes for operand in node.inputs}
    with torch.no_grad():
        for node in nodes:
            if isinstance(node.op, Weight):
                held[node.value] = weights[node.op.key].detach()
            elif not isinstance(node.op, Constant):
                given = [held.get(operand) for operand in node.inputs]
                operands = _operands(node, given, as_declared=node in declared)
                held.update(zip(node.outputs, lower(call_now, node, operands, device), strict=True))
                for operand in dict.fromkeys(node.inputs):
                    if last[operand] is node:
                        held.pop(operand, None)
        return resolved(held[value].to(TORCH_DTYPES[value.type.dtype]))


def _declared(nodes: Sequence[Node]) -> set[Node]:
    """Return the nodes that are computed in their own types: some operators, and all that those read which decide.

    In what a comparison, an operator without a definition or a conversion to integers reads, one rounding decides:
    ``3 * 0.1 <= 0.3`` is true in single precision and false in double precision.

    Args:
        nodes: the nodes, each behind those that it reads.
    """
    found = set[Node]()
    for node in reversed(nodes):
        decides = isinstance(node.op, Opaque) or not node.types[0].dtype.is_floating
        if decides or node in found:
            found.update(operand for operand, _ in node.inputs)
        if isinstance(node.op, _AS_DECLARED):
            found.add(node)
    return found


def _operands(node: Node, held: Sequence[Tensor | None], *, as_declared: bool) -> list[Tensor | None]:
    """Return the operands in the precision in which a node is computed; None for constants."""
    if as_declared:
        dtypes = [TORCH_DTYPES[value.type.dtype] for value in node.inputs]
        return [tensor if tensor is None else tensor.to(dtype) for tensor, dtype in zip(held, dtypes, strict=True)]
    widen = not node.op.is_movement or len({tensor.dtype for tensor in held if tensor is not None}) > 1
    return [t.double() if t is not None and widen and t.is_floating_point() else t for t in held]
