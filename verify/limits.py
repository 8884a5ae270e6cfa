"""How much work a proof may take, in counts, so that a verdict depends on the rule alone and never on the machine.

Invariant: nothing here is measured in time.
"""

from __future__ import annotations

from dataclasses import dataclass

from taso_py.ir.errors import TasoError


@dataclass(frozen=True)
class Limits:
    """Bounds on one proof."""

    terms: int = 4000
    """Terms that may be built by products, all together."""
    cells: int = 256
    """Cases into which a function's argument may fall apart."""
    queries: int = 400
    """Questions to the solver."""
    rlimit: int = 400_000
    """Z3's own count of steps for one question; about a tenth of a second."""


class Refused(TasoError):
    """A rule that the prover cannot treat, or that exceeds a limit; it becomes the verdict UNKNOWN."""


class Budget:
    """Counts what a proof has used."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.queries = 0
        self._terms = 0

    def take_terms(self, count: int) -> None:
        """Records terms built.

        Raises:
            Refused: more than the limit.
        """
        self._terms += count
        if self._terms > self.limits.terms:
            raise Refused(f"more than {self.limits.terms} terms")

    def take_query(self) -> None:
        """Records a question to the solver.

        Raises:
            Refused: more than the limit.
        """
        self.queries += 1
        if self.queries > self.limits.queries:
            raise Refused(f"more than {self.limits.queries} questions to the solver")
