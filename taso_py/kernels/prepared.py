"""Calls before each of which something is done whose time is not theirs.

Invariant: what times a call need not know what prepares it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Prepared:
    """A call, and what is done before it."""

    prepare: Callable[[], None]
    call: Callable[[], object]

    def __call__(self) -> object:
        """Prepares and calls."""
        self.prepare()
        return self.call()
