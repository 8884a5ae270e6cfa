"""Latencies without measuring: drawn at random, so that choices are random, or those of a modelled machine.

Invariant: a latency is drawn once and then stays the same.
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
from taso_py.ops.work import region_work

CPU = torch.device("cpu")
CALL_S, VIEW_S = 5e-6, 1e-6
"""Seconds of a call and of a view on the modelled machine."""
FLOP_PER_S, BYTES_PER_S = 5e10, 1e10
"""Operations and bytes in a second there."""


@dataclass
class InventedPrices:
    """Prices drawn at random and cached."""

    seed: int
    fused: float = 1.0
    """Greatest price of fused kernels, relative to that of others."""
    drawn: dict[object, float] = field(default_factory=dict[object, float])
    kept: dict[Node, list[Cover]] = field(default_factory=dict[Node, list[Cover]])
    device: torch.device = CPU
    tiles: tuple[Tile, ...] = TILES
    """The implementations to choose from."""

    def covers(self, node: Node) -> Sequence[Cover]:
        """Return the covers that end with a node."""
        known = self.kept.get(node)
        if known is None:
            known = self.kept[node] = covers(node, self.device, self.tiles)
        return known

    def cover_seconds(self, cover: Cover, formats: Formats) -> float:
        """Return the price of a cover; it depends on the formats in which it reads its operands."""
        share = 1.0 if cover.binder is None else self.fused
        return self.draw((cover.name, *(node.digest for node in cover.nodes), formats[0].value), share)

    def conversion_seconds(self, value: Value, format_: Format) -> float:
        """Return the price of converting a value to another format."""
        return self.draw((*value.key, format_.value), 0.6)

    def draw(self, key: tuple[object, ...], most: float) -> float:
        """Return the price of a key, drawn at random the first time."""
        return self.drawn.setdefault(key, random.Random(f"{self.seed} {key}").random() * most)


class InventedCost(InventedPrices):
    """A search's cost model over random prices."""

    def graph_cost(self, graph: Graph) -> float:
        """Return the cost of a graph."""
        return self.estimate(graph).seconds

    def estimate(self, graph: Graph) -> Estimate:
        """Return the cost of a graph with its choice of kernels and formats."""
        return estimate_graph(graph, self)

    def for_part(self, whole: Estimate, inputs: Mapping[Value, Value], outputs: Sequence[Value]) -> InventedCost:
        """Return the cost model for a part of a graph, which is priced by itself."""
        return self

    def revise(self, before: Estimate, graph: Graph, images: Mapping[Node, Node], touched: Set[Node]) -> Estimate:
        """Return the cost and choices of a graph that was made from another."""
        return revise(before, graph, images, touched, self)

    def node_cost(self, node: Node) -> float:
        """Return the cost of a node alone, computed by plain calls."""
        if not is_running(node):
            return 0.0
        plain = self.covers(node)[0]
        return self.cover_seconds(plain, plain.formats[0])

    def value_bytes(self, value: Value) -> int:
        """Return the memory that a value takes."""
        return math.prod(value.type.sizes) * TORCH_DTYPES[value.type.dtype].itemsize


class ModelledCost(InventedCost):
    """Prices from a model of a machine: so much a call, an operation and a byte moved; a view is nearly free."""

    def cover_seconds(self, cover: Cover, formats: Formats) -> float:
        """Return the price of a cover."""
        if cover.root.op.is_view:
            return VIEW_S
        done = region_work(cover.nodes, cover.root.outputs)
        return CALL_S + (done.flops or 0) / FLOP_PER_S + done.moved / BYTES_PER_S

    def conversion_seconds(self, value: Value, format_: Format) -> float:
        """Return the price of converting a value to another format."""
        return CALL_S + 2 * self.value_bytes(value) / BYTES_PER_S
