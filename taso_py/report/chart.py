"""Geometry of the charts on the pages: scales, ticks, colours; templates draw what is placed here.

Invariant: places are rounded, so that the same data give the same page; colours are names that the style of the pages
gives a value for light and one for dark.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

PALETTE = tuple(f"var(--hue-{place})" for place in range(9))
"""Colours that stay apart for most readers and on paper."""
OTHER = "var(--hue-rest)"
"""The colour of what is too rare for one of its own."""


@dataclass(frozen=True)
class Scale:
    """From values between ``low`` and ``high`` to places between ``start`` and ``end``; logarithmic or not."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def __call__(self, value: float) -> float:
        """The place of a value; values outside stay at the nearer end."""
        low, high, at = (map(math.log10, (self.low, self.high, max(value, 1e-300)))) if self.logarithmic else (
            self.low, self.high, value,
        )  # fmt: skip
        share = (at - low) / (high - low) if high > low else 0.0
        return round(self.start + min(max(share, 0.0), 1.0) * (self.end - self.start), 2)

    @property
    def ticks(self) -> list[float]:
        """Round values along the scale: powers of ten, or about eight multiples of 1, 2 or 5 times one."""
        if self.logarithmic:
            powers = range(math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9) + 1)
            return [10.0**power for power in powers]
        rough = max(self.high - self.low, 1e-12) / 8
        base = 10.0 ** math.floor(math.log10(rough))
        step = next(base * factor for factor in (1, 2, 5, 10) if base * factor >= rough)
        first = math.ceil(self.low / step - 1e-9)
        return [step * number for number in range(first, math.floor(self.high / step + 1e-9) + 1)]


def decades(values: Iterable[float]) -> tuple[float, float]:
    """The powers of ten around positive values."""
    positive = [value for value in values if value > 0] or [1.0]
    low, high = math.floor(math.log10(min(positive))), math.ceil(math.log10(max(positive)))
    return 10.0**low, 10.0 ** max(high, low + 1)


def colours(names: Sequence[str]) -> dict[str, str]:
    """A colour for each name; the first ones have colours of their own, so name the most important first."""
    distinct = list(dict.fromkeys(names))
    return {name: PALETTE[place] if place < len(PALETTE) else OTHER for place, name in enumerate(distinct)}


def short(value: float) -> str:
    """A number with a letter for its thousands: ``1.5 G``."""
    for letter, factor in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= factor:
            return f"{value / factor:.3g} {letter}"
    return f"{value:.3g} "
