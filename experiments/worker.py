"""Processes that measure parts of experiments, so that a failure of one loses nothing but its part.

A worker has a session of its own: an interrupt from the keyboard does not reach it, and processes that it started can
be killed with it.

Invariant: a call returns rows measured from beginning to end, or a reason in one line.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from types import TracebackType
from typing import Any, TypeAlias

from experiments.harness import Row, Settings
from taso_py.executors import end_with_parent
from taso_py.ir.errors import TasoError, first_line

Measured: TypeAlias = Mapping[str, Any]
"""Facts of a part: ``rows``, ``wall_s``, and later the circumstances."""
LATE = "the time is used up"
DIED = "its process died, perhaps for want of memory"


class Worker:
    """A process that measures parts, one after the other; a new one replaces one that died."""

    def __init__(self) -> None:
        """Prepare a worker; its process starts with the first call."""
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _t: TracebackType | None
    ) -> None:
        if error is not None:
            self._kill()
        self.end()

    def call(self, measure: Callable[..., Any], part: str, settings: Settings, until: float | None) -> Measured | str:
        """Return the rows of a part, or the reason why there are none, in one line."""
        if self._pool is None:
            self._pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=_begin)
        try:
            future: Future[Measured | str] = self._pool.submit(_part, measure, part, settings)
            return future.result(None if until is None else max(0.0, until - time.monotonic()))
        except TimeoutError:
            self._kill()
            return LATE
        except BrokenProcessPool:
            self._pool = None
            return DIED

    def end(self) -> None:
        """End the process, if there is one."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def _kill(self) -> None:
        for process in multiprocessing.active_children():
            process.kill()
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid or 0, signal.SIGKILL)
        self.end()


def _begin() -> None:
    os.setsid()
    end_with_parent()


def _part(measure: Callable[[str, Settings], Sequence[Row]], part: str, settings: Settings) -> Measured | str:
    """Measure a part; this is the function that the worker calls."""
    start = time.monotonic()
    try:
        rows = [dict(row) for row in measure(part, settings)]
    except TasoError as error:
        return first_line(error)
    except Exception as error:
        # It concerns this part alone; the traceback tells a developer where it came from.
        traceback.print_exc()
        return f"{type(error).__name__}: {first_line(error)}"
    return {"rows": rows, "wall_s": time.monotonic() - start}
