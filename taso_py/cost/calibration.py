"""What a call takes longer in a model than alone.

In a model a call finds its code and the interpreter's data displaced from the caches by the calls before: hardly in one
of small operators, by microseconds in one of large convolutions. And it finds its operands where another call, perhaps
on another core, left them, which takes the longer the more bytes it moves. How long each node takes in a run, less its
latency alone, tells the two apart.

Invariant: what is answered is not negative, and does not depend on how the machine's clock is scaled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

ROUNDS = 30
"""Of reweighting, by when figures do not change any more."""
LEAST_SHARE = 1e-3
"""A residual below this share of a node's time weighs no more than one of this share."""
SHORT_S = 5e-6
"""Errors of measuring are a share of the time, and no less than that of a time of so many seconds."""


@dataclass(frozen=True)
class Part:
    """A node in a run."""

    alone_s: float
    """Its latency, called again and again alone."""
    inside_s: float
    """What it took in the run."""
    moved: int
    """The bytes of the activations that it reads and writes."""


@dataclass(frozen=True)
class Excess:
    """What a call takes longer in a run, in seconds."""

    per_call_s: float = 0.0
    """Whatever it moves."""
    per_byte_s: float = 0.0
    """Of the activations that it reads and writes."""


def excess(parts: Sequence[Part]) -> Excess:
    """What calls take longer in a run than alone.

    It is the line ``inside - alone = per_call + per_byte * moved``, both at least 0, with the least sum of absolute
    residuals as shares of the time, so that a few nodes that were disturbed, or that suffer for other reasons, do not
    count. The sum is minimised by least squares, reweighted until they are least absolutes (Schlossmacher, An iterative
    technique for absolute deviations curve fitting, JASA 1973).
    """
    if not parts:
        return Excess()
    alone = np.array([part.alone_s for part in parts])
    longer = np.array([part.inside_s for part in parts]) - alone
    moved = np.array([float(part.moved) for part in parts])
    shares = 1.0 / (alone + SHORT_S)
    weights, constant, slope = shares**2, 0.0, 0.0
    for _ in range(ROUNDS):
        constant, slope = _line(moved, longer, weights)
        residuals = np.abs(longer - constant - slope * moved) * shares
        weights = shares**2 / np.maximum(residuals, LEAST_SHARE)
    return Excess(constant, slope)


def _line(x: NDArray[np.float64], y: NDArray[np.float64], weights: NDArray[np.float64]) -> tuple[float, float]:
    """Constant and slope of the line of weighted least squares among those where neither is negative."""
    total = weights.sum()
    x_mean, y_mean = (weights * x).sum() / total, (weights * y).sum() / total
    spread = (weights * (x - x_mean) ** 2).sum()
    slope = (weights * (x - x_mean) * (y - y_mean)).sum() / spread if spread > 0 else 0.0
    constant = y_mean - slope * x_mean
    if slope < 0:
        return max(0.0, float(y_mean)), 0.0
    if constant < 0:
        return 0.0, max(0.0, float((weights * x * y).sum() / (weights * x * x).sum()))
    return float(constant), float(slope)
