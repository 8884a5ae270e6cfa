"""Tasks that other processes find by name."""

from __future__ import annotations

import os
import time


def square(number: int) -> tuple[int, int]:
    """The square of a number, and which process it is from; takes a moment."""
    time.sleep(0.02)
    return number * number, os.getpid()


def deadly(number: int) -> int:
    """The number itself; the process dies of 7."""
    if number == 7:
        os._exit(1)
    return number


def wrong(number: int) -> int:
    """Raises for 3."""
    if number == 3:
        raise TimeoutError("three")
    return number
