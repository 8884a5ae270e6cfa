"""The usual pace of a machine, and what latencies at one pace are at another.

Invariant: latencies that stand beside each other in a database are all at the pace that stands there, but for the
ceilings of the roofline, which are of the machine as it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from taso_py.latency.clock import Latency

SIZE = 256
"""Of the square product: in the nearest caches, and about a quarter of a millisecond."""
ELEMENTS = 64
"""Of the small call."""
OVERHEAD_CALLS = 3
"""How many small calls are as long as what is overhead in a larger one."""
SHORTEST_S = 1e-12
"""No call takes less; a pace by which one does is none."""
KEYS: Sequence[tuple[str, str]] = (("pace:product", f"f32[{SIZE},{SIZE}]"), ("pace:call", f"f32[{ELEMENTS}]"))
"""Where the usual pace of an environment is kept among its latencies."""
CEILING = "ceiling:"
"""What the names of a roofline's ceilings begin with, which no pace scales."""


@dataclass(frozen=True)
class Pace:
    """How long two calls take, in seconds."""

    product_s: float
    """A product on all threads."""
    call_s: float
    """A call that does next to nothing."""

    def slowness(self, usual: Pace, seconds: float) -> float:
        """How many times as long as at the usual pace something takes that takes so many seconds.

        What is overhead takes longer as the small call does, the rest as the product does.
        """
        overhead = min(1.0, OVERHEAD_CALLS * usual.call_s / seconds) if seconds else 1.0
        return overhead * self.call_s / usual.call_s + (1 - overhead) * self.product_s / usual.product_s

    def convert(self, latency: Latency, usual: Pace) -> Latency:
        """A latency of a machine for which this pace is the usual one, at another usual pace."""
        # One factor for all figures: an interval keeps its order.
        return latency.scaled(1 / self.slowness(usual, latency.median_s))


def pace_among(latencies: Mapping[tuple[str, str], Latency]) -> Pace | None:
    """The usual pace that is kept among latencies, if all of it is there and can be one."""
    seconds = [latencies[key].median_s for key in KEYS if key in latencies]
    return Pace(*seconds) if len(seconds) == len(KEYS) and min(seconds) >= SHORTEST_S else None
