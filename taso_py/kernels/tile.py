"""Tiles: ways to compute an operator on a device.

Graphs hold meanings; a tile is an implementation, chosen per node by measurement as in instruction selection. The
table has one row now, PyTorch's plain operators; others are rows of the same form.

Invariant: ``TILES`` is never empty for a node that can be lowered, since the plain operators cover every one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
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


def tiles_for(node: Node, device: torch.device) -> list[Tile]:
    """The tiles that can compute a node on a device."""
    return [tile for tile in TILES if tile.covers(node, device)]


def timed_call(tile: Tile, node: Node, device: torch.device) -> Callable[[], tuple[Tensor, ...]]:
    """A call of the tile on operands made up for the node, with as little around it as in a built module.

    It returns the outputs of the node.
    """
    operands = random_operands(node, device)
    graph = fx.Graph()
    placeholders = [None if tensor is None else graph.placeholder(f"x{i}") for i, tensor in enumerate(operands)]
    graph.output(tuple(tile.write(graph, node, placeholders, device)))
    module = fx.GraphModule(torch.nn.Module(), graph)
    tensors: list[Tensor] = [tensor for tensor in operands if tensor is not None]
    return partial(module.forward, *tensors)
