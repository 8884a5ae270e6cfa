"""Nudged numbers, and graphs whose operators that round have nudged operands, in each place by another share.

How far results move is how far roundings may move them, also where equal operands cancel: ``t - t`` is 0 whatever the
inputs are, and is not once one ``t`` is computed in another order. (Monte Carlo arithmetic: Parker 1997.)
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from taso_py.backend.input_cases import perturb
from taso_py.backend.schema import overload_named
from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, Value, make, remake
from taso_py.ir.operator import AttributeValue, Constant
from taso_py.ops.elementwise import Mul
from taso_py.ops.nested import PREFIX, Nested
from taso_py.ops.opaque import Opaque


def nudged_graph(graph: Graph, share: float, seed: int) -> Graph:
    """Return a graph with nudged operands, bodies of control flow included.

    Args:
        graph: a graph in double precision.
        share: the greatest relative change of an operand.
        seed: seed of the changes.
    """
    chance = random.Random(seed)

    def nudged(value: Value) -> Value:
        dtype = value.type.dtype
        if not dtype.is_floating or isinstance(value.node.op, Constant):
            return value
        factor = make(Constant(1 + share * chance.uniform(-1, 1), dtype)).value
        return make(Mul(), [value, factor]).value

    def inside(argument: AttributeValue) -> AttributeValue:
        if not isinstance(argument, str) or not argument.startswith(PREFIX):
            return argument
        nested = Nested.parse(argument)
        return replace(nested, graph=nested.graph.map(rebuilt)).text

    def rebuilt(node: Node, inputs: tuple[Value, ...]) -> Node:
        if _rounds(node):
            return remake(node, tuple(map(nudged, inputs)))
        if isinstance(node.op, Opaque):
            return make(replace(node.op, arguments=tuple(map(inside, node.op.arguments))), inputs, node.token)
        return remake(node, inputs) if inputs != node.inputs else node

    return graph.map(rebuilt)


def _rounds(node: Node) -> bool:
    """Return whether a node computes numbers from those of its operands, in whatever memory these lie."""
    op = node.op
    if not isinstance(op, Opaque):
        return bool(node.inputs) and not op.is_movement
    overload = overload_named(op.target)
    return op.pure and isinstance(overload, OpOverload) and torch.Tag.pointwise in overload.tags


def nudged_numbers(leaf: Any, share: float) -> Any:
    """Return numbers changed by a share of themselves, up or down."""

    def shares(tensor: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        return share * torch.randn(tensor.shape, generator=generator, dtype=torch.float64).sign()

    return perturb(leaf, shares)
