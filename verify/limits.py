"""Limits on the work of a proof, as counts, so that a verdict depends on the rule alone and never on the machine.

Invariant: nothing here is measured in time.
"""

from __future__ import annotations

from dataclasses import dataclass

from taso_py.ir.errors import TasoError


@dataclass(frozen=True)
class ProofLimits:
    """Bounds on one proof."""

    nodes: int = 100
    """Operators and variables of both sides."""
    steps: int = 10_000
    """Elements expanded and products multiplied out, per level."""
    work: int = 20_000
    """Elements read in the terms that are simplified, those inside calls included, per level."""
    cells: int = 256
    """Cases into which a function's argument may be split."""
    queries: int = 400
    """Questions to the solver, per level."""
    rlimit: int = 400_000
    """Z3's own step limit for one question; about a tenth of a second."""


class Refused(TasoError):
    """A rule that the prover cannot treat, or that exceeds a limit; the verdict is then UNKNOWN."""


class Budget:
    """Counts the work of a proof."""

    def __init__(self, limits: ProofLimits) -> None:
        self.limits = limits
        self._queries = self._steps = self._work = 0

    def take_steps(self, count: int) -> None:
        """Record steps.

        Raises:
            Refused: more than the limit.
        """
        self._steps += count
        if self._steps > self.limits.steps:
            raise Refused(f"more than {self.limits.steps} steps")

    def take_work(self, count: int) -> None:
        """Record the size of simplified terms, which may grow where the number of steps does not.

        Raises:
            Refused: more than the limit.
        """
        self._work += count
        if self._work > self.limits.work:
            raise Refused(f"terms of more than {self.limits.work} elements")

    def take_query(self) -> None:
        """Record a question to the solver.

        Raises:
            Refused: more than the limit.
        """
        self._queries += 1
        if self._queries > self.limits.queries:
            raise Refused(f"more than {self.limits.queries} questions to the solver")
