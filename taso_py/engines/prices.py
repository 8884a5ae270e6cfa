"""What operators cost in an engine that takes whole graphs: each cover is run there, as a model of its own.

What an empty run takes is taken off. Images are handed over densely, as models get theirs; what the engine then takes
to bring them into an order of its own, which its profiler tells, is counted where a cover reads dense images, and left
out where it gets them from another cover that leaves them in that order.

Invariant: latencies are kept under the engine, its version and its number of threads; what the engine refuses costs
infinity.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from taso_py.backend.plan import Format
from taso_py.cost.model import CostModel
from taso_py.engines.calls import PROFILED_RUNS, SessionCall, conversion, example, operators_made, reorder_split
from taso_py.engines.engine import EngineUnavailableError
from taso_py.engines.session import SessionEngine
from taso_py.engines.tiles import SESSION_TILES, alone, chain_text, computes_by_element, reads
from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, Value, make, make_as
from taso_py.ir.operator import Constant, Input
from taso_py.ir.types import DType, TensorType
from taso_py.kernels.layout import is_weight
from taso_py.kernels.tile import Cover
from taso_py.latency.clock import Latency
from taso_py.latency.database import Key, LatencyDatabase
from taso_py.latency.environment import Environment
from taso_py.latency.latencies import Latencies
from taso_py.latency.measuring import Measuring
from taso_py.latency.pace import Reference
from taso_py.ops.contraction import Conv2d
from taso_py.ops.elementwise import Relu
from taso_py.ops.movement import Reshape

_log = logging.getLogger(__name__)
EMPTY_S = 0.05
"""Time to measure an empty run for."""
SIZES = tuple(2**power for power in (9, 13, 17, 20, 22))
"""Of values, in elements, between which latencies of what is computed by element are interpolated."""
CHANNELS, ROW = 32, 4
"""Of the images by which reordering is measured."""


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
        self._environment = Environment.current(device).for_engine(engine.version)
        self._engine = engine
        self._empty_s: float | None = None
        self._splits: dict[Key, tuple[float, float, float]] = {}

    def _instrument(self, captured: bool) -> Measuring:
        """Measure without a pacer, whose threads would be awake beside the engine's."""
        return Measuring(self._device, is_late=lambda: self.is_over)

    def is_view(self, node: Node) -> bool:
        """Whether a node moves nothing: such engines let a reshaped value share memory with what it was."""
        return isinstance(node.op, Reshape)

    def key(self, cover: Cover, reads: Format) -> Key:
        return self._name(cover, reads), self._signature(cover)

    def of_cover(self, cover: Cover, reads: Format) -> float:
        """That of a cover, its images being in the engine's own order where the format is ``CHANNELS_LAST``."""
        if len(cover.nodes) == 1 and self.is_view(cover.root):
            return 0.0
        if _is_elementwise(cover):
            return self._by_size(cover.root.types[0].elements, lambda size: self._elementwise(cover.root, size))
        product, *tail = cover.nodes
        if tail and product.op.is_contraction:
            return self._chain(product, tail, reads)
        return super().of_cover(cover, reads)

    def of_conversion(self, value: Value, format_: Format) -> float:
        """That of bringing an image into the engine's own order, or back, as its profiler tells."""
        return self._by_size(value.type.elements, lambda size: self._conversion(size, format_))

    def _by_size(self, elements: int, measured: Callable[[int], float]) -> float:
        """What takes time in proportion to elements once they are many, by what it takes at sizes around."""
        above = next((size for size in SIZES if size >= elements), SIZES[-1])
        below = max((size for size in SIZES if size < above), default=above)
        slow, fast = measured(above), measured(below)
        if elements >= above:
            return slow * elements / above
        return fast + (slow - fast) * max(0, elements - below) / max(1, above - below)

    def _elementwise(self, node: Node, size: int) -> float:
        type_ = TensorType(node.types[0].dtype, (size,))
        operands = [
            v if isinstance(v.node.op, Constant) else make(Input(f"x{place}", replace(v.type, shape=(size,)))).value
            for place, v in enumerate(node.inputs)
        ]
        return super().of_cover(alone(make_as(node.op, operands, (type_,))), Format.DENSE)

    def _conversion(self, size: int, format_: Format) -> float:
        type_ = TensorType(DType.F32, (1, CHANNELS, size // CHANNELS // ROW, ROW))
        key = f"{self._engine.name}:reorder:{format_.value}", type_.text

        def converted() -> Callable[[], object]:
            _, before, after = self._split(alone(conversion(type_)))
            return _Known(before if format_ is Format.CHANNELS_LAST else after)

        return self.lookup(key, converted)

    def _chain(self, product: Node, tail: Sequence[Node], reads: Format) -> float:
        """What a product takes with what is computed of its result, as far as the engine does not do that with it."""
        left = self._left_over(product, tail)
        rest = sum(self.of_cover(alone(node), reads) for node in tail) if left else 0.0
        return self.of_cover(alone(product), reads) + left * rest

    def _left_over(self, product: Node, tail: Sequence[Node]) -> float:
        """The share of a tail that the engine computes by itself, by how many operators it makes of a small example."""
        small = example((product, *tail))
        key = f"{self._engine.name}:left over", chain_text(small)

        def counted() -> Callable[[], object]:
            nodes, single = (operators_made(self._engine, part) for part in (small, small[:1]))
            return _Known(min(1.0, max(0, nodes - single) / len(tail)))

        return self.lookup(key, counted, otherwise=1.0)

    def _check(self, cover: Cover, reads: Format) -> None:
        """Check nothing: the engine's results are checked of whole graphs."""

    def _call(self, cover: Cover, reads: Format, ring: int) -> Callable[[], object]:
        if not isinstance(cover.root.op, Conv2d):
            return SessionCall(self._engine, cover.nodes, ring)
        inside, before, after = self._split(cover)
        return _Known(inside if reads is Format.CHANNELS_LAST else inside + before + after)

    def _measure(
        self,
        make: Callable[[], Callable[[], object]],
        key: Key,
        beside: Callable[[], Reference | None],
        otherwise: float,
    ) -> tuple[Latency | None, bool]:
        """A measurement, and whether it may be kept; None where the engine refuses, which is told of whole graphs."""
        try:
            return super()._measure(make, key, beside, otherwise)
        except EngineUnavailableError as error:
            _log.info("%s with %s: %s", *key, error)
            return None, False

    def _split(self, cover: Cover) -> tuple[float, float, float]:
        """What a convolution takes, and what it takes to bring its images into the engine's own order, and back."""
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
        """Measure nothing again: what decides between graphs is how they run as wholes, which takes no longer."""
        return False

    def _empty(self) -> float:
        """Seconds that a run takes in which next to nothing is computed."""
        assert self._measuring is not None, "something was measured"
        number = make(Input("x", TensorType(DType.F32, (1,))))
        call = SessionCall(self._engine, [make(Relu(), [number.value])], 0)
        latency, _ = self._measuring.measured(call, EMPTY_S)
        return latency.low_s

    def _name(self, cover: Cover, reads: Format) -> str:
        images = (
            "" if not isinstance(cover.root.op, Conv2d) else " in blocks" if reads is Format.CHANNELS_LAST else " dense"
        )
        return f"{self._engine.name}:{cover.text}{images}"

    def _signature(self, cover: Cover) -> str:
        """Types of operands, and which are weights; which comes first of a commutative operator's is chance."""
        parts = [("weight " if is_weight(value) else "") + value.type.at_example.text for value in reads(cover.nodes)]
        is_commutative = len(cover.nodes) == 1 and cover.root.op.commutative
        signature = ", ".join(sorted(parts) if is_commutative else parts)
        return f"{signature} of {self._ring >> 20} MiB" if "weight" in signature else signature


@dataclass(frozen=True)
class _Known:
    """A call of which it is known what it takes: an engine's profiler has told, or it is no time at all."""

    value: float

    def __call__(self) -> None:
        """Nothing is left to do."""


def _is_elementwise(cover: Cover) -> bool:
    """Whether a cover is one function of elements at equal places."""
    return len(cover.nodes) == 1 and computes_by_element(cover.root)


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
