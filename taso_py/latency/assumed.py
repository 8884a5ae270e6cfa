"""Latencies that are assumed where nothing has been measured: enough to choose kernels for a first trial.

On four models of the zoo such kernels take 0.96 to 1.01 of the time of those that are chosen by measured latencies, on
a network of small products 1.18 (AMD EPYC, two cores; packed kernels lead PyTorch's own by 1.3 to 2).

Invariant: an assumed latency is never stored, and decides nothing but what is tried.
"""

from __future__ import annotations

import torch

from taso_py.backend.plan import Format
from taso_py.ir.node import Value
from taso_py.kernels.tile import Cover
from taso_py.latency.database import LatencyDatabase
from taso_py.latency.environment import Environment
from taso_py.latency.latencies import Latencies
from taso_py.latency.similar import CALL_S, conversion_traits, traits_of

PLAIN, DENSE = 2.0, 1.2
"""How many times as long PyTorch's own products take as packed ones, and what reads dense images as what reads channels
last."""


class AssumedLatencies(Latencies):
    """Latencies by the work of each call at fixed rates, in seconds; fused and packed kernels are preferred."""

    def __init__(self, device: torch.device, database: LatencyDatabase) -> None:
        """Assume the latencies of a device; the database stays as it is."""
        super().__init__(device, database, Environment.current(device), weight_bytes=0, captured=False)

    def of_cover(self, cover: Cover, reads: Format) -> float:
        """Return the latency of the work of a cover; that of a call for views, and where the work is unknown."""
        is_view = len(cover.nodes) == 1 and self.is_view(cover.root)
        traits = None if is_view else traits_of(cover, reads)
        if traits is None:
            return CALL_S
        is_plain_product = cover.binder is None and cover.nodes[0].op.is_contraction
        return traits.work_s * (PLAIN if is_plain_product else _of_format(reads))

    def of_conversion(self, value: Value, format_: Format) -> float:
        """Return the latency of the work of converting a value to a memory format."""
        return conversion_traits(value, format_).work_s * _of_format(format_)


def _of_format(format_: Format) -> float:
    """Return how many times as long a call takes with images in a memory format."""
    return DENSE if format_ is Format.DENSE else 1.0
