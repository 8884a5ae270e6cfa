"""Calls of PyTorch as graphs of one node, and tensors to call with, for the rows of the lowering to ONNX."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from taso_py.backend.schema import overload_named
from taso_py.backend.tensors import NO_TENSOR, encode, tensor_type
from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, make
from taso_py.ir.operator import Input, Ref, Weight
from taso_py.ops.opaque import Opaque


def floats(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def positive(*shape: int) -> Tensor:
    return floats(*shape).abs() + 0.5


def integers(*shape: int, below: int = 5, seed: int = 0) -> Tensor:
    return torch.randint(below, shape, generator=torch.Generator().manual_seed(seed))


def signed(*shape: int) -> Tensor:
    return integers(*shape, below=21) - 10


def booleans(*shape: int, seed: int = 0) -> Tensor:
    return floats(*shape, seed=seed) > 0


@dataclass
class Call:
    target: str
    args: Sequence[Any]
    kwargs: dict[str, Any] = field(default_factory=dict[str, Any])
    read: int | None = None
    """How many of the results are read, if not all."""


def call(target: str, *args: Any, **kwargs: Any) -> Call:
    return Call(f"aten.{target}", args, kwargs)


def first(given: Call) -> Call:
    """The call, with its first result read only."""
    return replace(given, read=1)


def graph_of(
    given: Call, weights: Sequence[int] = ()
) -> tuple[Graph, list[Tensor], dict[str, Tensor], list[Tensor | None]]:
    """The graph of one call, its inputs, its weights and the results; ``weights`` says which tensors are that."""
    inputs: list[Tensor] = []
    nodes: list[Node] = []

    def reference(argument: Any) -> Any:
        if isinstance(argument, Tensor):
            kind = Weight if len(inputs) in weights else Input
            nodes.append(make(kind(f"x{len(inputs)}", tensor_type(argument))))
            inputs.append(argument)
            return Ref(len(inputs) - 1)
        if isinstance(argument, list | tuple):
            return [reference(item) for item in argument]
        return argument

    arguments = encode([reference(argument) for argument in given.args])
    keywords = tuple((name, encode(reference(argument))) for name, argument in given.kwargs.items())
    result = overload_named(given.target)(*given.args, **given.kwargs)
    results = list(result) if isinstance(result, list | tuple) else [result]
    types = tuple(NO_TENSOR if tensor is None else tensor_type(tensor) for tensor in results)
    assert isinstance(arguments, tuple)
    node = make(Opaque(given.target, arguments, types, keywords), [operand.value for operand in nodes])
    free = tuple(operand for operand in nodes if isinstance(operand.op, Input))
    graph = Graph(free, node.outputs[: given.read])
    held = {f"x{place}": inputs[place] for place in weights}
    return graph, [tensor for place, tensor in enumerate(inputs) if place not in weights], held, results[: given.read]


X, Y, P = floats(2, 3), floats(2, 3, seed=1), positive(2, 3)
M, J, B, C = signed(2, 3), integers(2, 3) + 1, booleans(2, 3), booleans(2, 3, seed=1)
IMAGE = floats(2, 4, 7, 6)
