"""The cost of a graph: the sum of its operators' latencies, measured on the device.

Each latency is that of the best tile for an operator on operands of the given types and strides, taken from the latency
database or measured once and put there. What depends on weights only is computed when a module is built and costs
nothing. The sum guides the search; it is not the verdict (it misses what operators do to each other's caches).

Invariant: the latency of a node is the same throughout the life of a model, so that a search is deterministic.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from weakref import WeakKeyDictionary

import torch
from tqdm import tqdm

from taso_py.backend.tensors import TORCH_DTYPES
from taso_py.cost.clock import Latency, measure
from taso_py.cost.database import Key, LatencyDatabase
from taso_py.cost.environment import Environment
from taso_py.ir.errors import first_line
from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, Value
from taso_py.ir.operator import Constant, Input, Weight
from taso_py.kernels.layout import Layouts
from taso_py.kernels.tile import Tile, tiles_for, timed_call

LEAST_RING, MOST_RING = 2**20, 2**26
"""Bytes of weights between which the caches of present machines make a difference."""
BUDGET_S = 0.01
"""Longest time to measure one tile for, unless that gives too few samples or too wide an interval."""
MORE_S = 0.06
"""Longest time for another attempt."""
ATTEMPTS = 3
SAMPLES = 4
WIDTH = 0.25
"""A measurement with fewer samples, or an interval wider than this share of the median, is made again."""
WARM_UP = 2
"""Calls before anything is measured: the first ones start threads and choose algorithms."""
_NOTHING = Latency(0.0, 0.0, 0.0, 1, 0)

_log = logging.getLogger(__name__)


class CostModel:
    """Latencies of nodes and graphs on a device, in seconds."""

    def __init__(
        self, device: torch.device, database: LatencyDatabase, *, weight_bytes: int = 0, progress: bool = False
    ) -> None:
        """Prepare a model.

        Args:
            device: where latencies are measured.
            database: where they are kept.
            weight_bytes: of the model that is optimized: what its weights displace from the caches between two uses.
            progress: whether to show a bar.
        """
        self._ring = 2 ** (min(max(weight_bytes, LEAST_RING), MOST_RING).bit_length() - 1)
        self._device = device
        self._database = database
        self._environment = Environment.current(device)
        self._progress = progress
        self._layouts = Layouts()
        self._known: WeakKeyDictionary[Node, float] = WeakKeyDictionary()
        self._latencies: dict[Key, float] = {}
        self.measured = 0
        """How many tiles were measured, not found in the database."""

    def node_cost(self, node: Node) -> float:
        """Seconds that a node takes at run time; 0 for leaves and for what is computed when a module is built."""
        known = self._known.get(node)
        if known is None:
            known = self._known[node] = 0.0 if _is_free(node) else self._best(node)
        return known

    def graph_cost(self, graph: Graph) -> float:
        """Seconds that a graph takes: the sum over its nodes."""
        return sum(map(self.node_cost, graph.nodes))

    def value_bytes(self, value: Value) -> int:
        """The memory that a value takes."""
        return math.prod(value.type.sizes) * TORCH_DTYPES[value.type.dtype].itemsize

    def warm(self, graph: Graph) -> None:
        """Measures what is not known of a graph's nodes, with a progress bar where the model was given one."""
        unknown = [node for node in graph.nodes if node not in self._known]
        for node in tqdm(unknown, desc="measure", unit="op", leave=False, disable=not self._progress):
            self.node_cost(node)

    def _best(self, node: Node) -> float:
        return min(self._latency(tile, node) for tile in tiles_for(node, self._device))

    def _latency(self, tile: Tile, node: Node) -> float:
        key = self._key(tile, node)
        known = self._latencies.get(key)
        if known is None:
            found = self._database.get(self._environment, *key)
            if found is None:
                found = self._measure(tile, node)
                self._database.put(self._environment, *key, found)
                self.measured += 1
            known = self._latencies[key] = found.median_s
        return known

    def _key(self, tile: Tile, node: Node) -> Key:
        """What a latency depends on. For views that is the call alone, whatever the shape and the attributes."""
        if self._layouts.is_view(node):
            return f"{tile.name}:{node.op.name}", f"view of rank {node.inputs[0].type.rank} as {node.types[0].rank}"
        signature = self._layouts.signature(node)
        if "weight" in signature:
            signature += f" of {self._ring >> 20} MiB"
        return f"{tile.name}:{node.op.text}", signature

    def _measure(self, tile: Tile, node: Node) -> Latency:
        try:
            with torch.no_grad():
                return self._repeat(timed_call(tile, node, self._device, self._ring))
        except (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError) as error:
            # An opaque operator may need operands that cannot be made up. It is in every candidate alike.
            _log.warning("%s cannot be measured alone and counts as free: %s", node.op.name, first_line(error))
            return _NOTHING

    def _repeat(self, call: Callable[[], object]) -> Latency:
        """The least of a few measurements, of one if it is good: what disturbs a measurement makes it longer."""
        for _ in range(WARM_UP):
            call()
        attempts: list[Latency] = []
        while len(attempts) < ATTEMPTS:
            budget = MORE_S if attempts else BUDGET_S
            attempts.append(measure(call, device=self._device, budget_s=budget))
            if attempts[-1].samples >= SAMPLES and _spread(attempts[-1]) <= WIDTH:
                break
        return min(attempts, key=lambda latency: latency.median_s)


def _spread(latency: Latency) -> float:
    """The width of the median's interval as a share of the median."""
    return (latency.high_s - latency.low_s) / latency.median_s if latency.median_s else 0.0


def _is_free(node: Node) -> bool:
    return node.is_static or not node.op.pure or isinstance(node.op, Input | Weight | Constant)
