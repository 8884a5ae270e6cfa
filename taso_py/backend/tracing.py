"""Access to PyTorch's tracing and compiling code, one thread at a time, without its output.

PyTorch keeps the state of a trace in variables of the process (torch 2.13: ``torch.compiler``, ``torch.fx``,
``torch.export``), and guards it by the lock of ``torch.compile`` alone; ``torch.export`` takes none.

Invariant: a process-wide change is made by the thread that holds this lock, affects that thread only (its logs, its
warnings, its prints), and is undone however the body ends.
"""

from __future__ import annotations

import logging
import sys
import threading
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.fx.traceback
from torch.utils._python_dispatch import TorchDispatchMode

from taso_py.backend.generators import seed_kept

_OWN = __name__.partition(".")[0]


@contextmanager
def tracing_lock() -> Generator[None]:
    """Keep all other threads from tracing and compiling; they go on running compiled code."""
    from torch._dynamo.convert_frame import compile_lock  # imported here: it takes as long as PyTorch itself

    with compile_lock:
        yield


@contextmanager
def quiet() -> Generator[None]:
    """Give exclusive access for tracing, gradients off, without PyTorch's warnings, logs and prints.

    No user can act on those messages. Functions that were compiled before refuse to run in other threads while
    something is traced, unless the tracer declares itself a compiler.
    """
    with tracing_lock(), _compiling(), _unnoticed(), silent(), torch.no_grad():
        yield


@contextmanager
def draws_kept() -> Generator[None]:
    """Keep calls in what is traced that draw random numbers which nothing reads: they move the generator on.

    Where PyTorch traces, it removes them as dead code, also from the bodies of control flow, unless Inductor is set to
    draw as eager mode does (``Graph.eliminate_dead_code``, torch 2.13).
    """
    import torch._inductor.config as settings  # imported here: it takes as long as PyTorch itself

    with tracing_lock(), settings.patch(fallback_random=True):
        yield


@contextmanager
def _compiling() -> Generator[None]:
    compiler: Any = torch.compiler
    before, compiler._is_compiling_flag = compiler._is_compiling_flag, True
    try:
        yield
    finally:
        compiler._is_compiling_flag = before


@contextmanager
def _unnoticed() -> Generator[None]:
    """Hide an export in progress from other threads.

    Otherwise ``torch.compile`` would not compile there meanwhile, and interpreted graphs running there would write to
    the metadata of the nodes that are traced here; and PyTorch would put the random generators back to what they were
    before the trace, which undoes what has been drawn there since (torch 2.13).
    """
    from torch._functorch import aot_autograd  # imported here: it takes as long as PyTorch itself

    with (
        _replaced(torch.compiler, "is_exporting", elsewhere=lambda: False),
        _replaced(torch.fx.traceback, "annotate", elsewhere=_do_nothing),
        _replaced(torch.fx.traceback, "set_current_meta", elsewhere=_do_nothing),
        _replaced(aot_autograd, "preserve_rng_state", here=seed_kept),
    ):
        yield


@contextmanager
def _replaced(
    module: Any, name: str, *, here: Callable[..., Any] | None = None, elsewhere: Callable[..., Any] | None = None
) -> Generator[None]:
    """Replace a function of a module for this thread, for all others, or for neither."""
    before, thread = getattr(module, name), threading.get_ident()

    def call(*args: Any, **kwargs: Any) -> Any:
        function = here if threading.get_ident() == thread else elsewhere
        return (function or before)(*args, **kwargs)

    # Where the compiler traces a body of control flow that calls it, it takes the answer for a constant.
    torch.compiler.assume_constant_result(call)
    setattr(module, name, call)
    try:
        yield
    finally:
        setattr(module, name, before)


def _do_nothing(*_: Any, **__: Any) -> AbstractContextManager[None]:
    return nullcontext()


@contextmanager
def silent() -> Generator[None]:
    """Drop this thread's warnings, logs (except this project's own) and prints to standard error."""
    with tracing_lock(), without_warnings(), _without_logs(), _without_prints():
        yield


class _OfThread(type(Warning)):
    """Metaclass of a warning category that all warnings of one thread belong to."""

    thread: int | None

    def __subclasscheck__(cls, subclass: type) -> bool:
        return threading.get_ident() == cls.thread


@contextmanager
def without_warnings() -> Generator[None]:
    """Drop the warnings of this thread, and keep others from tracing, see :func:`tracing_lock`.

    ``warnings.catch_warnings`` would put the filters of the process back to what they were, and undo what other threads
    have set since.
    """
    category: Any = _OfThread("OfThread", (Warning,), {"thread": threading.get_ident()})
    entry: Any = ("ignore", None, category, None, 0)
    with tracing_lock():
        filters: Any = warnings.filters
        filters.insert(0, entry)
        try:
            yield
        finally:
            category.thread = None  # another thread may have copied the list, and puts its copy in place later
            now: Any = warnings.filters
            for each in (filters, now):
                if entry in each:
                    each.remove(entry)


@contextmanager
def _without_logs() -> Generator[None]:
    thread = threading.get_ident()

    def passes(record: logging.LogRecord) -> bool:
        return record.thread != thread or record.name.partition(".")[0] == _OWN

    handlers = list(_handlers())
    for handler in handlers:
        handler.addFilter(passes)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(passes)


def _handlers() -> Iterator[logging.Handler]:
    """Yield all log handlers."""
    named = [each for each in list(logging.root.manager.loggerDict.values()) if isinstance(each, logging.Logger)]
    for logger in (logging.root, *named):
        yield from logger.handlers
    if logging.lastResort is not None:
        yield logging.lastResort


class _Muffled:
    """A stream that drops what one thread writes."""

    def __init__(self, stream: Any, thread: int) -> None:
        self.stream = stream
        self.thread: int | None = thread

    def write(self, text: str) -> int:
        if threading.get_ident() == self.thread:
            return len(text)
        written: int = self.stream.write(text)
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@contextmanager
def _without_prints() -> Generator[None]:
    if sys.stderr is None:  # where it was closed
        yield
        return
    muffled: Any = _Muffled(sys.stderr, threading.get_ident())
    sys.stderr = muffled
    try:
        yield
    finally:
        muffled.thread = None  # others may hold on to it, which is then the stream itself
        if sys.stderr is muffled:
            sys.stderr = muffled.stream


class OperatorWatch(TorchDispatchMode):
    """A mode that sees each call of an operator.

    PyTorch compiles control flow in eager mode too, which fails from then on if a mode does not let it.
    """

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let it compile as ever."""
        return True
