"""Where work is done: in this process, in others on this machine, or on a Dask cluster.

    with open_pool(jobs=2, where="local") as pool:            # or where="dask://HOST:PORT"
        values = pool.map(function, items)

Whatever has the interface of ``concurrent.futures`` can do the work (:class:`Pool`). A worker that is lost, killed or
out of memory, takes nothing with it: what it had is done again. Nobody can say which of the tasks under way it died of,
so these are done one by one; a task whose worker dies then too is reported, and not tried for ever.

Invariant: values come in the order of their items, and depend on these only; tasks of one process never run at the
same time, and only in processes that have the same sources and libraries as this one.
"""

from __future__ import annotations

import argparse
import asyncio
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
"""How many workers may die of a task that is all they have to do."""
SHOWN = 200
"""How many characters of a task an error shows."""
AHEAD = 64
"""How many chunks a cluster is given in advance, so that workers do not wait for this process."""
CONNECTING_S, PULSE_S, PATIENCE_S = 10.0, 2.0, 60.0
"""How long a scheduler may take to answer, how often it is asked for workers, and how long there may be none."""
SOURCES = ("taso_py/**/*.py", "verify/**/*.py", "fuzz/**/*.py", "substitutions/*.rules")
LIBRARIES = ("egglog", "hypothesis", "networkx", "numpy", "torch", "z3-solver")
"""What results depend on."""

_one_at_a_time = threading.Lock()


class ExecutorError(TasoError):
    """An executor that is not there, or that is lost with all its workers."""


class WorkerLostError(TasoError):
    """A task that its workers die of."""


class Pool:
    """Applies functions to items by means of an executor, or in this process without one."""

    def __init__(
        self,
        start: Callable[[], Executor] | None = None,
        *,
        ahead: int = AHEAD,
        losses: tuple[type[BaseException], ...] = (),
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Makes a pool.

        Args:
            start: gives an executor; called again if that breaks. None: this process does all.
            ahead: how many chunks are submitted in advance.
            losses: what futures raise whose workers died, beside ``BrokenExecutor``.
            check: called now and then while there is nothing to do but wait; raises if waiting is in vain.
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
        """The values of a function for items, in their order.

        Args:
            function: known to other processes by its name, as what it takes and gives must be.
            items: taken as they are needed.
            chunk: how many items are sent together, where each takes little time.
            lost: the value for an item that its workers die of; without it that is an error.

        Raises:
            WorkerLostError: workers die of an item.
            ExecutorError: there is nobody left to do the work.
        """
        if self._start is None:
            yield from map(function, items)
            return
        pieces = _pieces(items, chunk)
        sent: list[_Sent[T, V]] = []
        # Where this ends early, what was sent is left to run: some executors trip over what is cancelled when they end.
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
        """Gives the executor up, having waited for it to end where that is asked for."""
        if self._executor is not None:
            self._executor.shutdown(wait=wait)
            self._executor = None

    def _send(self, function: Callable[[T], V], items: Sequence[T]) -> _Sent[T, V]:
        try:
            return _Sent(items, self._running().submit(_run, function, items, fingerprint()))
        except BrokenExecutor as error:
            # It broke just now: those that were sent before will say so, and this is done again with them.
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
        """Does one by one what was under way when a worker died."""
        while wait([piece.future for piece in sent], PULSE_S).not_done:
            self._check()
        self.close()
        for piece in sent:
            if not piece.future.cancelled() and isinstance(piece.future.exception(), self._losses):
                values = [self._alone(function, item, lost) for item in piece.items]
                piece.future = Future()
                piece.future.set_result(values)

    def _alone(self, function: Callable[[T], V], item: T, lost: Callable[[T], V] | None) -> V:
        """The value of one item, nothing else being under way."""
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
        raise WorkerLostError(f"workers die of one task again and again, or are killed meanwhile: {task}")


@dataclass
class _Sent(Generic[T, V]):
    """A chunk under way."""

    items: Sequence[T]
    future: Future[list[V]]


def add_options(parser: argparse.ArgumentParser, jobs: int = 1) -> None:
    """Adds the options that say where the work is done; ``jobs`` is how many processes there are by default."""
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
"""This process."""


@contextmanager
def open_pool(jobs: int = 1, where: str = LOCAL) -> Generator[Pool]:
    """A pool for as long as it is needed.

    Args:
        jobs: how many processes, on this machine; 1 means this one.
        where: ``local``, or ``dask://HOST:PORT``, the address of a scheduler.

    Raises:
        ExecutorError: there is no such executor, or nobody answers there.
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
        executor = ProcessPoolExecutor(jobs, context, _obey, (os.getpid(),))
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
        # Ended by its own thread while Python ends, an executor is sometimes woken up when it is closed already.
        pool.close(wait=True)


@contextmanager
def _dask(where: str) -> Generator[Pool]:
    try:
        from distributed import Client
        from distributed.scheduler import KilledWorker
    except ImportError as error:
        raise ExecutorError(f"{where} needs Dask; install taso-py[dask]") from error
    try:
        client = Client(f"tcp://{where.removeprefix(DASK)}", timeout=CONNECTING_S, set_as_default=False)
    except (OSError, ValueError) as error:
        raise ExecutorError(f"no Dask scheduler answers at {where}: {first_line(error)}") from error
    with client:
        last = time.monotonic()

        def check() -> None:
            nonlocal last
            if client.status == "running" and client.nthreads():
                last = time.monotonic()
            elif time.monotonic() - last > PATIENCE_S:
                raise ExecutorError(f"{where} has had no workers for {PATIENCE_S:.0f} s")

        # The scheduler tries a task again on its own first.
        yield Pool(lambda: _Cluster(client), losses=(KilledWorker,), check=check)


class _Cluster(Executor):
    """A Dask cluster as an executor.

    Dask's own asks what became of a task when it has the value already, and fails if the task's worker has died since.
    """

    def __init__(self, client: Any) -> None:
        self._client = client

    def submit(self, fn: Callable[..., V], /, *args: Any, **kwargs: Any) -> Future[V]:
        # Calls are not pure for Dask, which would name them by content, slowly.
        task = self._client.submit(fn, *args, **kwargs, pure=False)
        return asyncio.run_coroutine_threadsafe(_value(task), self._client.loop.asyncio_loop)


async def _value(task: Any) -> Any:
    return await task


@contextmanager
def _interrupts_held_back() -> Generator[None]:
    """Processes that are started meanwhile are not interrupted before they have said that they are not to be."""
    if sys.platform == "win32":
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _obey(parent: int) -> None:
    """In a local worker: an interrupt is for the parent, who ends its workers; one that was killed cannot."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _run(function: Callable[[Any], Any], items: Sequence[Any], expected: str) -> list[Any]:
    """In a worker: the values of a chunk."""
    if fingerprint() != expected:
        raise ExecutorError(
            f"a worker on {platform.node()} has other versions of taso-py or of libraries than this one"
        )
    # Nodes and Z3's terms are shared by the threads of a process, which some workers have several of.
    with _one_at_a_time:
        return [function(item) for item in items]


@cache
def fingerprint() -> str:
    """A digest of what results depend on: our sources and the versions of Python and of libraries."""
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
