"""Immediate execution of graphs, without building a module.

Invariant: the calls are those of the lowering, so that a graph computes the same here as in a module.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from taso_py.backend.lowering import lower, materialize
from taso_py.backend.sizes import resolving
from taso_py.ir.graph import Graph
from taso_py.ir.node import Value
from taso_py.ir.operator import Constant, Input, Weight
from taso_py.ir.size import at_example

_NO_WEIGHTS: Mapping[str, Tensor] = MappingProxyType({})


def run_graph(graph: Graph, inputs: Sequence[Tensor], weights: Mapping[str, Tensor] = _NO_WEIGHTS) -> list[Tensor]:
    """Return the outputs of a graph.

    Args:
        graph: any graph.
        inputs: a tensor per input of the graph, of its type.
        weights: the weights that the graph names, by key.
    """
    device = inputs[0].device if inputs else torch.device("cpu")
    held: dict[Value, Any] = {node.value: tensor for node, tensor in zip(graph.inputs, inputs, strict=True)}
    with torch.no_grad():
        for node in graph.nodes:
            if isinstance(node.op, Weight):
                held[node.value] = weights[node.op.key]
            elif isinstance(node.op, Constant):
                held[node.value] = materialize(call_now, node.op, device)
            elif not isinstance(node.op, Input):
                operands = [held[value] for value in node.inputs]
                held.update(zip(node.outputs, lower(call_now, node, operands, device), strict=True))
    return [held[value] for value in graph.outputs]


def run_call(overload: Any, *arguments: Any, **keywords: Any) -> Any:
    """Run an operator call of a lowering; a :data:`~taso_py.backend.elementwise.Caller`."""
    return overload(*arguments, **keywords)


call_now = resolving(run_call, at_example)
"""Caller that runs operator calls at once, with open sizes set to their values in the example inputs."""
