"""Verdicts of a prover, and numerics classes: how close the sides of a substitution are in floating point.

Invariant: a verdict is a value with a reason, never a boolean.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from taso_py.ir.errors import TasoError
from taso_py.ops.scalar import Condition

if TYPE_CHECKING:
    from taso_py.rules.substitution import Substitution


class Numerics(enum.IntEnum):
    """How much the two sides may differ in floating point, from least to most; a cap allows all classes up to it."""

    EXACT = 0
    """Data movement and identical arithmetic."""
    REORDER = 1
    """Equal terms, possibly accumulated in another order."""
    REASSOCIATE = 2
    """Other intermediate values, none of which is greater than what the source adds up."""
    ZERO_TERMS = 3
    """Adds or drops products with zero: not safe for NaN and infinity."""
    RANGE = 4
    """Intermediate values may overflow, vanish or cancel where nothing of the source does: in half precision."""
    MASK = 5
    """Differs on rows that are masked out entirely."""

    @property
    def label(self) -> str:
        """The name as users write it: ``zero-terms``."""
        return self.name.lower().replace("_", "-")

    @classmethod
    def labelled(cls, label: str) -> Numerics:
        """Return the class of a label.

        Raises:
            TasoError: there is none.
        """
        found = {numerics.label: numerics for numerics in cls}
        if label not in found:
            raise TasoError(f"no numerics class is called {label!r}; there are {', '.join(found)}")
        return found[label]


class Outcome(enum.Enum):
    """Outcome of an attempt to prove a substitution."""

    PROVED = "proved"
    REFUTED = "refuted"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Counterexample:
    """Sizes and values at which the two sides differ."""

    sizes: Mapping[str, int | float]
    """The size variables, groups (``..B``) included, and the symbols that are other numbers."""
    values: Mapping[str, NDArray[Any]]
    """The variables' tensors."""
    source: NDArray[np.float64]
    """The source's first differing output."""
    target: NDArray[np.float64]
    """The target's output at the same position."""

    def __str__(self) -> str:
        sizes = ", ".join(f"{name}={size}" for name, size in sorted(self.sizes.items()))
        if self.source.shape != self.target.shape:
            return f"at {sizes}: of shape {self.source.shape} against {self.target.shape}"
        with np.errstate(invalid="ignore"):
            gaps = np.where(np.isfinite(self.source), np.abs(self.source - self.target), -1)
        worst = int(np.argmax(np.where(np.isnan(gaps), np.inf, gaps)))
        return f"at {sizes}: {self.source.flat[worst]:g} against {self.target.flat[worst]:g}"


@dataclass(frozen=True)
class Verdict:
    """A prover's answer about one substitution, for all sizes that satisfy its preconditions."""

    outcome: Outcome
    reason: str
    """One line: how it was proved, why it is false, or what stopped the prover."""
    numerics: Numerics | None = None
    """Numerics class of a proved substitution."""
    counterexample: Counterexample | None = None
    """Evidence against a refuted substitution."""


Prover: TypeAlias = Callable[["Substitution"], Verdict]
__all__ = ["Condition", "Counterexample", "Numerics", "Outcome", "Prover", "Verdict"]
