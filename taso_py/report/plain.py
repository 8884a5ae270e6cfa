"""Conversion of values to data for JSON.

Invariant: the result holds finite numbers, strings, booleans, null, lists and objects only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any


def plain(value: Any) -> Any:
    """Return a value as data for JSON; numbers that are not finite become null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(item) for item in value]
    return value
