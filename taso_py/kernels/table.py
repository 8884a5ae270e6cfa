"""The table of tiles, and the covers of a node.

Invariant: the first cover of a node is always that of PyTorch's plain operator.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from taso_py.ir.node import Node
from taso_py.kernels.affine import AFFINE
from taso_py.kernels.aten import ATEN
from taso_py.kernels.cudnn import CUDNN
from taso_py.kernels.mkl import MKL
from taso_py.kernels.multiply_add import MULTIPLY_ADD
from taso_py.kernels.onednn import ONEDNN
from taso_py.kernels.single import SINGLE
from taso_py.kernels.tile import Cover, Tile
from taso_py.kernels.winograd import WINOGRAD
from taso_py.ops.normalization import BatchNorm

TILES: tuple[Tile, ...] = (ATEN, AFFINE, MULTIPLY_ADD, SINGLE, *ONEDNN, MKL, WINOGRAD, *CUDNN)
"""All tiles, the plain operators first."""
PLAIN: tuple[Tile, ...] = (ATEN,)
"""The tiles beneath a compiler that chooses kernels of its own."""


def _products(tile: Tile) -> Tile:
    """Return the tile restricted to products, normalised or not, without an epilogue."""

    def products(node: Node, device: torch.device) -> Iterator[Cover]:
        for cover in tile.covers(node, device):
            if all(inner.op.is_contraction or isinstance(inner.op, BatchNorm) for inner in cover.nodes):
                yield cover

    return replace(tile, covers=products)


TRACED: tuple[Tile, ...] = (ATEN, *map(_products, (*ONEDNN, MKL)))
"""The tiles beneath a compiler that leaves products to these kernels and fuses the operators between them."""

TRACED_ON_GPU: tuple[Tile, ...] = (ATEN, *CUDNN)
"""The tiles beneath such a compiler on a GPU, with the epilogues that it fuses into products of its own only."""

PACKABLE: tuple[Tile, ...] = (ATEN, *map(_products, ONEDNN))
"""The tiles of :data:`TRACED` whose packed weights can be written to a file: MKL's depend on their address."""


def covers(node: Node, device: torch.device, tiles: tuple[Tile, ...] = TILES) -> list[Cover]:
    """Return the covers that end with a node, wherever a graph allows them.

    Leaves, static nodes and impure nodes have only the plain cover.
    """
    if node.is_static or not node.op.pure or len(node.types) != 1:
        return list(ATEN.covers(node, device))
    return [cover for tile in tiles for cover in tile.covers(node, device)]
