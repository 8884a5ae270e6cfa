"""The usual pace of a machine, and conversion of latencies between paces.

Invariant: all latencies of an environment in a database are at the pace that is stored there, except the ceilings of
the roofline, which are not scaled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from taso_py.latency.clock import Latency

SIZE = 256
"""The rows of the square product: it fits in the nearest caches, and takes about a quarter of a millisecond."""
ELEMENTS = 64
"""The elements of the small call."""
OVERHEAD_CALLS = 3
"""The overhead of a larger call, in small calls."""
SHORTEST_S = 1e-12
"""The shortest time that a call can take; a pace with a shorter one is invalid."""
KEYS: Sequence[tuple[str, str]] = (("product", f"f32[{SIZE},{SIZE}]"), ("call", f"f32[{ELEMENTS}]"))
"""The keys of an environment's usual pace among its latencies."""


@dataclass(frozen=True)
class Pace:
    """The speed of a machine as the seconds that two calls take."""

    product_s: float
    """The seconds of a product on all threads."""
    call_s: float
    """The seconds of a call that does next to nothing."""

    def slowness(self, usual: Pace, seconds: float) -> float:
        """Return the slowdown of this pace against the usual one, for a call that takes so many seconds.

        The overhead of the call slows down as the small call does, the rest as the product does.
        """
        overhead = min(1.0, OVERHEAD_CALLS * usual.call_s / seconds) if seconds else 1.0
        return overhead * self.call_s / usual.call_s + (1 - overhead) * self.product_s / usual.product_s

    def convert(self, latency: Latency, usual: Pace) -> Latency:
        """Return a latency of a machine with this usual pace, converted to another usual pace."""
        # One factor for all figures: an interval keeps its order.
        return latency.scaled(1 / self.slowness(usual, latency.median_s))


def pace_among(latencies: Mapping[tuple[str, str], Latency]) -> Pace | None:
    """Return the usual pace that is stored among latencies, or None if it is incomplete or invalid."""
    seconds = [latencies[key].median_s for key in KEYS if key in latencies]
    return Pace(*seconds) if len(seconds) == len(KEYS) and min(seconds) >= SHORTEST_S else None
