"""Latencies of single calls on a device: remembered, read from the database, or measured once and stored there.

A kernel that computes an epilogue is measured together with the bare product: the epilogue adds a percent or two, as
much as two latencies differ that were measured at different times.

The latencies that a search asks for are measured one after the other, for a few milliseconds each. The speed of a
shared machine changes meanwhile, and the best of many graphs tends to consist of kernels measured at a good moment. So
the kernels that decide between two graphs are measured again, interleaved (:meth:`Latencies.refine`).

Most of the latencies that a search asks for are of kernels that no good plan uses. So a latency is estimated where a
similar call was measured, until :meth:`Latencies.measure` asks for it.

Invariant: a latency stays the same until it is measured or refined; a kernel that differs from plain operators has none
once it is measured.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from statistics import median

import torch

from taso_py.backend.plan import Format
from taso_py.ir.errors import InvariantError, first_line
from taso_py.ir.node import Node, Value
from taso_py.kernels.check import FAILURES, check
from taso_py.kernels.layout import Layouts
from taso_py.kernels.tile import Cover
from taso_py.kernels.timed import conversion, timed_call
from taso_py.latency.clock import Latency, TimingError
from taso_py.latency.database import LatencyDatabase
from taso_py.latency.environment import Environment
from taso_py.latency.measuring import Measuring, rounds
from taso_py.latency.pace import Pacer, Reference, usual_pace
from taso_py.latency.schema import Key, LatencyKind, SearchKey
from taso_py.latency.similar import CallTraits, SimilarCalls, conversion_traits, traits_of
from taso_py.latency.usual import Pace
from taso_py.ops.opaque import Opaque

LEAST_RING, MOST_RING = 2**20, 2**26
"""The range of bytes of weights in which the caches of present machines make a difference."""
BUDGET_S = 0.02
"""The longest time to measure a tile, unless that gives too few samples or too wide an interval."""
RUN_S, CALL_S = 0.2, 0.01
"""The time to measure a run, and each of its calls next to it."""
PASSES = 3
"""The number of times a run and its calls are measured in turn, since the machine's speed may change."""
PASSES_S = 5.0
"""The longest time for that, a multiple of the usual: when other programs hold the cores, each pass takes minutes."""
RING_DIVISOR = 8
"""Divisor of the weight ring in interleaved measurement, where other calls read their weights in between."""
PLAIN_NAME = "torch:"
"""Prefix of the names of plain operators in the database; they are called through PyTorch's Python functions."""

_log = logging.getLogger(__name__)


def _no_reference() -> Reference | None:
    """Return no reference, for a call that resembles no other."""
    return None


def _no_traits() -> CallTraits | None:
    """Return no traits, for a call whose latency is not estimated."""
    return None


class Latencies:
    """Latencies of covers and conversions, in seconds; on the CPU, calls are measured as among the calls of a model."""

    def __init__(
        self,
        device: torch.device,
        database: LatencyDatabase,
        environment: Environment | None,
        weight_bytes: int,
        captured: bool,
    ) -> None:
        """Create the latencies; the arguments are those of the cost model."""
        self._ring = 2 ** (min(max(weight_bytes, LEAST_RING), MOST_RING).bit_length() - 1)
        self._device = device
        self.database = database
        here = Environment.current(device) if environment is None else environment
        self._environment = here.with_cuda_graphs() if captured else here
        self._measuring = None if environment else self._instrument(captured)
        self.layouts = Layouts()
        self._known: dict[Key, float] = {}
        self._refined: dict[Key, float | None] = {}
        """Ratio of a latency measured interleaved to the first one; None if it was not measured so."""
        self._final: dict[Key, float] = {}
        """Refined latencies of covers. A cover's key determines that of its bare product, which is slow to make."""
        self._may_store = True
        """True if the usual pace to which latencies are scaled is reliable enough to store them."""
        self.measured = 0
        """The number of latencies that were measured, not found in the database."""
        self.disturbed = 0
        """The number of measured latencies that are not stored, because other programs held the machine."""
        self.measuring_s = 0.0
        """The seconds spent on measuring."""
        self.limit_s = math.inf
        """The limit of the seconds spent on measuring; unknown latencies are infinite after that, unless required."""
        self.reach = 0.0
        """How far a measured call may be from one whose latency is estimated from it; 0 to measure all. Once the time
        for measuring is used up, estimates come from any."""
        self.revision = 0
        """The number of latencies that were estimated first and measured later."""
        self._similar = SimilarCalls()
        self._estimated: dict[Key, float] = {}
        self._guessed: set[Key] = set()
        """Keys of latencies that were estimated at some time and not measured since."""
        self._is_exact = False
        self._is_required = False
        self._left_out: set[Key] = set()

    def _instrument(self, captured: bool) -> Measuring:
        """Return the instrument that measures calls."""
        return Measuring(self._device, usual=self._usual_pace, captured=captured, is_late=lambda: self.is_over)

    def _call(self, cover: Cover, reads: Format, ring: int) -> Callable[[], object]:
        """Return a call of a cover, which cycles through so many bytes of weights.

        Raises:
            TasoError: the kernel differs from plain operators.
        """
        return timed_call(cover, reads, self._device, ring)

    def _check(self, cover: Cover, reads: Format) -> None:
        """Check that a kernel computes the same as plain operators.

        Raises:
            TasoError: it does not.
        """
        if cover.binder is not None:
            check(cover, reads, self._device)

    def _measure_call(self, call: Callable[[], object], beside: Reference | None) -> tuple[Latency, bool]:
        """Measure a call of a cover; return its latency, and whether it is reliable."""
        assert self._measuring is not None, "what is elsewhere is not measured"
        return self._measuring.measured(call, BUDGET_S, beside)

    def is_view(self, node: Node) -> bool:
        """Return whether a node moves nothing: its result shares memory with its operand."""
        return self.layouts.is_view(node)

    @property
    def is_over(self) -> bool:
        """True if the time for measuring is used up."""
        return self.measuring_s >= self.limit_s

    @property
    def is_disturbed(self) -> bool:
        """True if most of the latencies that were measured were disturbed."""
        return 2 * self.disturbed > self.measured

    @property
    def left_out(self) -> int:
        """The number of latencies that were not measured because the time was used up."""
        return len(self._left_out)

    @contextmanager
    def required(self) -> Generator[None]:
        """Within this context, unknown latencies are measured even if the time is used up, but briefly."""
        before, self._is_required = self._is_required, True
        try:
            yield
        finally:
            self._is_required = before

    @property
    def unknown(self) -> int:
        """The number of latencies that are infinite: the kernel fails, or was never measured in the environment."""
        return sum(latency == math.inf for latency in self._known.values())

    def of_cover(self, cover: Cover, reads: Format) -> float:
        """Return the latency of a cover that reads a memory format."""
        key = self.key(cover, reads)
        known = None if self._is_exact or self._is_required else self._final.get(key)
        if known is None:
            known = self._final[key] = self._of_key(key, cover, reads)
        return known

    def _of_key(self, key: Key, cover: Cover, reads: Format) -> float:
        """Return the latency of a cover with this key, measured or estimated."""
        bare_key = key if cover.bare is None else self.key(cover.bare(), reads)
        return self._unrefined(key, cover, reads) * self._refinement(bare_key)

    def _unrefined(self, key: Key, cover: Cover, reads: Format) -> float:
        """Return the latency of a cover before refinement."""

        def beside() -> Reference | None:
            return None if cover.bare is None else self._reference(cover.bare(), reads)

        def call() -> Callable[[], object]:
            self._check(cover, reads)
            return self._call(cover, reads, self._ring)

        # An opaque operator may need operands that cannot be made up. It is in every candidate alike.
        otherwise = 0.0 if isinstance(cover.root.op, Opaque) else math.inf
        is_view = len(cover.nodes) == 1 and self.is_view(cover.root)
        traits = _no_traits if is_view else partial(traits_of, cover, reads)
        return self.lookup(key, call, beside=beside, otherwise=otherwise, traits=traits)

    def of_conversion(self, value: Value, format_: Format) -> float:
        """Return the latency of converting a value to a memory format."""
        key = f"convert:{format_.value}", self.layouts.signature([value], format_.other)
        traits = partial(conversion_traits, value, format_)
        return self.lookup(key, lambda: conversion(value, format_, self._device), traits=traits)

    def measure(self, covers: Iterable[tuple[Cover, Format]]) -> bool:
        """Measure those of the covers, with the formats that they read, whose latencies were estimated.

        Return whether there were any; if so, latencies that are still estimated change too.
        """
        before = self.revision
        with self.required(), self._exactly():
            for where in covers:
                self.of_cover(*where)
        if self.revision == before:
            return False
        self._estimated.clear()
        self._final.clear()
        return True

    @contextmanager
    def _exactly(self) -> Generator[None]:
        """Within this context, nothing is estimated."""
        before, self._is_exact = self._is_exact, True
        try:
            yield
        finally:
            self._is_exact = before

    def key(self, cover: Cover, reads: Format) -> Key:
        """Return the key of a latency. For views it is the call alone, whatever the shape and the attributes."""
        node, name = cover.root, PLAIN_NAME if cover.binder is None else f"{cover.name}:"
        if len(cover.nodes) == 1 and self.is_view(node):
            return name + node.op.name, f"view of rank {node.inputs[0].type.rank} as {node.types[0].rank}"
        operands = cover.operands
        if len(cover.nodes) == 1 and node.op.commutative:
            # The order of the operands is arbitrary.
            operands = tuple(sorted(operands, key=lambda value: self.layouts.signature([value], reads)))
        signature = self.layouts.signature(operands, reads)
        if cover.packed is not None:
            signature += f"; weight {cover.packed.at_example.text}"
        if "weight" in signature:
            signature += f" of {self._ring >> 20} MiB"
        return name + cover.text, signature

    def lookup(
        self,
        key: Key,
        make: Callable[[], Callable[[], object]],
        beside: Callable[[], Reference | None] = _no_reference,
        otherwise: float = math.inf,
        traits: Callable[[], CallTraits | None] = _no_traits,
    ) -> float:
        """Return the median latency of a call, or an estimate of it.

        Args:
            key: its key.
            make: makes the call, if it has to be measured.
            beside: returns a similar call of known latency, if there is one.
            otherwise: the latency in this run if the call fails, or if the time for measuring is used up.
            traits: returns what its latency is estimated by, if it may be.
        """
        known = self._known.get(key)
        if known is not None:
            return known
        if key in self._estimated and not self._is_exact:
            return self._estimated[key]
        found, similar = self.database.get(self._environment, *key), traits() if self.reach else None
        if found is None:
            estimate = self._estimate(key, similar)
            if estimate is not None:
                return estimate
            if self._measuring is not None and self.is_over and not self._is_required:
                self._left_out.add(key)
                return otherwise
            found = self._measured(key, make, beside, otherwise)
        if found is not None:
            known = found.median_s
        else:
            known = math.inf if self._measuring is None else otherwise
        self._known[key] = known
        if key in self._guessed:
            self._guessed.remove(key)
            self.revision += 1
        if similar is not None:
            self._similar.add(similar, known)
        return known

    def _estimate(self, key: Key, traits: CallTraits | None) -> float | None:
        """Return the latency of a call with these traits by similar calls, and remember it; None if it is measured."""
        if traits is None or self._is_exact or self._measuring is None:
            return None
        estimate = self._similar.estimate(traits, math.inf if self.is_over else self.reach)
        if estimate is not None:
            self._estimated[key] = estimate
            self._guessed.add(key)
        return estimate

    def _measured(
        self,
        key: Key,
        make: Callable[[], Callable[[], object]],
        beside: Callable[[], Reference | None],
        otherwise: float,
    ) -> Latency | None:
        """Return a new measurement, which is stored if it is reliable; None if the call fails or cannot run here."""
        found, is_calm = self._measure(make, key, beside, otherwise)
        if found is not None:
            self._count(is_calm)
            if is_calm:
                self.database.put(self._environment, *key, found)
        return found

    def of_run(self, call: Callable[[], object], budget_s: float) -> Latency:
        """Measure the latency of repeated calls, on a CPU at its usual pace; it is not stored.

        Raises:
            InvariantError: the latencies are those of a device that is not here.
        """
        if self._measuring is None:
            raise InvariantError("nothing runs on a device that is not here")
        with self._stopwatch():
            return self._measuring.measured(call, budget_s)[0]

    def knows_network(self, keys: Sequence[Key]) -> bool:
        """Return whether the latencies of the reference network with these keys are in the database."""
        return len(self.database.get_many(self._environment, keys, LatencyKind.NETWORK)) == len(keys)

    def of_network(self, keys: Sequence[Key], make: Callable[[], Sequence[float]]) -> Sequence[float] | None:
        """Return the seconds of the reference network from the database, or else measure them.

        They are stored if the machine is calm. None if they are not stored and nothing can run here.

        Args:
            keys: the keys of latencies that belong together.
            make: measures them, in seconds.
        """
        known = self.database.get_many(self._environment, keys, LatencyKind.NETWORK)
        if len(known) < len(keys):
            if self._measuring is None:
                return None
            found = make()
            if not self._may_store_now:
                return found
            made = {
                key: Latency(seconds, seconds, seconds, samples=1, outliers=0)
                for key, seconds in zip(keys, found, strict=True)
            }
            known = self.database.put_first(self._environment, made, LatencyKind.NETWORK)
        return [known[key].median_s for key in keys]

    def has_converged(self, search: SearchKey) -> bool:
        """Return whether a search has converged, in any process."""
        return self.database.has_search(self._environment, search)

    def record_convergence(self, search: SearchKey, best_s: float) -> None:
        """Store that a search has converged, and the finite cost of its best graph, if the machine is calm."""
        if self._may_store_now:
            self.database.put_search(self._environment, search, best_s)

    @property
    def _may_store_now(self) -> bool:
        return self._measuring is not None and self._measuring.is_calm and self._may_store

    def refine(self, covers: Mapping[Key, tuple[Cover, Format]]) -> bool:
        """Measure covers again, interleaved, unless all of them were; return whether any latency changed.

        An epilogue keeps its share of the time. All are scaled by one factor, so that they remain comparable with other
        latencies: half of them become shorter and half longer. A factor that preserves their sum instead would let one
        wrong latency among them change all others.

        Args:
            covers: covers without epilogue, and the memory formats that they read, by :meth:`key`.
        """
        first = {key: self._unrefined(key, *where) for key, where in covers.items()}
        before = {key: seconds for key, seconds in first.items() if 0 < seconds < math.inf}
        if self._measuring is None or self.is_over or all(self._refined.get(key) is not None for key in before):
            return False
        # The others are called in between, and evict from the caches the weights that a cover read last time.
        ring = max(LEAST_RING, self._ring // RING_DIVISOR)
        with torch.no_grad(), self._stopwatch():
            calls = {key: self._call(*covers[key], ring) for key in before}
            found, is_calm = self._measuring.measure_interleaved(calls)
        scale = median(before[key] / latency.median_s for key, latency in found.items())
        again = {key: latency.scaled(scale) for key, latency in found.items()}
        self._final.clear()
        self._refined.update({key: latency.median_s / before[key] for key, latency in again.items()})
        # What is kept is read as ratios to first latencies, which means nothing without those.
        is_kept = is_calm and self._may_store and len(self.database.get_many(self._environment, before)) == len(before)
        for _ in again:
            self._count(is_kept)
        if is_kept:
            self.database.put_together(self._environment, again, LatencyKind.INTERLEAVED)
        return True

    def measure_run_and_calls(
        self, run: Callable[[], object], covers: Mapping[Key, tuple[Cover, Format]]
    ) -> Sequence[tuple[float, Mapping[Key, float]]]:
        """Measure a run and its calls, several times in turn; nothing of it is stored.

        Args:
            run: the call that runs the whole graph.
            covers: covers and the memory formats that they read, by :meth:`key`.

        Raises:
            InvariantError: the latencies are those of a device that is not here.
        """
        with torch.no_grad():
            calls = {key: self._call(*where, self._ring) for key, where in covers.items()}
            found = []
            for _ in rounds(PASSES, 1, PASSES_S):
                together = self.of_run(run, RUN_S).median_s
                apart = {key: self.of_run(call, CALL_S).median_s for key, call in calls.items()}
                found.append((together, apart))
            return found

    def _refinement(self, key: Key) -> float:
        """Return the factor by which a latency changed when it was measured interleaved."""
        if key not in self._refined:
            first = self.database.get(self._environment, *key)
            again = self.database.get(self._environment, *key, LatencyKind.INTERLEAVED)
            self._refined[key] = again.median_s / first.median_s if first and again else None
        return self._refined[key] or 1.0

    def _reference(self, bare: Cover, reads: Format) -> Reference | None:
        """Return a bare product as a reference, if its latency is reliable."""
        key = self.key(bare, reads)
        with self._exactly():
            self._unrefined(key, bare, reads)
        known = self.database.get(self._environment, *key)
        return known and Reference(self._call(bare, reads, self._ring), known.median_s)

    def _count(self, is_calm: bool) -> None:
        self.measured += 1
        self.disturbed += not is_calm

    @contextmanager
    def _stopwatch(self) -> Generator[None]:
        start = time.monotonic()
        try:
            yield
        finally:
            self.measuring_s += time.monotonic() - start

    def _usual_pace(self, pacer: Pacer) -> Pace:
        pace, self._may_store = usual_pace(pacer, self._environment, self.database)
        return pace

    def _measure(
        self,
        make: Callable[[], Callable[[], object]],
        key: Key,
        beside: Callable[[], Reference | None],
        otherwise: float,
    ) -> tuple[Latency | None, bool]:
        """Return a measurement, and whether it may be stored; None if the call fails or its device is not here."""
        if self._measuring is None:
            return None, False
        try:
            with torch.no_grad():
                reference = beside()
                with self._stopwatch():
                    found, is_calm = self._measure_call(make(), reference)
                    return found, is_calm and self._may_store
        except Exception as error:
            if otherwise and not isinstance(error, (*FAILURES, TimingError)):
                raise  # an opaque operator may raise anything; other exceptions of kernels are bugs here
            becomes = "is not used" if otherwise else "counts as free"
            _log.warning("%s fails on %s and %s: %s", *key, becomes, first_line(error))
            return None, False
