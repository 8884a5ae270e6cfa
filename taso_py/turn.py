"""One optimization at a time in a process.

Two at once would trace in each other's state, which PyTorch keeps for the process, and time each other's work.

Invariant: whoever waits for a turn holds no lock of PyTorch's, and a call of a compiled model never waits.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from threading import RLock

_lock = RLock()


def in_turn() -> AbstractContextManager[object]:
    """Waits for others that optimize, and keeps them waiting; a thread may be inside several times."""
    return _lock


@contextmanager
def turn_if_free() -> Generator[bool]:
    """Tells whether nobody else optimizes, and keeps others waiting if so."""
    is_free = _lock.acquire(blocking=False)
    try:
        yield is_free
    finally:
        if is_free:
            _lock.release()
