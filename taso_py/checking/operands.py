"""Random operands of graphs, whose integers are valid where they choose rows or elements.

Invariant: an integer by which a graph takes from an axis is a place on that axis, if it has any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Generator, Tensor

from taso_py.backend.random_tensors import uniform
from taso_py.backend.tensors import TORCH_DTYPES
from taso_py.ir.graph import Graph
from taso_py.ir.node import Value
from taso_py.ir.types import DType, TensorType
from taso_py.ops.selection import Gather, Take, origins

LOWEST = {"random": -1.0, "positive random": 0.25}
"""The least number of each kind of operands; only positive ones may be variances."""
_GREATEST = 1.25


def random_operand(
    type_: TensorType, sizes: Sequence[int], *, lowest: float, places: range, generator: Generator
) -> Tensor:
    """Return a random tensor.

    Args:
        type_: its type.
        sizes: its sizes.
        lowest: the least of its numbers, if they are not integers.
        places: the values of its integers.
        generator: draws them.
    """
    numbers = uniform(sizes, generator)
    if type_.dtype is DType.BOOL:
        return numbers < 0.5
    if type_.dtype.is_floating or type_.dtype.is_complex:
        numbers = numbers * (_GREATEST - lowest) + lowest
    else:
        numbers = torch.floor(numbers * len(places)) + places.start
    return numbers.to(TORCH_DTYPES[type_.dtype])


def places_in(
    graphs: Iterable[Graph], others: range, sizes: Callable[[TensorType], Sequence[int]]
) -> Callable[[Value], range]:
    """Return a function from an input to the integers that are valid in it.

    Args:
        graphs: all graphs that have the input.
        others: the integers of an input by which nothing is chosen.
        sizes: returns the sizes of a type.
    """
    found: dict[Value, range] = {}
    for node in (node for graph in graphs for node in graph.nodes):
        op = node.op
        if not isinstance(op, Take | Gather):
            continue
        extent = sizes(node.inputs[0].type)[op.axis]
        least = -extent if op.wraps == 1 else 0
        for origin in origins(node.inputs[1]):
            known = found.get(origin, range(least, extent))
            found[origin] = range(max(least, known.start), min(extent, known.stop))
    return lambda value: found.get(value, others)
