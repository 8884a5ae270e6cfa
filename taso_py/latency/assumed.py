"""Latencies that are assumed where nothing has been measured: enough to choose kernels for a first trial.

On four models of the zoo such kernels take 0.96 to 1.01 of the time of those that are chosen by measured latencies, on
a network of small products 1.18 (AMD EPYC, two cores; packed kernels lead PyTorch's own by 1.3 to 2).

Invariant: an assumed latency is never stored, and decides nothing but what is tried.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from taso_py.backend.plan import Format
from taso_py.latency.database import LatencyDatabase
from taso_py.latency.environment import Environment
from taso_py.latency.latencies import Latencies, no_reference, no_traits
from taso_py.latency.pace import Reference
from taso_py.latency.schema import Key
from taso_py.latency.similar import CALL_S, CallTraits

PLAIN, DENSE = 2.0, 1.2
"""How many times as long PyTorch's own products take as packed ones, and what reads dense images as what reads channels
last."""


class AssumedLatencies(Latencies):
    """Latencies by the work of each call at fixed rates, in seconds; fused and packed kernels are preferred."""

    def __init__(self, device: torch.device, database: LatencyDatabase) -> None:
        """Assume the latencies of a device; the database stays as it is."""
        super().__init__(device, database, Environment.current(device), weight_bytes=0, captured=False)

    def lookup(
        self,
        key: Key,
        make: Callable[[], Callable[[], object]],
        beside: Callable[[], Reference | None] = no_reference,
        otherwise: float = 0.0,
        traits: Callable[[], CallTraits | None] = no_traits,
    ) -> float:
        """Return the latency of the work that the traits of a call tell of."""
        found = traits()
        if found is None:
            return CALL_S
        factor = PLAIN if found.is_plain_product else DENSE if found.format is Format.DENSE else 1.0
        return factor * found.work_s
