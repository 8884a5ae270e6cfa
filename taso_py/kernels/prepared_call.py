"""Calls with a preparation whose time is not measured.

Invariant: a clock can time the call without knowing its preparation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class PreparedCall:
    """A call, and the preparation before it."""

    prepare: Callable[[], None]
    call: Callable[[], object]

    def __call__(self) -> object:
        """Prepare and call."""
        self.prepare()
        return self.call()
