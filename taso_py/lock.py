"""A lock that lets one optimization run at a time in a process.

Two at once would trace with each other's process-wide PyTorch state, and disturb each other's timing.

Invariant: no thread waits for this lock while it holds one of PyTorch's, and a call of a compiled model never waits.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from threading import RLock

_lock = RLock()


def optimization_lock() -> AbstractContextManager[object]:
    """Return the lock, a context manager that waits for other optimizations; it is reentrant."""
    return _lock


@contextmanager
def try_optimization_lock() -> Generator[bool]:
    """Yield whether no other optimization is running, and hold the lock if so."""
    is_free = _lock.acquire(blocking=False)
    try:
        yield is_free
    finally:
        if is_free:
            _lock.release()
