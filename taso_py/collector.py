"""Context manager that pauses the garbage collector.

Invariant: if several threads pause it, it is enabled again when the last of them is done, if it was before the first.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Generator
from contextlib import contextmanager

_MONITOR = "TMonitor"
"""Class name of the thread of progress bars, which makes no reference cycles."""
_lock = threading.Lock()
_pauses = 0
_ran = False


@contextmanager
def collector_paused(*, shared: bool = True) -> Generator[None]:
    """Disable the garbage collector within the body.

    Args:
        shared: pause it even if other threads run, whose reference cycles then stay in memory meanwhile. Pass False for
            a long body, since the other threads may be serving a model.
    """
    global _pauses, _ran
    if not shared and _others():
        yield
        return
    with _lock:
        if not _pauses:
            _ran = gc.isenabled()
        _pauses += 1
        gc.disable()
    try:
        yield
    finally:
        with _lock:
            _pauses -= 1
            if _ran and not _pauses:
                gc.enable()


def _others() -> bool:
    """Return whether other threads run Python code."""
    return sum(type(thread).__name__ != _MONITOR for thread in threading.enumerate()) > 1
