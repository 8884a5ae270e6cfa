"""How far outputs may be off because sums are added up in another order: a program on changed operands, in float64.

A sum of n products, rounded after each in whatever order, is the exact sum of products of operands that are changed by
about sqrt(n) roundings at most (Higham and Mary 2019, "A new approach to probabilistic rounding error analysis"). A
library that adds up in many short parts is several times as exact as one that adds one after the other; both compute
what the model states, and a deep model amplifies the difference beyond any fixed number of roundings of its outputs. So
an operand of each sum is changed, in each place by another share, up to sqrt(n) roundings: the outputs then move by as
much as such sums may move them. (Monte Carlo arithmetic: Parker 1997.)

Invariant: sums count as accumulated in float32, also those of shorter types, in which kernels round once at the end. So
a kernel that computes with shorter operands than the model states is as far outside as ever. Sums in bodies of control
flow, and in operators without a definition, are not changed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

import torch
from torch import Tensor, nn

from taso_py.backend import Program, build
from taso_py.backend.convert import retyped_graph
from taso_py.backend.random_tensors import uniform
from taso_py.checking.preserve import preserve_buffers
from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, Value, make, remake
from taso_py.ir.operator import Weight
from taso_py.ir.types import DType, TensorType
from taso_py.ops.elementwise import Mul
from taso_py.ops.reduction import Cumsum
from taso_py.ops.work import work

MOST_SHARES = 2**16
"""Most elements of an operand that are changed by shares of their own; those along leading axes share them beyond."""

_T = TypeVar("_T")


@dataclass(frozen=True)
class _Change:
    """The change of an operand."""

    type: TensorType
    """The type of its factor."""
    share: float
    """The greatest relative change of an element."""


class ReorderedSums:
    """A program in double precision, an operand of each of its sums changed by what the sum's roundings are worth."""

    def __init__(self, program: Program, exact: Program) -> None:
        """Store a program; nothing is built before the first run.

        Args:
            program: the program, which tells the precision of its sums.
            exact: the program in double precision.
        """
        self._program, self._exact = program, exact

    def runs(self, call: Callable[[nn.Module], _T], count: int) -> Iterator[_T]:
        """Yield what a function returns for the module with operands changed, each time by other shares.

        What the module writes to is restored when the next result is taken.
        """
        module, factors = self._built
        for seed in range(count if factors else 0):
            generator = torch.Generator().manual_seed(seed)
            for factor, share in factors:
                factor.copy_(1 + share * (2 * uniform(factor.shape, generator) - 1))
            with preserve_buffers([module]):
                yield call(module)

    @cached_property
    def _built(self) -> tuple[nn.Module, list[tuple[Tensor, float]]]:
        """The module, and its factors of operands with the shares by which they differ from one."""
        graph, changes = _with_factors(self._program.graph)
        device = self._exact.device
        factors = {
            key: torch.ones(change.type.sizes, dtype=torch.float64, device=device) for key, change in changes.items()
        }
        exact = replace(self._exact, graph=retyped_graph(graph), weights={**self._exact.weights, **factors})
        return build(exact), [(factors[key], change.share) for key, change in changes.items()]


def _with_factors(graph: Graph) -> tuple[Graph, dict[str, _Change]]:
    """Return a graph in which an operand of each sum is multiplied by a weight, and these weights' changes by key."""
    changes: dict[str, _Change] = {}

    def rebuilt(node: Node, inputs: tuple[Value, ...]) -> Node:
        place = next((i for i, value in enumerate(node.inputs) if not value.node.is_static), None)
        terms = _terms(node)
        if place is None or terms < 2:
            return remake(node, inputs) if inputs != node.inputs else node
        key, change = f"changes.{len(changes)}", _change(node.inputs[place], terms)
        changes[key] = change
        factor = make(Weight(key, change.type)).value
        changed = make(Mul(), [inputs[place], factor]).value
        return remake(node, (*inputs[:place], changed, *inputs[place + 1 :]))

    return graph.map(rebuilt), changes


def _terms(node: Node) -> int:
    """Return the number of terms of the sums that a node computes; 0 if it computes none of floating-point numbers."""
    if not node.op.accumulates or not all(value.type.dtype.is_floating for value in (*node.inputs, *node.outputs)):
        return 0
    if isinstance(node.op, Cumsum):
        return node.types[0].at_example.sizes[node.op.axis]
    operations = work(node).flops or 0
    results = math.prod(node.types[0].at_example.sizes)
    return operations // max(1, results * (2 if node.op.is_contraction else 1))


def _change(operand: Value, terms: int) -> _Change:
    """Return the change of an operand of sums with a number of terms."""
    dtype = operand.type.dtype
    eps = torch.finfo(torch.float64 if dtype is DType.F64 else torch.float32).eps
    sizes = [size if isinstance(size, int) else 1 for size in operand.type.shape]
    for axis in range(len(sizes)):
        if math.prod(sizes) > MOST_SHARES:
            sizes[axis] = 1
    return _Change(TensorType(dtype, tuple(sizes)), math.sqrt(terms) * eps / 2)
