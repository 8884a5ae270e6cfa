"""Other processes that test and prove: the order of results does not depend on how many there are.

Invariant: a task is a function of the settler and its item; workers share nothing, and end with the process that
started them.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from multiprocessing.pool import Pool
from typing import Any, TypeVar

from taso_py.generate.settle import Settler
from taso_py.rules.verdict import Prover

_Item = TypeVar("_Item")
_Value = TypeVar("_Value")

_own: list[Settler] = []
"""In a worker: its settler."""


class Workers:
    """Applies tasks to items, in this process or in ``jobs`` others."""

    def __init__(self, jobs: int, prove: Prover, seed: int) -> None:
        """Starts the processes.

        Args:
            jobs: how many; 1 means none but this one.
            prove: must be known to other processes by its name, if there are any.
            seed: of random instances.
        """
        self._settler = Settler(prove, seed)
        self._pool: Pool | None = None
        if jobs > 1:
            # Forked before any library here has started threads of its own.
            context = multiprocessing.get_context("fork")
            self._pool = context.Pool(jobs, _start, (self._settler, os.getpid()))

    def map(self, task: Callable[[Settler, _Item], _Value], items: Iterable[_Item]) -> Iterator[_Value]:
        """The values of a task, a function of a module, for items, in their order."""
        if self._pool is None:
            return (task(self._settler, item) for item in items)
        return self._pool.imap(partial(_run, task), items)

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.terminate()
            self._pool.join()


def _start(settler: Settler, parent: int) -> None:
    # An interrupt is for the parent, who ends its workers; one that was killed cannot.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _own.append(settler)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _run(task: Callable[[Settler, Any], Any], item: Any) -> Any:
    return task(_own[0], item)
