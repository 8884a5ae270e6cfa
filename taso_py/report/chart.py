"""Geometry of charts: scales, ticks and colours; templates draw what is placed here.

Invariant: positions are rounded, so that the same data give the same page; colours are CSS variables with a value for
light and one for dark mode.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

PALETTE = tuple(f"var(--hue-{place})" for place in range(9))
"""Colours that most readers can tell apart, on paper too."""
OTHER = "var(--hue-rest)"
"""Colour of names beyond the palette."""


@dataclass(frozen=True)
class Scale:
    """Linear or logarithmic map from values between ``low`` and ``high`` to positions from ``start`` to ``end``."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def __call__(self, value: float) -> float:
        """Return the position of a value; values outside the range are at the nearer end."""
        low, high, at = (map(math.log10, (self.low, self.high, max(value, 1e-300)))) if self.logarithmic else (
            self.low, self.high, value,
        )  # fmt: skip
        share = (at - low) / (high - low) if high > low else 0.0
        return round(self.start + min(max(share, 0.0), 1.0) * (self.end - self.start), 2)

    @property
    def ticks(self) -> list[float]:
        """Round values along the scale: powers of ten, or about eight multiples of 1, 2 or 5 times a power of ten."""
        if self.logarithmic:
            powers = range(math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9) + 1)
            return [10.0**power for power in powers]
        rough = max(self.high - self.low, 1e-12) / 8
        base = 10.0 ** math.floor(math.log10(rough))
        step = next(base * factor for factor in (1, 2, 5, 10) if base * factor >= rough)
        first = math.ceil(self.low / step - 1e-9)
        return [step * number for number in range(first, math.floor(self.high / step + 1e-9) + 1)]


def decades(values: Iterable[float]) -> tuple[float, float]:
    """Return the powers of ten around positive values."""
    positive = [value for value in values if value > 0] or [1.0]
    low, high = math.floor(math.log10(min(positive))), math.ceil(math.log10(max(positive)))
    return 10.0**low, 10.0 ** max(high, low + 1)


def colours(names: Sequence[str]) -> dict[str, str]:
    """Return a colour for each name; the first names have their own colours, so put the most important first."""
    distinct = list(dict.fromkeys(names))
    return {name: PALETTE[place] if place < len(PALETTE) else OTHER for place, name in enumerate(distinct)}


def short(value: float) -> str:
    """Return a number with a unit prefix: ``1.5 G``."""
    for letter, factor in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= factor:
            return f"{value / factor:.3g} {letter}"
    return f"{value:.3g} "
