"""What operators cost in an engine that takes whole graphs: each cover is run there, as a model of its own.

What an empty run takes is taken off. Images are handed over densely, as models get theirs; what the engine then takes
to bring them into an order of its own, which its profiler tells, is counted where a cover reads dense images, and left
out where it gets them from another cover that leaves them in that order.

Invariant: latencies are kept under the engine, its version and its number of threads; what the engine refuses costs
infinity.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from taso_py.backend.plan import Format
from taso_py.cost.clock import Latency
from taso_py.cost.database import Key, LatencyDatabase
from taso_py.cost.environment import Environment
from taso_py.cost.latencies import Latencies
from taso_py.cost.measuring import Measuring
from taso_py.cost.model import CostModel
from taso_py.engines.calls import SessionCall, conversion
from taso_py.engines.session import SessionEngine
from taso_py.engines.tiles import SESSION_TILES, reads
from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, Value, make
from taso_py.ir.operator import Input
from taso_py.ir.types import DType, TensorType
from taso_py.kernels.layout import is_weight
from taso_py.kernels.tile import Cover
from taso_py.ops.contraction import Conv2d
from taso_py.ops.elementwise import Relu
from taso_py.ops.movement import Reshape

EMPTY_S = 0.05
"""Time to measure an empty run for."""


class SessionLatencies(Latencies):
    """Latencies of covers in an engine, in seconds."""

    def __init__(self, engine: SessionEngine, database: LatencyDatabase, weight_bytes: int) -> None:
        """Prepare to measure.

        Args:
            engine: where covers run.
            database: where latencies are kept.
            weight_bytes: of the model that is optimized: what its weights displace from the caches between two uses.
        """
        device = torch.device("cpu")
        super().__init__(device, database, None, weight_bytes, captured=False)
        self._environment = Environment.current(device).in_engine(engine.version)
        self._engine = engine
        self._empty_s: float | None = None

    def _instrument(self, captured: bool) -> Measuring:
        """Measure without a pacer, whose threads would be awake beside the engine's."""
        return Measuring(self._device)

    def is_view(self, node: Node) -> bool:
        """Whether a node moves nothing: such engines let a reshaped value share memory with what it was."""
        return isinstance(node.op, Reshape)

    def key(self, cover: Cover, reads: Format) -> Key:
        return self._name(cover, reads), self._signature(cover)

    def of_cover(self, cover: Cover, reads: Format) -> float:
        return 0.0 if len(cover.nodes) == 1 and self.is_view(cover.root) else super().of_cover(cover, reads)

    def of_conversion(self, value: Value, format_: Format) -> float:
        """That of bringing an image into the engine's own order, or back, as its profiler tells."""
        type_ = value.type.at_example
        key = f"{self._engine.name}:convert:{format_.value}", type_.text
        return self.lookup(key, lambda: _Conversion(self._engine, [conversion(type_)], format_))

    def _check(self, cover: Cover, reads: Format) -> None:
        """Check nothing: the engine's results are checked of whole graphs."""

    def _call(self, cover: Cover, reads: Format, ring: int) -> Callable[[], object]:
        kind = _InBlocks if _is_reordered(cover, reads) else SessionCall
        return kind(self._engine, cover.nodes, ring)

    def _net(self, latency: Latency, call: Callable[[], object]) -> Latency:
        assert isinstance(call, SessionCall), "all that is measured here is run by an engine"
        if self._empty_s is None:
            self._empty_s = self._empty()
        return call.net(latency, self._empty_s)

    def _empty(self) -> float:
        """Seconds that a run takes in which next to nothing is computed."""
        assert self._measuring is not None, "something was measured"
        number = make(Input("x", TensorType(DType.F32, (1,))))
        call = SessionCall(self._engine, [make(Relu(), [number.value])], 0)
        latency, _ = self._measuring.measured(call, EMPTY_S)
        return latency.low_s

    def _name(self, cover: Cover, reads: Format) -> str:
        in_blocks = " in blocks" if _is_reordered(cover, reads) else ""
        return f"{self._engine.name}:{cover.text}{in_blocks}"

    def _signature(self, cover: Cover) -> str:
        """Types of operands, and which are weights; which comes first of a commutative operator's is chance."""
        parts = [("weight " if is_weight(value) else "") + value.type.at_example.text for value in reads(cover.nodes)]
        is_commutative = len(cover.nodes) == 1 and cover.root.op.commutative
        signature = ", ".join(sorted(parts) if is_commutative else parts)
        return f"{signature} of {self._ring >> 20} MiB" if "weight" in signature else signature


class _InBlocks(SessionCall):
    """The same of a cover whose images are in the engine's own order already, and stay in it."""

    def net(self, latency: Latency, empty_s: float, share: float = 1.0) -> Latency:
        before, after = self.reorder_shares
        return super().net(latency, empty_s, 1 - before - after)


class _Conversion(SessionCall):
    """A run in which images are brought into the engine's own order, and back, of which one way counts."""

    def __init__(self, engine: SessionEngine, nodes: list[Node], format_: Format) -> None:
        super().__init__(engine, nodes, 0)
        self._way = 0 if format_ is Format.CHANNELS_LAST else 1

    def net(self, latency: Latency, empty_s: float, share: float = 1.0) -> Latency:
        return super().net(latency, empty_s, self.reorder_shares[self._way])


def _is_reordered(cover: Cover, reads: Format) -> bool:
    """Whether a cover that is run alone is given images in an order that it would not find them in."""
    return reads is Format.CHANNELS_LAST and any(isinstance(node.op, Conv2d) for node in cover.nodes)


def session_cost(engine: SessionEngine, graph: Graph, database: LatencyDatabase, *, progress: bool) -> CostModel:
    """Return the cost of graphs in an engine.

    Args:
        engine: where they run.
        graph: what is optimized: what its weights displace from the caches depends on how many there are.
        database: where latencies are kept.
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
