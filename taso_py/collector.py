"""The garbage collector: paused while it would disturb, run when much garbage is left.

Invariant: if several threads pause it, it is enabled again when the last of them is done, if it was before the first.
"""

from __future__ import annotations

import ctypes
import gc
import os
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


def release_memory() -> None:
    """Collect garbage, and return the free memory of the C library's heaps to the system, where it can (glibc).

    Traced graphs are reference cycles with tensors in them, few and large, so that Python's own schedule, which counts
    objects, collects them too late. glibc keeps a heap per thread; of one that is not at its end, it returns no page
    unless asked (https://man7.org/linux/man-pages/man3/malloc_trim.3.html).
    """
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)


def _others() -> bool:
    """Return whether other threads run Python code."""
    return sum(type(thread).__name__ != _MONITOR for thread in threading.enumerate()) > 1
