"""The cost of a graph: the latencies, measured on the device, of the kernels and memory formats that suit it best.

Each latency is that of a cover on operands of the given types and strides, taken from the latency database or measured
once and put there. What depends on weights only is computed when a module is built and costs nothing. The sum guides
the search; it is not the verdict.

Called again and again alone, an operator finds its operands in the nearest cache and its code in the pipeline; in a
model it does not, and the plain sum is 0.7 to 0.9 of the truth. What calls take longer there, each by itself and for
each byte of activations, is seen in a run of the model itself, plainly computed (:mod:`taso_py.cost.calibration`); what
is missing then, since the machine has become slower or faster meanwhile, is a factor that all latencies share
(:meth:`CostModel.calibrate`). Candidates are priced alike.

Invariant: the latency of a node is the same throughout the life of a model, so that a search is deterministic.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from copy import copy
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

import torch
from tqdm import tqdm

from taso_py.backend.plan import Format, Plan, is_formatted
from taso_py.backend.tensors import TORCH_DTYPES
from taso_py.cost.appraisal import Appraisal, appraise, revise
from taso_py.cost.calibration import Excess, Part, excess
from taso_py.cost.choice import IMAGE_OPERATORS, Choice, Rim, allowed, choose, is_running
from taso_py.cost.clock import Latency
from taso_py.cost.database import Key, LatencyDatabase
from taso_py.cost.environment import Environment
from taso_py.cost.measuring import Measuring
from taso_py.cost.pace import Pace, Pacer, Reference, usual_pace
from taso_py.ir.errors import first_line
from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, Value
from taso_py.ir.operator import Constant, Input, Weight
from taso_py.kernels.layout import Layouts
from taso_py.kernels.table import TILES, covers
from taso_py.kernels.tile import Cover, Formats, Tile
from taso_py.kernels.timed import conversion, timed_call

LEAST_RING, MOST_RING = 2**20, 2**26
"""Bytes of weights between which the caches of present machines make a difference."""
BUDGET_S = 0.02
"""Longest time to measure one tile for, unless that gives too few samples or too wide an interval."""
RUN_S = 0.6
"""Time to measure a run of a whole graph for."""
GIB = 2**30
"""Bytes for which the latency database says what they take longer in a run: those of one byte would be listed as 0."""
PLAIN_NAME = "torch:"
"""How the names of plain operators begin in the database; they are called through PyTorch's Python functions."""
_NOTHING = Latency(0.0, 0.0, 0.0, 1, 0)

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Context:
    """What being in a model adds to latencies that were measured alone."""

    scale: float = 1.0
    """Of what was measured alone."""
    per_call_s: float = 0.0
    per_byte_s: float = 0.0
    """Of the activations that a call reads and writes."""


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
    ) -> None:
        """Prepare a model.

        Args:
            device: where latencies are measured.
            database: where they are kept.
            weight_bytes: of the model that is optimized: what its weights displace from the caches between two uses.
            tiles: the implementations to choose from.
            formats: the memory formats to choose from.
            progress: whether to show a bar.
            environment: whose latencies are used, if not this process's; what is not known there takes for ever.
        """
        self._ring = 2 ** (min(max(weight_bytes, LEAST_RING), MOST_RING).bit_length() - 1)
        self._device = device
        self._database = database
        self._environment = environment or Environment.current(device)
        self._measuring = None if environment else Measuring(device, usual=self._usual_pace)
        self.tiles, self._formats = tiles, frozenset(formats)
        self._progress = progress
        self._layouts = Layouts()
        self._covers: WeakKeyDictionary[Node, list[Cover]] = WeakKeyDictionary()
        self._known: WeakKeyDictionary[Node, float] = WeakKeyDictionary()
        self._prices: WeakKeyDictionary[Cover, dict[Format, float]] = WeakKeyDictionary()
        self._conversions: WeakKeyDictionary[Node, dict[tuple[int, Format], float]] = WeakKeyDictionary()
        self._latencies: dict[Key, float] = {}
        self.context = Context()
        self.measured = 0
        """How many latencies were measured, not found in the database."""
        self.disturbed = 0
        """How many of these are not kept for other runs: other programs held the processor."""

    def narrowed(self, tiles: tuple[Tile, ...]) -> CostModel:
        """The same latencies and context for other implementations to choose from; what either measures, both know."""
        other = copy(self)
        other.tiles, other.measured, other.disturbed = tiles, 0, 0
        other._covers, other._known, other._prices, other._conversions = (WeakKeyDictionary() for _ in range(4))
        return other

    @property
    def unknown(self) -> int:
        """How many latencies there are not: the kernel fails, or was never measured in the environment."""
        return sum(latency == math.inf for latency in self._latencies.values())

    def node_cost(self, node: Node) -> float:
        """Seconds that a node takes by itself; 0 for leaves and for what is computed when a module is built."""
        known = self._known.get(node)
        if known is None:
            known = self._known[node] = 0.0 if _is_free(node) else self._best(node)
        return known

    def graph_cost(self, graph: Graph) -> float:
        """Seconds that a graph takes with the kernels and memory formats that suit it."""
        return self.appraise(graph).seconds

    def appraise(self, graph: Graph) -> Appraisal:
        """What computes a graph, and what that costs."""
        return appraise(graph, self, self._formats)

    def revise(self, before: Appraisal, graph: Graph, images: Mapping[Node, Node], touched: Set[Node]) -> Appraisal:
        """The same of a graph that was made from another; see :func:`taso_py.cost.appraisal.revise`."""
        return revise(before, graph, images, touched, self, self._formats)

    def within(self, whole: Appraisal, inputs: Mapping[Value, Value], outputs: Sequence[Value]) -> PartCost:
        """This cost for a part of a graph: what crosses its rim keeps its memory format.

        Args:
            whole: the appraisal of the graph.
            inputs: what the inputs of the part stand for there.
            outputs: what its outputs stand for.
        """
        given = {value: whole.gives(stands) for value, stands in inputs.items() if is_formatted(value)}
        return PartCost(self, self._formats, Rim(given, tuple(map(whole.gives, outputs))))

    def choice(self, graph: Graph) -> Choice:
        """The kernels and memory formats that suit a graph best, and its latency with them."""
        found = choose(graph, self, formats=self._formats)
        return replace(found, plan=found.plan.eager())

    def plan(self, graph: Graph) -> Plan:
        """The kernels and memory formats that suit a graph best."""
        return self.choice(graph).plan

    def value_bytes(self, value: Value) -> int:
        """The memory that a value takes."""
        return math.prod(value.type.sizes) * TORCH_DTYPES[value.type.dtype].itemsize

    def calibrate(self, graph: Graph, call: Callable[[], object], inside: Callable[[], Mapping[Node, float]]) -> None:
        """Learns what being in a model adds, from a run of one.

        Args:
            graph: what is run; each node by its plain operator.
            call: runs it.
            inside: says how many seconds nodes take in a run, of the graph or of one that differs in static nodes only.
        """
        running = [node for node in graph.nodes if not _is_free(node)]
        covers = [self.covers(node)[0] for node in running]
        self.recalibrate(Context())
        alone = sum(self._alone(cover, Format.DENSE) for cover in covers)
        digest = hashlib.blake2b(repr(graph.key).encode(), digest_size=16).hexdigest()
        run = f"{digest} of {len(running)} calls"
        together = self._lookup((f"{PLAIN_NAME}graph", run), lambda: call, RUN_S)
        if not together or not alone or math.inf in (together, alone):
            return
        longer = self._excess(run, inside)
        moved = sum(self._activation_bytes(cover) for cover in covers)
        scale = together / (alone + longer.per_call_s * len(covers) + longer.per_byte_s * moved)
        self.recalibrate(Context(scale, scale * longer.per_call_s, scale * longer.per_byte_s))

    def _excess(self, run: str, inside: Callable[[], Mapping[Node, float]]) -> Excess:
        """What calls take longer in a run than alone: found once and kept, unless the machine is not calm."""
        keys = [(f"{PLAIN_NAME}{name}", run) for name in ("cold call", "cold GiB")]
        known = [self._database.get(self._environment, *key) for key in keys]
        if known[0] is not None and known[1] is not None:
            return Excess(known[0].median_s, known[1].median_s / GIB)
        if self._measuring is None:
            return Excess()
        found = self._compared(self._measuring.at_usual_pace(inside()))
        if self._measuring.is_calm:
            for key, seconds in zip(keys, (found.per_call_s, found.per_byte_s * GIB), strict=True):
                self._database.put(self._environment, *key, Latency(seconds, seconds, seconds, 1, 0))
        return found

    def _compared(self, inside: Mapping[Node, float]) -> Excess:
        """What calls take longer by what nodes took in a run."""
        plain = {node: self.covers(node)[0] for node in inside if not _is_free(node)}
        return excess(
            [
                Part(self._alone(cover, Format.DENSE), inside[node], self._activation_bytes(cover))
                for node, cover in plain.items()
            ]
        )

    def recalibrate(self, context: Context) -> None:
        """Prices everything anew for a context."""
        self.context = context
        for known in (self._known, self._prices, self._conversions):
            known.clear()

    def warm(self, graph: Graph) -> None:
        """Measures what is not known of a graph's nodes, with a progress bar where the model was given one."""
        unknown = [node for node in graph.nodes if node not in self._known]
        for node in tqdm(unknown, desc="measure", unit="op", leave=False, disable=not self._progress):
            self.node_cost(node)
            for cover in self.covers(node):
                if is_running(node) and len(cover.nodes) > 1:
                    self.cover_seconds(cover, cover.formats[-1])

    def covers(self, node: Node) -> Sequence[Cover]:
        """The covers that end with a node, remembered."""
        known = self._covers.get(node)
        if known is None:
            known = self._covers[node] = covers(node, self._device, self.tiles)
        return known

    def cover_seconds(self, cover: Cover, formats: Formats) -> float:
        """The latency of a cover. Results lie as they do, so that it depends on how operands are read."""
        known = self._prices.setdefault(cover, {})
        if formats[0] not in known:
            known[formats[0]] = 0.0 if _is_free(cover.root) else self._in_context(cover, formats[0])
        return known[formats[0]]

    def conversion_seconds(self, value: Value, format_: Format) -> float:
        """The latency of laying a value out in a memory format; where both are the same order, nothing is moved."""
        known, place = self._conversions.setdefault(value.node, {}), (value.output, format_)
        if place not in known:
            known[place] = self._converting(value, format_)
        return known[place]

    def _converting(self, value: Value, format_: Format) -> float:
        channels, rows, columns = value.type.sizes[1:]
        key = f"convert:{format_.value}", self._layouts.signature([value], format_.other)
        alone = self._lookup(key, lambda: conversion(value, format_, self._device))
        is_moved = channels > 1 and max(rows, columns) > 1
        return self._added(alone, 2 * self.value_bytes(value) if is_moved else 0)

    def _best(self, node: Node) -> float:
        """The latency of the best cover of a node alone; the formats are tried where they make a difference."""
        tried = slice(None) if isinstance(node.op, IMAGE_OPERATORS) else slice(1)
        alone = (cover for cover in self.covers(node) if len(cover.nodes) == 1)
        return min(self.cover_seconds(cover, pair) for cover in alone for pair in allowed(cover, self._formats)[tried])

    def _in_context(self, cover: Cover, reads: Format) -> float:
        """The latency of a cover in a model."""
        return self._added(self._alone(cover, reads), self._activation_bytes(cover))

    def _added(self, alone: float, moved: int) -> float:
        context = self.context
        return alone * context.scale + context.per_call_s + moved * context.per_byte_s

    def _activation_bytes(self, cover: Cover) -> int:
        """What a cover reads and writes apart from weights; views do neither."""
        if len(cover.nodes) == 1 and self._layouts.is_view(cover.root):
            return 0
        read = (value for value in dict.fromkeys(cover.operands) if not value.node.is_static)
        return sum(map(self.value_bytes, (*read, *cover.root.outputs)))

    def _alone(self, cover: Cover, reads: Format) -> float:
        """The latency of a cover that is called again and again alone."""

        def call() -> Callable[[], object]:
            return timed_call(cover, reads, self._device, self._ring)

        return self._lookup(self._key(cover, reads), call, beside=lambda: self._reference(cover, reads))

    def _reference(self, cover: Cover, reads: Format) -> Reference | None:
        """What a cover's first node takes without what the cover computes besides, by the same kernel.

        What it computes besides adds a percent or two, as much as two latencies differ that were measured at different
        times: half of Inception-v3's convolutions would leave their activations to calls of their own.
        """
        first = cover.nodes[0]
        for plain in self.covers(first) if len(cover.nodes) > 1 else ():
            if plain.name == cover.name and plain.nodes == (first,) and reads in {pair[0] for pair in plain.formats}:
                self._alone(plain, reads)
                known = self._database.get(self._environment, *self._key(plain, reads))
                if known is not None:
                    return Reference(timed_call(plain, reads, self._device, self._ring), known.median_s)
        return None

    def _lookup(
        self,
        key: Key,
        make: Callable[[], Callable[[], object]],
        budget_s: float = BUDGET_S,
        beside: Callable[[], Reference | None] = lambda: None,
    ) -> float:
        """The median latency of a call: remembered, from the database, or measured now and put there."""
        known = self._latencies.get(key)
        if known is None:
            found = self._database.get(self._environment, *key)
            if found is None:
                found, is_calm = self._measure(make, key, budget_s, beside)
                if found is None:
                    self._latencies[key] = math.inf
                    return math.inf
                self.measured += 1
                self.disturbed += not is_calm
                if is_calm:
                    self._database.put(self._environment, *key, found)
            known = self._latencies[key] = found.median_s
        return known

    def _key(self, cover: Cover, reads: Format) -> Key:
        """What a latency depends on. For views that is the call alone, whatever the shape and the attributes."""
        node, name = cover.root, PLAIN_NAME if cover.binder is None else f"{cover.name}:"
        if len(cover.nodes) == 1 and self._layouts.is_view(node):
            return name + node.op.name, f"view of rank {node.inputs[0].type.rank} as {node.types[0].rank}"
        operands = cover.operands
        if len(cover.nodes) == 1 and node.op.commutative:
            # Which operand comes first is chance.
            operands = tuple(sorted(operands, key=lambda value: self._layouts.signature([value], reads)))
        signature = self._layouts.signature(operands, reads)
        if cover.packed is not None:
            signature += f"; weight {cover.packed.at_example.text}"
        if "weight" in signature:
            signature += f" of {self._ring >> 20} MiB"
        return name + cover.text, signature

    def _usual_pace(self, pacer: Pacer) -> Pace:
        return usual_pace(pacer, self._environment, self._database)

    def _measure(
        self,
        make: Callable[[], Callable[[], object]],
        key: Key,
        budget_s: float,
        beside: Callable[[], Reference | None],
    ) -> tuple[Latency | None, bool]:
        """A measurement, and whether it may be kept; None for a kernel that fails, or whose device is not here."""
        if self._measuring is None:
            return None, False
        try:
            with torch.no_grad():
                return self._measuring.measured(make(), budget_s, beside())
        except (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError) as error:
            if not key[0].startswith(PLAIN_NAME):
                _log.warning("%s fails on %s and is not used: %s", *key, first_line(error))
                return None, False
            # An opaque operator may need operands that cannot be made up. It is in every candidate alike.
            _log.warning("%s cannot be measured alone and counts as free: %s", key[0], first_line(error))
            return _NOTHING, True


class PartCost:
    """What graphs cost that stand for a part of another."""

    def __init__(self, cost: CostModel, formats: Set[Format], rim: Rim) -> None:
        self._cost, self._formats, self._rim = cost, formats, rim
        self.node_cost, self.value_bytes, self.within = cost.node_cost, cost.value_bytes, cost.within

    def graph_cost(self, graph: Graph) -> float:
        """Seconds that a graph takes in place of the part."""
        return self.appraise(graph).seconds

    def appraise(self, graph: Graph) -> Appraisal:
        """What computes it, and what that costs."""
        return appraise(graph, self._cost, self._formats, self._rim)

    def revise(self, before: Appraisal, graph: Graph, images: Mapping[Node, Node], touched: Set[Node]) -> Appraisal:
        """The same of a graph that was made from another; see :func:`taso_py.cost.appraisal.revise`."""
        return revise(before, graph, images, touched, self._cost, self._formats, self._rim)


def _is_free(node: Node) -> bool:
    return node.is_static or not node.op.pure or isinstance(node.op, Input | Weight | Constant)
