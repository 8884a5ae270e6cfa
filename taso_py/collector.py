"""The garbage collector, paused.

Invariant: however many threads pause it, it runs again when the last of them is done, if it ran before the first.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Generator
from contextlib import contextmanager

_MONITOR = "TMonitor"
"""The class of the thread that progress bars keep, which makes no cycles."""
_lock = threading.Lock()
_pauses = 0
_ran = False


@contextmanager
def collector_paused(*, shared: bool = True) -> Generator[None]:
    """Keep the garbage collector from running.

    Args:
        shared: pause it also where other threads run, whose cycles of references then stay in memory meanwhile. For a
            long body, whose threads may serve a model, rather not.
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
    """Whether other threads run Python code."""
    return sum(type(thread).__name__ != _MONITOR for thread in threading.enumerate()) > 1
