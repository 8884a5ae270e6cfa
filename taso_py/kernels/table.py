"""The table of tiles, and what fits where.

Invariant: the first cover of a node is always that of PyTorch's plain operator.
"""

from __future__ import annotations

import torch

from taso_py.ir.node import Node
from taso_py.kernels.aten import ATEN
from taso_py.kernels.cudnn import CUDNN
from taso_py.kernels.mkl import MKL
from taso_py.kernels.onednn import ONEDNN
from taso_py.kernels.tile import Cover, Tile

TILES: tuple[Tile, ...] = (ATEN, *ONEDNN, MKL, *CUDNN)
"""All tiles, the plain operators first."""
PLAIN: tuple[Tile, ...] = (ATEN,)
"""What a compiler behind the module can trace, which chooses kernels of its own."""


def covers(node: Node, device: torch.device, tiles: tuple[Tile, ...] = TILES) -> list[Cover]:
    """The covers that end with a node, wherever a graph allows them.

    Leaves, what depends on weights only, and what is not pure, have the plain cover alone.
    """
    if node.is_static or not node.op.pure or len(node.types) != 1:
        return list(ATEN.covers(node, device))
    return [cover for tile in tiles for cover in tile.covers(node, device)]
