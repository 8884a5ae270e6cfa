"""Cost of a graph: the measured latencies of the kernels and memory formats that suit it best.

Each latency is that of a cover on operands of the given types and strides, taken from the latency database or measured
once and stored there. Values that depend on weights only are computed at build time and cost nothing. The sum guides
the search; the result is decided by measuring whole graphs.

Calls are measured one by one, as in a model: on operands that were just written, after other calls that evicted from
the caches what the last call of the kernel left there (:mod:`taso_py.kernels.eviction`). Their sum is about five sixths
of the time of a run; the rest is a factor that all latencies share (:meth:`CostModel.rescale`).

Invariant: the latency of a node stays the same until it is refined, which no search does, so that a search is
deterministic.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import nullcontext
from copy import copy
from dataclasses import replace
from weakref import WeakKeyDictionary

import torch

from taso_py.backend.plan import Format, Plan, is_formatted
from taso_py.backend.tensors import TORCH_DTYPES
from taso_py.cost.choice import Choice, Problem, allowed, choose, solve
from taso_py.cost.estimate import Estimate, estimate_graph, revise
from taso_py.cost.labelling import BoundaryFormats
from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, Value, is_running
from taso_py.kernels.probe import devices_elsewhere
from taso_py.kernels.table import PLAIN, TILES, covers
from taso_py.kernels.tile import Cover, Formats, Tile
from taso_py.latency.database import LatencyDatabase
from taso_py.latency.environment import Environment
from taso_py.latency.latencies import Latencies
from taso_py.latency.schema import Key, SearchKey
from taso_py.progress import progress_bar


class CostModel:
    """Latencies of covers, nodes and graphs on a device, in seconds."""

    def __init__(
        self,
        device: torch.device,
        database: LatencyDatabase,
        *,
        weight_bytes: int = 0,
        tiles: tuple[Tile, ...] = TILES,
        formats: Iterable[Format] = Format,
        progress: bool = False,
        environment: Environment | None = None,
        captured: bool = False,
        latencies: Latencies | None = None,
    ) -> None:
        """Create a model.

        Args:
            device: the device on which latencies are measured.
            database: the store of measured latencies.
            weight_bytes: bytes of the optimized model's weights, which pass through the caches between two uses of one.
            tiles: the implementations to choose from.
            formats: the memory formats to choose from.
            progress: true to show a progress bar.
            environment: use the latencies of this environment, not of this process; unmeasured kernels cost infinity.
            captured: true if calls will be captured in CUDA graphs, and are measured so; others are never chosen.
            latencies: the source of latencies; by default calls of PyTorch's kernels are measured.
        """
        self.latencies = latencies or Latencies(
            device, database, environment, weight_bytes=weight_bytes, captured=captured
        )
        self.device, self.captured = device, captured
        self.tiles, self._formats = tiles, frozenset(formats)
        self._progress, self._is_elsewhere = progress, environment is not None
        self._covers: WeakKeyDictionary[Node, list[Cover]] = WeakKeyDictionary()
        self._known: WeakKeyDictionary[Node, float] = WeakKeyDictionary()
        self._prices: WeakKeyDictionary[Cover, dict[Format, float]] = WeakKeyDictionary()
        self._conversions: WeakKeyDictionary[Node, dict[tuple[int, Format], float]] = WeakKeyDictionary()
        self._revision = 0
        self.scale = 1.0
        """The ratio of a graph's run time to the sum of the latencies of its calls."""

    def with_tiles(self, tiles: tuple[Tile, ...]) -> CostModel:
        """Return a model with other kernels to choose from, which shares the latencies and the scale of this one."""
        other = copy(self)
        other.tiles = tiles
        other._covers, other._known, other._prices, other._conversions = (WeakKeyDictionary() for _ in range(4))
        return other

    def plain(self) -> CostModel:
        """Return the model of graphs that run by PyTorch's own calls, in the layout that these give."""
        other = self.with_tiles(PLAIN)
        other._formats = frozenset({Format.DENSE})
        return other

    def node_cost(self, node: Node) -> float:
        """Return the seconds that a node takes by itself; 0 for leaves and for values computed at build time."""
        known = self._known.get(node)
        if known is None:
            known = self._known[node] = 0.0 if _is_free(node) else self._best(node)
        return known

    def graph_cost(self, graph: Graph) -> float:
        """Return the seconds that a graph takes with the best kernels and memory formats."""
        return self.estimate(graph).seconds

    def estimate(self, graph: Graph) -> Estimate:
        """Return the cost estimate of a graph."""
        return estimate_graph(graph, self, self._formats)

    def revise(self, before: Estimate, graph: Graph, images: Mapping[Node, Node], touched: Set[Node]) -> Estimate:
        """Return the cost estimate of a graph made from another; see :func:`taso_py.cost.estimate.revise`."""
        return revise(before, graph, images, touched=touched, prices=self, formats=self._formats)

    def for_part(self, whole: Estimate, inputs: Mapping[Value, Value], outputs: Sequence[Value]) -> PartCost:
        """Return this cost for a part of a graph: values that cross its boundary keep their memory format.

        Args:
            whole: the estimate of the graph.
            inputs: maps the part's inputs to values of the graph.
            outputs: the values of the graph that the part's outputs replace.
        """
        given = {value: whole.gives(stands) for value, stands in inputs.items() if is_formatted(value)}
        return PartCost(self, self._formats, BoundaryFormats(given, tuple(map(whole.gives, outputs))))

    def choice(self, graph: Graph) -> Choice:
        """Return the best kernels and memory formats of a graph, and its latency with them, which is measured."""
        self.settle(graph)
        found = choose(graph, self, formats=self._formats)
        return replace(found, plan=found.plan.eager())

    def plan(self, graph: Graph) -> Plan:
        """Return the best kernels and memory formats of a graph."""
        return self.choice(graph).plan

    def value_bytes(self, value: Value) -> int:
        """Return the bytes of a value."""
        type_ = value.type
        return type_.elements * TORCH_DTYPES[type_.dtype].itemsize

    def rescale(self, scale: float) -> None:
        """Set the ratio of a graph's run time to the sum of the latencies of its calls."""
        self.scale = scale
        for known in (self._known, self._prices, self._conversions):
            known.clear()

    def settle(self, graph: Graph) -> bool:
        """Measure latencies that were estimated until the best plan of a graph rests on none; return whether it did."""
        was_estimated = False
        while True:
            if self._revision != self.latencies.revision:
                self._revision = self.latencies.revision
                self.rescale(self.scale)
            if not self.latencies.measure(self._chosen_covers(graph)):
                return was_estimated
            was_estimated = True

    def refine(self, graph: Graph, other: Graph) -> bool:
        """Measure again, interleaved, kernels that two graphs' plans do not share; return whether a price changed."""
        was_estimated = self.settle(graph) | self.settle(other)
        first, second = self._bare_covers(graph), self._bare_covers(other)
        counts = Counter(key for key, _ in first)
        counts.subtract(key for key, _ in second)
        if not self.latencies.refine({key: where for key, where in (*first, *second) if counts[key]}):
            return was_estimated
        self.rescale(self.scale)
        return True

    def now(self) -> float:
        """Return the time in seconds, not counting the time spent on measuring latencies."""
        return time.monotonic() - self.latencies.measuring_s

    def has_converged(self, graph: Graph, setup: str) -> bool:
        """Return whether a search of this graph with these kernels and this setup has converged, in any process."""
        return self.latencies.has_converged(self._search_key(graph, setup))

    def record_convergence(self, graph: Graph, setup: str, best_s: float) -> None:
        """Record that a search has converged, and the cost of its best graph; the next such search measures nothing.

        Nothing is recorded if latencies were disturbed, since those are not stored, or left out, or if the graph cannot
        be priced.
        """
        if self.latencies.disturbed or self.latencies.left_out or not math.isfinite(best_s):
            return
        self.latencies.record_convergence(self._search_key(graph, setup), best_s)

    def _search_key(self, graph: Graph, setup: str) -> SearchKey:
        return SearchKey(graph.digest, setup, kernels=" ".join(sorted(tile.name for tile in self.tiles)))

    def run_and_call_seconds(self, graph: Graph, run: Callable[[], object]) -> Sequence[tuple[float, float]]:
        """Return (seconds of a run, sum of its calls' seconds one by one) of a graph's best plan, several times.

        Args:
            graph: the graph.
            run: runs it according to :meth:`plan`.
        """
        covers = [(self.latencies.key(*where), where) for where in self._chosen_covers(graph)]
        found = self.latencies.measure_run_and_calls(run, dict(covers))
        return [(together, sum(apart[key] for key, _ in covers)) for together, apart in found]

    def _chosen_covers(self, graph: Graph) -> list[tuple[Cover, Format]]:
        """Return the best covers of a graph, except views and free nodes, and the memory formats that they read."""
        found = solve(Problem(graph, self, self._formats))
        reads = [(cover, reads) for cover, (reads, _) in zip(found.covers, found.formats, strict=True)]
        return [where for where in reads if not self._is_view(where[0]) and not _is_free(where[0].root)]

    def _bare_covers(self, graph: Graph) -> list[tuple[Key, tuple[Cover, Format]]]:
        """Return the best covers of a graph reduced to their bare products, by latency key."""
        bare = [(cover if cover.bare is None else cover.bare(), reads) for cover, reads in self._chosen_covers(graph)]
        return [(self.latencies.key(*where), where) for where in bare]

    def _is_view(self, cover: Cover) -> bool:
        return len(cover.nodes) == 1 and self.latencies.is_view(cover.root)

    def warm(self, graph: Graph) -> None:
        """Measure the unknown latencies of a graph's nodes, the longest first.

        The plain kernel of each node is measured however long that takes: otherwise the graph has no price.
        """
        unknown = [node for node in graph.nodes if node not in self._known]
        with self.latencies.required():
            plain = {node: self._plain_seconds(node) for node in self._with_progress(unknown, "measure")}
        unknown.sort(key=lambda node: -plain[node])
        for node in self._with_progress(unknown, "measure kernels"):
            self.node_cost(node)
            for cover in self.covers(node):
                if is_running(node) and len(cover.nodes) > 1:
                    self.cover_seconds(cover, cover.formats[-1])

    def _with_progress(self, nodes: Sequence[Node], what: str) -> Iterable[Node]:
        """Yield nodes, with a progress bar if the model shows one."""
        return progress_bar(nodes, desc=what, unit="op", shown=self._progress)

    def _plain_seconds(self, node: Node) -> float:
        """Return the seconds that a node takes by itself as PyTorch or an engine computes it, with dense operands."""
        if _is_free(node):
            return 0.0
        plain = [cover for cover in self.covers(node) if len(cover.nodes) == 1 and cover.binder is None]
        return min(self.cover_seconds(cover, allowed(cover, self._formats)[0]) for cover in plain)

    def covers(self, node: Node) -> Sequence[Cover]:
        """Return the covers that end with a node, remembered."""
        known = self._covers.get(node)
        if known is None:
            with devices_elsewhere() if self._is_elsewhere else nullcontext():
                known = self._covers[node] = covers(node, self.device, self.tiles)
        return known

    def cover_seconds(self, cover: Cover, formats: Formats) -> float:
        """Return the latency of a cover; it depends on the operands' format only, which determines the results'."""
        known = self._prices.get(cover)
        if known is None:
            known = self._prices[cover] = {}
        if formats[0] not in known:
            known[formats[0]] = 0.0 if _is_free(cover.root) else self.scale * self.latencies.of_cover(cover, formats[0])
        return known[formats[0]]

    def conversion_seconds(self, value: Value, format_: Format) -> float:
        """Return the latency of converting a value to a memory format; zero if both formats are the same order."""
        node, output = value
        known, place = self._conversions.get(node), (output, format_)
        if known is None:
            known = self._conversions[node] = {}
        if place not in known:
            known[place] = self.scale * self.latencies.of_conversion(value, format_)
        return known[place]

    def _best(self, node: Node) -> float:
        """Return the latency of the best cover of a node alone; formats are tried if they make a difference."""
        tried = slice(None) if node.op.has_channels else slice(1)
        alone = (cover for cover in self.covers(node) if len(cover.nodes) == 1)
        return min(self.cover_seconds(cover, pair) for cover in alone for pair in allowed(cover, self._formats)[tried])


class PartCost:
    """The cost of graphs that replace a part of another."""

    def __init__(self, cost: CostModel, formats: Set[Format], boundary: BoundaryFormats) -> None:
        self._cost, self._formats, self._boundary = cost, formats, boundary
        self.node_cost, self.value_bytes, self.for_part = cost.node_cost, cost.value_bytes, cost.for_part

    def graph_cost(self, graph: Graph) -> float:
        """Return the seconds that a graph takes in place of the part."""
        return self.estimate(graph).seconds

    def estimate(self, graph: Graph) -> Estimate:
        """Return the cost estimate of a graph in place of the part."""
        return estimate_graph(graph, self._cost, self._formats, self._boundary)

    def revise(self, before: Estimate, graph: Graph, images: Mapping[Node, Node], touched: Set[Node]) -> Estimate:
        """Return the estimate of a graph made from another; see :func:`taso_py.cost.estimate.revise`."""
        return revise(
            before, graph, images, touched=touched, prices=self._cost, formats=self._formats, boundary=self._boundary
        )


def _is_free(node: Node) -> bool:
    """Return whether a node has no price: it does not run, or is an effect, which is the same in every graph."""
    return not (is_running(node) and node.op.pure)
