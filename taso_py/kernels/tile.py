"""Tiles: ways to compute an operator on a device.

Graphs hold meanings; a tile is an implementation, chosen per node by measurement as in instruction selection. The
table has one row now, PyTorch's plain operators; others are rows of the same form.

Invariant: ``TILES`` is never empty for a node that can be lowered, since the plain operators cover every one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import torch
from torch import Tensor, fx

from taso_py.backend.lowering import lower
from taso_py.ir.node import Node
from taso_py.kernels.layout import random_operands


@dataclass(frozen=True)
class Tile:
    """An implementation of single operators."""

    name: str
    covers: Callable[[Node, torch.device], bool]
    """Whether it can compute a node on a device."""
    write: Callable[[fx.Graph, Node, Sequence[Any], torch.device], Sequence[Any]]
    """Writes the calls for a node, given what stands for its operands; gives what stands for its outputs."""


def _write_aten(graph: fx.Graph, node: Node, operands: Sequence[Any], device: torch.device) -> Sequence[Any]:
    def call(overload: Any, *arguments: Any, **keywords: Any) -> fx.Node:
        return graph.call_function(overload, arguments, keywords)

    return lower(call, node, operands, device)


ATEN = Tile("aten", lambda _node, _device: True, _write_aten)
"""PyTorch's own operator, in the default memory format."""

TILES: tuple[Tile, ...] = (ATEN,)


RING_COPIES = 64
"""How many copies of small weights are made at most: so many are beyond the caches in any case or no matter."""


def tiles_for(node: Node, device: torch.device) -> list[Tile]:
    """The tiles that can compute a node on a device."""
    return [tile for tile in TILES if tile.covers(node, device)]


def timed_call(tile: Tile, node: Node, device: torch.device, ring_bytes: int) -> Callable[[], tuple[Tensor, ...]]:
    """A call of the tile on operands made up for the node, with as little around it as in a built module.

    A model reads each weight once a run, by when the rest of the model has displaced it from the fast caches, whereas
    activations were written just before. So calls take turns through copies of the weights.

    Args:
        tile: what computes the node.
        node: the node.
        device: where.
        ring_bytes: how many bytes of weights are read before the same are read again; as many as the model has.

    Returns:
        What computes the outputs of the node.
    """
    operands = random_operands(node, device)
    graph = fx.Graph()
    placeholders = [None if tensor is None else graph.placeholder(f"x{i}") for i, tensor in enumerate(operands)]
    graph.output(tuple(tile.write(graph, node, placeholders, device)))
    forward = fx.GraphModule(torch.nn.Module(), graph).forward
    weights = {i for i, value in enumerate(node.inputs) if value.node.is_static and operands[i] is not None}
    size = sum(tensor.nbytes for i, tensor in enumerate(operands) if tensor is not None and i in weights)
    copies = min(RING_COPIES, 1 + ring_bytes // size) if size else 1
    ring = cycle(
        [
            [_copy(tensor) if i in weights else tensor for i, tensor in enumerate(operands) if tensor is not None]
            for _ in range(copies)
        ]
    )
    return lambda: forward(*next(ring))


def _copy(tensor: Tensor) -> Tensor:
    """The same tensor on a copy of its storage: strides stay, even where elements overlap."""
    storage = tensor.untyped_storage().clone()
    return tensor.new_empty(0).set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())
