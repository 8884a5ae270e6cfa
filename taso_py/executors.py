"""Executors for parallel work: this process, other processes on this machine, or a Dask cluster.

    with open_pool(jobs=2, where="local") as pool:            # or where="dask://HOST:PORT"
        values = pool.map(function, items)

Any executor with the interface of ``concurrent.futures`` can be used (:class:`Pool`). If a worker is killed or runs out
of memory, its tasks are repeated. It is unknown which of the running tasks killed it, so these are repeated one by one;
a task whose worker dies again is reported, and not tried forever.

Invariant: values are in the order of their items and depend only on these; a process runs one task at a time; workers
have the same sources and libraries as this process.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import hashlib
import multiprocessing
import os
import platform
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from pathlib import Path
from typing import Any, Generic, TypeVar

from taso_py.ir.errors import TasoError, first_line

T = TypeVar("T")
V = TypeVar("V")

LOCAL, DASK = "local", "dask://"
DEATHS = 2
"""Number of workers that may die of a task that they run alone."""
SHOWN = 200
"""Number of characters of a task in an error."""
AHEAD = 64
"""Number of chunks that a cluster is given in advance, so that workers do not wait for this process."""
CONNECTING_S, PULSE_S, PATIENCE_S = 10.0, 2.0, 60.0
"""Seconds to wait for a scheduler, between checks for workers, and without any worker before giving up."""
SOURCES = ("taso_py/**/*.py", "verify/**/*.py", "fuzz/**/*.py", "substitutions/*.rules")
LIBRARIES = ("egglog", "hypothesis", "networkx", "numpy", "torch", "z3-solver")
"""Sources and libraries that results depend on."""

_one_at_a_time = threading.Lock()


class ExecutorError(TasoError):
    """Raised for an executor that does not exist, or that has lost all workers."""


class WorkerLostError(TasoError):
    """Raised for a task that kills its workers."""


class Pool:
    """Applies a function to items on an executor, or in this process if there is none."""

    def __init__(
        self,
        start: Callable[[], Executor] | None = None,
        *,
        ahead: int = AHEAD,
        losses: tuple[type[BaseException], ...] = (),
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Make a pool.

        Args:
            start: returns an executor; called again if that breaks. None means that this process does all work.
            ahead: how many chunks are submitted in advance.
            losses: exceptions of futures whose workers died, besides ``BrokenExecutor``.
            check: called regularly while waiting; raises if waiting is in vain.
        """
        self._start, self._ahead, self._check = start, ahead, check
        self._losses = (BrokenExecutor, *losses)
        self._executor: Executor | None = None

    def map(
        self,
        function: Callable[[T], V],
        items: Iterable[T],
        *,
        chunk: int = 1,
        lost: Callable[[T], V] | None = None,
    ) -> Iterator[V]:
        """Yield the values of a function for items, in their order.

        Args:
            function: a function that can be pickled, as its arguments and results must be.
            items: the items, which are consumed as they are needed.
            chunk: how many items are sent together; more than one if each takes little time.
            lost: returns the value for an item that kills its workers; without it, that is an error.

        Raises:
            WorkerLostError: an item kills its workers.
            ExecutorError: no workers are left.
        """
        if self._start is None:
            yield from map(function, items)
            return
        pieces = _pieces(items, chunk)
        sent: list[_Sent[T, V]] = []
        # If this ends early, submitted chunks are not cancelled: some executors fail on those when they shut down.
        while True:
            sent += [self._send(function, piece) for piece in islice(pieces, self._ahead - len(sent))]
            if not sent:
                return
            try:
                values = self._result(sent[0].future)
            except self._losses:
                self._do_again(function, sent, lost)
                continue
            del sent[0]
            yield from values

    def close(self, *, wait: bool = False) -> None:
        """Shut the executor down, and wait for it if asked to."""
        if self._executor is not None:
            self._executor.shutdown(wait=wait)
            self._executor = None

    def _send(self, function: Callable[[T], V], items: Sequence[T]) -> _Sent[T, V]:
        try:
            return _Sent(items, self._running().submit(_run, function, items, fingerprint()))
        except BrokenExecutor as error:
            # It broke just now: chunks that were sent before will fail, and this one is repeated with them.
            future: Future[list[V]] = Future()
            future.set_exception(error)
            return _Sent(items, future)

    def _running(self) -> Executor:
        if self._executor is None:
            assert self._start is not None
            self._executor = self._start()
        return self._executor

    def _result(self, future: Future[list[V]]) -> list[V]:
        while not wait([future], PULSE_S).done:
            self._check()
        try:
            return future.result()
        except CancelledError as error:
            raise ExecutorError("the connection to the executor is lost") from error

    def _do_again(self, function: Callable[[T], V], sent: Sequence[_Sent[T, V]], lost: Callable[[T], V] | None) -> None:
        """Repeat one by one what was running when a worker died."""
        while wait([piece.future for piece in sent], PULSE_S).not_done:
            self._check()
        self.close()
        for piece in sent:
            if not piece.future.cancelled() and isinstance(piece.future.exception(), self._losses):
                values = [self._alone(function, item, lost) for item in piece.items]
                piece.future = Future()
                piece.future.set_result(values)

    def _alone(self, function: Callable[[T], V], item: T, lost: Callable[[T], V] | None) -> V:
        """Return the value of one item while nothing else is running."""
        for _ in range(DEATHS):
            try:
                (value,) = self._result(self._send(function, [item]).future)
            except self._losses:
                self.close()
                continue
            return value
        if lost is not None:
            return lost(item)
        task = " ".join(str(item).split())[:SHOWN]
        raise WorkerLostError(f"workers die repeatedly on one task, or are killed while it runs: {task}")


@dataclass
class _Sent(Generic[T, V]):
    """A submitted chunk."""

    items: Sequence[T]
    future: Future[list[V]]


def add_options(parser: argparse.ArgumentParser, jobs: int = 1) -> None:
    """Add the options that choose an executor; ``jobs`` is the default number of processes."""
    parser.add_argument("--jobs", metavar="J", type=int, default=jobs, help="processes on this machine (%(default)s)")
    parser.add_argument(
        "--executor",
        metavar="WHERE",
        default=LOCAL,
        help="local, or dask://HOST:PORT for the workers of a Dask scheduler in place of --jobs (%(default)s)",
    )


def _pieces(items: Iterable[T], chunk: int) -> Iterator[list[T]]:
    remaining = iter(items)
    while piece := list(islice(remaining, chunk)):
        yield piece


HERE = Pool()
"""The pool that works in this process."""


@contextmanager
def open_pool(jobs: int = 1, where: str = LOCAL) -> Generator[Pool]:
    """Open a pool within the body.

    Args:
        jobs: the number of processes on this machine; 1 means this process.
        where: ``local``, or ``dask://HOST:PORT``, the address of a scheduler.

    Raises:
        ExecutorError: there is no such executor, or it does not answer.
    """
    if jobs < 1:
        raise ExecutorError(f"--jobs must be at least 1, not {jobs}")
    if where == LOCAL:
        opened = _local(jobs)
    elif where.startswith(DASK):
        opened = _dask(where)
    else:
        raise ExecutorError(f"--executor must be {LOCAL} or {DASK}HOST:PORT, not {where}")
    with opened as pool:
        yield pool


@contextmanager
def _local(jobs: int) -> Generator[Pool]:
    if jobs == 1:
        yield HERE
        return

    def start() -> Executor:
        # Libraries here may have started threads, which do not survive a fork.
        context = multiprocessing.get_context("spawn")
        executor = ProcessPoolExecutor(jobs, context, _obey)
        with _interrupts_held_back():
            for _ in range(jobs):
                executor.submit(int)  # starts a process, since none is idle yet
        return executor

    others = set(multiprocessing.active_children())
    pool = Pool(start, ahead=3 * jobs)
    try:
        yield pool
    finally:
        for process in set(multiprocessing.active_children()) - others:
            process.terminate()
        # If left to its own thread at Python's exit, an executor is sometimes woken up after it was closed.
        pool.close(wait=True)


@contextmanager
def _dask(where: str) -> Generator[Pool]:
    try:
        from distributed import Client
        from distributed.scheduler import KilledWorker
    except ImportError as error:
        raise ExecutorError(f"{where} needs Dask; install taso-py[dask]") from error
    client, reason = None, ""
    try:
        client = Client(f"tcp://{where.removeprefix(DASK)}", timeout=CONNECTING_S, set_as_default=False)
    except (OSError, ValueError) as error:
        reason = first_line(error)
    if client is None:
        # A client that failed is garbage in a cycle, and stops its thread when it is collected. The thread of a later
        # client must not do that: it would wait for a lock that its starter holds (distributed 2026.8, LoopRunner).
        gc.collect()
        raise ExecutorError(f"no Dask scheduler answers at {where}: {reason}")
    with client:
        last = time.monotonic()

        def check() -> None:
            nonlocal last
            if client.status == "running" and client.nthreads():
                last = time.monotonic()
            elif time.monotonic() - last > PATIENCE_S:
                raise ExecutorError(f"{where} has had no workers for {PATIENCE_S:.0f} s")

        # The scheduler itself retries a task first.
        yield Pool(lambda: _Cluster(client), losses=(KilledWorker,), check=check)


class _Cluster(Executor):
    """A Dask cluster as an executor.

    Dask's own executor asks for the status of a task even if it has its value, and fails if the worker has died since.
    """

    def __init__(self, client: Any) -> None:
        self._client = client

    def submit(self, fn: Callable[..., V], /, *args: Any, **kwargs: Any) -> Future[V]:
        # Not pure: Dask would hash the arguments for a key, which is slow.
        task = self._client.submit(fn, *args, **kwargs, pure=False)
        return asyncio.run_coroutine_threadsafe(_value(task), self._client.loop.asyncio_loop)


async def _value(task: Any) -> Any:
    return await task


@contextmanager
def _interrupts_held_back() -> Generator[None]:
    """Block interrupts while processes are started, until these ignore them."""
    if sys.platform == "win32":
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _obey() -> None:
    """Make a local worker ignore interrupts, which are for the parent, and exit if the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()


def end_with_parent() -> None:
    """Make this process exit when the process that started it has ended, in whatever way; return at once."""
    threading.Thread(target=_exit_after_parent, daemon=True).start()


def _exit_after_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None, "started by multiprocessing"
    parent.join()
    os._exit(1)


def _run(function: Callable[[Any], Any], items: Sequence[Any], expected: str) -> list[Any]:
    """Return the values of a chunk, in a worker."""
    if fingerprint() != expected:
        raise ExecutorError(
            f"a worker on {platform.node()} has other versions of taso-py or of libraries than this one"
        )
    # Threads of a process, of which some workers have several, share nodes and Z3's terms.
    with _one_at_a_time:
        return [function(item) for item in items]


@cache
def fingerprint() -> str:
    """Return a digest of everything that results depend on: sources, and versions of Python and libraries."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256(platform.python_version().encode())
    for path in sorted(path for files in SOURCES for path in root.glob(files)):
        digest.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    for library in LIBRARIES:
        digest.update(f"{library} {_version(library)}".encode())
    return digest.hexdigest()


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return "none"
