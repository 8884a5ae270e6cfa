"""Invented latencies: kernels, memory formats and substitutions are then chosen at random, without measuring.

Invariant: what was drawn once stays.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

import torch

from taso_py.backend.plan import Format
from taso_py.backend.tensors import TORCH_DTYPES
from taso_py.cost.estimate import Estimate, estimate_graph, revise
from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, Value, is_running
from taso_py.kernels.table import TILES, covers
from taso_py.kernels.tile import Cover, Formats, Tile

CPU = torch.device("cpu")


@dataclass
class InventedPrices:
    """Prices drawn at random, remembered."""

    seed: int
    fused: float = 1.0
    """What fused kernels cost, as a share of what is drawn."""
    drawn: dict[object, float] = field(default_factory=dict[object, float])
    kept: dict[Node, list[Cover]] = field(default_factory=dict[Node, list[Cover]])
    device: torch.device = CPU
    tiles: tuple[Tile, ...] = TILES
    """The implementations to choose from."""

    def covers(self, node: Node) -> Sequence[Cover]:
        """The covers that end with a node."""
        return self.kept.setdefault(node, covers(node, self.device, self.tiles))

    def cover_seconds(self, cover: Cover, formats: Formats) -> float:
        """What a cover costs; it depends on how operands are read."""
        share = 1.0 if cover.binder is None else self.fused
        return self.draw((cover.name, *(node.digest for node in cover.nodes), formats[0].value), share)

    def conversion_seconds(self, value: Value, format_: Format) -> float:
        """What laying a value out otherwise costs."""
        return self.draw((*value.key, format_.value), 0.6)

    def draw(self, key: tuple[object, ...], most: float) -> float:
        """A price, at random at first."""
        return self.drawn.setdefault(key, random.Random(f"{self.seed} {key}").random() * most)


class InventedCost(InventedPrices):
    """The cost that a search asks for, made of invented prices."""

    def graph_cost(self, graph: Graph) -> float:
        """What a graph costs."""
        return self.estimate(graph).seconds

    def estimate(self, graph: Graph) -> Estimate:
        """The same, with what computes it."""
        return estimate_graph(graph, self)

    def for_part(self, whole: Estimate, inputs: Mapping[Value, Value], outputs: Sequence[Value]) -> InventedCost:
        """The cost of a part of a graph: by itself."""
        return self

    def revise(self, before: Estimate, graph: Graph, images: Mapping[Node, Node], touched: Set[Node]) -> Estimate:
        """The same of a graph that was made from another."""
        return revise(before, graph, images, touched, self)

    def node_cost(self, node: Node) -> float:
        """What a node costs alone, computed by plain calls."""
        if not is_running(node):
            return 0.0
        plain = self.covers(node)[0]
        return self.cover_seconds(plain, plain.formats[0])

    def value_bytes(self, value: Value) -> int:
        """The memory that a value takes."""
        return math.prod(value.type.sizes) * TORCH_DTYPES[value.type.dtype].itemsize
