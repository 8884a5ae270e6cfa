"""Signs: lower bounds of the elements of a tensor.

Invariant: signs are ordered, and a greater one says more.
"""

from __future__ import annotations

import enum
from typing import Any, TypeVar

_Numbers = TypeVar("_Numbers", bound=Any)


class Sign(enum.IntEnum):
    """A statement about every element of a tensor, over the real numbers."""

    ANY = 0
    """Nothing is known."""
    NONNEGATIVE = 1
    """At least zero."""
    POSITIVE = 2
    """Greater than zero."""

    @property
    def label(self) -> str:
        """The word before the type of an input; empty if nothing is known."""
        return self.name.lower() if self else ""


SIGNS = {sign.label: sign for sign in Sign if sign}
"""The signs of which something is known, by label."""


def with_sign(numbers: _Numbers, sign: Sign, least: float = 1.0) -> _Numbers:
    """Return the magnitudes of an array or a tensor, ``least`` in place of zero if the sign is positive."""
    if not sign:
        return numbers
    magnitudes = abs(numbers)
    return magnitudes + (magnitudes == 0) * least if sign is Sign.POSITIVE else magnitudes
