"""Latencies of covers in an engine for whole graphs: each cover is run there as a model of its own.

The time of an empty run is subtracted. Images are passed densely, as models get theirs; the engine's time to reorder
them, which its profiler reports, is counted if a cover reads dense images, and left out if it reads them from another
cover in the engine's own order.

Invariant: latencies are stored by engine, its version and its number of threads; a cover that the engine refuses costs
infinity.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from taso_py.backend.plan import Format
from taso_py.cost.model import CostModel
from taso_py.engines.calls import (
    PROFILED_RUNS,
    SessionCall,
    conversion_node,
    operators_made,
    reorder_split,
    small_example,
)
from taso_py.engines.engine import EngineUnavailableError
from taso_py.engines.session import SessionEngine
from taso_py.engines.tiles import SESSION_TILES, chain_text, computes_by_element, single_node_cover
from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, Value, make, make_as
from taso_py.ir.operator import Constant, Input
from taso_py.ir.types import DType, TensorType
from taso_py.kernels.layout import is_weight
from taso_py.kernels.tile import Cover
from taso_py.latency.clock import Latency
from taso_py.latency.database import LatencyDatabase
from taso_py.latency.environment import Environment
from taso_py.latency.latencies import Latencies
from taso_py.latency.measuring import Measuring
from taso_py.latency.pace import Reference
from taso_py.latency.schema import Key
from taso_py.ops.contraction import Conv2d
from taso_py.ops.elementwise import Relu
from taso_py.ops.movement import Reshape

_log = logging.getLogger(__name__)
EMPTY_S = 0.05
"""Seconds to measure an empty run."""
SIZES = tuple(2**power for power in (9, 13, 17, 20, 22))
"""Sizes in elements at which elementwise operators are measured; others are interpolated."""
CHANNELS, ROW = 32, 4
"""Channels and width of the images with which reordering is measured."""


class SessionLatencies(Latencies):
    """Latencies of covers in an engine, in seconds."""

    def __init__(self, engine: SessionEngine, database: LatencyDatabase, weight_bytes: int) -> None:
        """Prepare to measure.

        Args:
            engine: the engine.
            database: the latency database.
            weight_bytes: bytes of the user's model's weights, which evict each other from the caches between two calls.
        """
        device = torch.device("cpu")
        super().__init__(device, database, None, weight_bytes, captured=False)
        self._environment = Environment.current(device).for_engine(engine.version)
        self._engine = engine
        self._empty_s: float | None = None
        self._splits: dict[Key, tuple[float, float, float]] = {}

    def _instrument(self, captured: bool) -> Measuring:
        """Measure without a pacer, whose threads would disturb the engine's."""
        return Measuring(self._device, is_late=lambda: self.is_over)

    def is_view(self, node: Node) -> bool:
        """Return whether a node moves no data: in these engines a reshaped value shares its operand's memory."""
        return isinstance(node.op, Reshape)

    def key(self, cover: Cover, reads: Format) -> Key:
        return self._name(cover, reads), self._signature(cover)

    def of_cover(self, cover: Cover, reads: Format) -> float:
        """Return the latency of a cover, with images in the engine's own order if the format is ``CHANNELS_LAST``."""
        return 0.0 if len(cover.nodes) == 1 and self.is_view(cover.root) else super().of_cover(cover, reads)

    def _of_key(self, key: Key, cover: Cover, reads: Format) -> float:
        if _is_elementwise(cover):
            return self._by_size(cover.root.types[0].elements, lambda size: self._elementwise(cover.root, size))
        product, *tail = cover.nodes
        if tail and product.op.is_contraction:
            return self._chain_seconds(product, tail, reads)
        if _has_bias(product):
            # It is added as the results are written. Measured by itself, the noise would look like a gain of rules.
            return self.of_cover(single_node_cover(make(product.op, product.inputs[:2])), reads)
        return super()._of_key(key, cover, reads)

    def of_conversion(self, value: Value, format_: Format) -> float:
        """Return the time to reorder an image into the engine's own order, or back, from its profiler."""
        return self._by_size(value.type.elements, lambda size: self._conversion(size, format_))

    def _by_size(self, elements: int, measured: Callable[[int], float]) -> float:
        """Return the time for a number of elements, interpolated between measured sizes."""
        above = next((size for size in SIZES if size >= elements), SIZES[-1])
        below = max((size for size in SIZES if size < above), default=above)
        slow, fast = measured(above), measured(below)
        if math.inf in (slow, fast):  # one of them was refused, or left out for lack of time
            return math.inf
        if elements >= above:
            return slow * elements / above
        return fast + (slow - fast) * max(0, elements - below) / max(1, above - below)

    def _elementwise(self, node: Node, size: int) -> float:
        type_ = TensorType(node.types[0].dtype, (size,))
        operands = [
            v if isinstance(v.node.op, Constant) else make(Input(f"x{place}", replace(v.type, shape=(size,)))).value
            for place, v in enumerate(node.inputs)
        ]
        cover = single_node_cover(make_as(node.op, operands, (type_,)))
        return super()._of_key(self.key(cover, Format.DENSE), cover, Format.DENSE)

    def _conversion(self, size: int, format_: Format) -> float:
        type_ = TensorType(DType.F32, (1, CHANNELS, size // CHANNELS // ROW, ROW))
        key = f"{self._engine.name}:reorder:{format_.value}", type_.text

        def converted() -> Callable[[], object]:
            _, before, after = self._reorder_split(single_node_cover(conversion_node(type_)))
            return _Known(before if format_ is Format.CHANNELS_LAST else after)

        return self.lookup(key, converted)

    def _chain_seconds(self, product: Node, tail: Sequence[Node], reads: Format) -> float:
        """Return the latency of a product and its tail, of which the engine fuses some or all operators."""
        left = self._left_over(product, tail)
        rest = sum(self.of_cover(single_node_cover(node), reads) for node in tail) if left else 0.0
        return self.of_cover(single_node_cover(product), reads) + left * rest

    def _left_over(self, product: Node, tail: Sequence[Node]) -> float:
        """Return the share of a tail that is not fused, from the number of operators compiled for a small example."""
        small = small_example((product, *tail))
        key = f"{self._engine.name}:left over", chain_text(small)

        def counted() -> Callable[[], object]:
            nodes, single = (operators_made(self._engine, part) for part in (small, small[:1]))
            return _Known(min(1.0, max(0, nodes - single) / len(tail)))

        return self.lookup(key, counted, otherwise=1.0)

    def _check(self, cover: Cover, reads: Format) -> None:
        """Check nothing: the results of whole graphs in the engine are checked."""

    def _call(self, cover: Cover, reads: Format, ring: int) -> Callable[[], object]:
        if not isinstance(cover.root.op, Conv2d):
            return SessionCall(self._engine, cover.nodes, ring)
        inside, before, after = self._reorder_split(cover)
        return _Known(inside if reads is Format.CHANNELS_LAST else inside + before + after)

    def _measure(
        self,
        make: Callable[[], Callable[[], object]],
        key: Key,
        beside: Callable[[], Reference | None],
        otherwise: float,
    ) -> tuple[Latency | None, bool]:
        """Return a measurement and whether to store it; None if the engine refuses, which is reported elsewhere."""
        try:
            return super()._measure(make, key, beside, otherwise)
        except EngineUnavailableError as error:
            _log.info("%s with %s: %s", *key, error)
            return None, False

    def _reorder_split(self, cover: Cover) -> tuple[float, float, float]:
        """Return a convolution's time, and the times to reorder its images before and after it."""
        key = self.key(cover, Format.DENSE)
        if key not in self._splits:
            self._splits[key] = reorder_split(self._engine, cover.nodes, self._ring)
        return self._splits[key]

    def _measure_call(self, call: Callable[[], object], beside: Reference | None) -> tuple[Latency, bool]:
        assert self._measuring is not None, "what is elsewhere is not measured"
        if isinstance(call, _Known):
            return Latency(call.value, call.value, call.value, PROFILED_RUNS, 0), self._measuring.is_calm
        assert isinstance(call, SessionCall), "all that is measured here is run by an engine"
        latency, is_calm = super()._measure_call(call, beside)
        if self._empty_s is None:
            self._empty_s = self._empty()
        return call.net(latency, self._empty_s), is_calm

    def refine(self, covers: Mapping[Key, tuple[Cover, Format]]) -> bool:
        """Measure nothing again: to time whole graphs, which decides in the end, takes no longer."""
        return False

    def _empty(self) -> float:
        """Return the seconds of a run that computes next to nothing."""
        assert self._measuring is not None, "something was measured"
        number = make(Input("x", TensorType(DType.F32, (1,))))
        call = SessionCall(self._engine, [make(Relu(), [number.value])], 0)
        latency, _ = self._measuring.measured(call, EMPTY_S)
        return latency.low_s

    def _name(self, cover: Cover, reads: Format) -> str:
        has_images = any(isinstance(node.op, Conv2d) for node in cover.nodes)
        images = "" if not has_images else " in blocks" if reads is Format.CHANNELS_LAST else " dense"
        return f"{self._engine.name}:{cover.text}{images}"

    def _signature(self, cover: Cover) -> str:
        """Return the operands' types and which are weights; sorted for commutative operators."""
        parts = [("weight " if is_weight(value) else "") + value.type.at_example.text for value in cover.operands]
        is_commutative = len(cover.nodes) == 1 and cover.root.op.commutative
        signature = ", ".join(sorted(parts) if is_commutative else parts)
        return f"{signature} of {self._ring >> 20} MiB" if "weight" in signature else signature


@dataclass(frozen=True)
class _Known:
    """A call whose time is known already, from the engine's profiler."""

    value: float

    def __call__(self) -> None:
        """Do nothing."""


def _has_bias(node: Node) -> bool:
    """Return whether a node is a convolution that adds a number, known at build time, to each channel."""
    return isinstance(node.op, Conv2d) and len(node.inputs) == 3 and node.inputs[2].node.is_static


def _is_elementwise(cover: Cover) -> bool:
    """Return whether a cover is a single elementwise operator."""
    return len(cover.nodes) == 1 and computes_by_element(cover.root)


def session_cost(engine: SessionEngine, graph: Graph, database: LatencyDatabase, *, progress: bool) -> CostModel:
    """Return the cost model for graphs in an engine.

    Args:
        engine: the engine.
        graph: the graph to optimize, whose weights evict each other from the caches.
        database: the latency database.
        progress: whether to show a bar.
    """
    weight_bytes = engine.held_bytes(graph)
    latencies = SessionLatencies(engine, database, weight_bytes)
    return CostModel(
        torch.device("cpu"),
        database,
        weight_bytes=weight_bytes,
        tiles=SESSION_TILES,
        progress=progress,
        latencies=latencies,
    )
