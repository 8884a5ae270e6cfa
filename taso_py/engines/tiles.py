"""Tiles for engines for whole graphs: single operators, and patterns that such engines fuse.

A tile here only means that the pattern is measured as a whole in the engine, whatever it compiles it to. So a rule that
splits a pattern that the engine fuses gets its true cost.

Convolutions, and operators between them, keep images in a blocked order of the engine's own: channels in blocks of 8 or
16. Of the two memory formats in the cost model, ``CHANNELS_LAST`` stands for this one here.

Invariant: the first cover of a node is that of the node alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from taso_py.backend.plan import is_formatted
from taso_py.ir.node import Node, Value
from taso_py.ir.operator import Constant
from taso_py.kernels.chain import chains
from taso_py.kernels.tile import CHANNELS_LAST, DENSE, Cover, Formats, Tile
from taso_py.ops.contraction import Matmul
from taso_py.ops.elementwise import Add
from taso_py.ops.movement import Concat, Permute
from taso_py.ops.normalization import LayerNorm, RmsNorm


def _nodes_alone(node: Node, device: torch.device) -> Iterator[Cover]:
    yield single_node_cover(node)


def _fused(node: Node, device: torch.device) -> Iterator[Cover]:
    """Yield the patterns ending at a node that engines fuse: epilogues, normalized sums, transposed operands."""
    for chain in chains(node):
        if len(chain.nodes) > 1:
            yield _cover(chain.nodes)
    if isinstance(node.op, LayerNorm | RmsNorm) and isinstance(node.inputs[0].node.op, Add):
        yield _cover((node.inputs[0].node, node))
    if isinstance(node.op, Matmul):
        for operand, _ in node.inputs:
            if isinstance(operand.op, Permute) and not operand.is_static:
                yield _cover((operand, node))


def single_node_cover(node: Node) -> Cover:
    """Return the cover of a single node."""
    return _cover((node,))


def _cover(nodes: tuple[Node, ...]) -> Cover:
    return Cover("session", nodes, tuple(external_operands(nodes)), _formats(nodes), text=chain_text(nodes))


def computes_by_element(node: Node) -> bool:
    """Return whether a node computes an elementwise function."""
    return node.op.is_elementwise and not node.op.is_movement


def chain_text(nodes: tuple[Node, ...]) -> str:
    """Return connected nodes as text: their operators, and their operands within the group (``%0``)."""
    places = {node: place for place, node in enumerate(nodes)}
    return "; ".join(
        " ".join([node.op.at_example.text, *(f"%{places[n]}" if n in places else "_" for n, _ in node.inputs)])
        for node in nodes
    )


def external_operands(nodes: Sequence[Node]) -> list[Value]:
    """Return the values that connected nodes read from outside, without constants, each once."""
    values = [value for node in nodes for value in node.inputs]
    return [v for v in dict.fromkeys(values) if v.node not in nodes and not isinstance(v.node.op, Constant)]


def _formats(nodes: Sequence[Node]) -> tuple[Formats, ...]:
    return (DENSE, CHANNELS_LAST) if all(map(_takes_blocks, nodes)) else (DENSE,)


def _takes_blocks(node: Node) -> bool:
    """Return whether engines compute a node on images in a blocked order."""
    if not is_formatted(node.value):
        return False
    images = [value.type for value in node.inputs if is_formatted(value)]
    if node.op.has_channels or isinstance(node.op, Concat) or node.op.epilogue is not None:
        return bool(images)
    # Per-channel scales, as in squeeze-and-excitation, are images of one pixel.
    return computes_by_element(node) and len(node.inputs) == len(images) == 2


SESSION_TILES = (Tile("session", _nodes_alone), Tile("session fused", _fused))
"""All tiles of engines for whole graphs."""
