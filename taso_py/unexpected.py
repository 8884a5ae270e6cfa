"""Handling of unexpected errors: one line for the user, a report file with the details, and a switch for tracebacks.

Invariant: an interrupt, an exit and every :class:`TasoError` pass through; this module raises only
:class:`UnexpectedError`.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import tempfile
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TypeAlias

from taso_py.files import replace_file
from taso_py.ir.errors import TasoError, first_line

VARIABLE = "TASO_PY_DEBUG"
"""Environment variable that shows tracebacks if it is set to anything but 0."""
PACKAGES = ("taso-py", "torch", "numpy", "torchvision", "timm", "transformers", "onnx", "onnxruntime")
"""Packages whose versions a report states."""
Facts: TypeAlias = dict[str, object]
"""Content of a report by heading; a function is called for its text when a report is written."""

_log = logging.getLogger(__name__)
_switch: ContextVar[bool] = ContextVar("_switch", default=False)


class UnexpectedError(TasoError):
    """An internal error; its text is one line that names the file with the details."""


def shows_tracebacks() -> bool:
    """Return whether tracebacks are asked for."""
    return _switch.get() or os.environ.get(VARIABLE, "0") not in ("", "0")


@contextmanager
def tracebacks_shown(shown: bool = True) -> Generator[None]:
    """Ask for tracebacks in this thread, or leave it to the environment variable."""
    token = _switch.set(shown)
    try:
        yield
    finally:
        _switch.reset(token)


@contextmanager
def report_unexpected(what: str) -> Generator[Facts]:
    """Turn unexpected exceptions of the body into an :class:`UnexpectedError`.

    Args:
        what: the activity, as in "while optimizing ResNet".

    Yields:
        Facts for a report, to which the body adds as they become known.
    """
    facts: Facts = {}
    try:
        yield facts
    except (TasoError, BrokenPipeError):
        raise
    except Exception as error:
        raise unexpected_error(error, what, facts) from error


def unexpected_error(error: Exception, what: str, facts: Mapping[str, object] | None = None) -> UnexpectedError:
    """Write a report about an exception and return the error to raise in its place."""
    text = "\n".join(_report(error, what, facts or {}))
    place = _written(text, error)
    if shows_tracebacks() and not _switch.get():  # otherwise the caller that asked for it prints it
        _log.error("unexpected while %s", what, exc_info=error)
    advice = "" if shows_tracebacks() else f"; {VARIABLE}=1 shows the traceback"
    said = f"unexpected {type(error).__name__} while {what} ({first_line(error)})"
    found = UnexpectedError(f"{said}; please report it with {place}{advice}")
    found.__cause__ = error
    return found


def _report(error: Exception, what: str, facts: Mapping[str, object]) -> Iterator[str]:
    yield f"An unexpected error of taso-py while {what}: {type(error).__name__}: {error}"
    for heading, fact in {**facts, "versions": _versions()}.items():
        yield f"\n# {heading}\n{_stated(fact)}"
    yield "\n# traceback\n" + "".join(traceback.format_exception(error))


def _stated(fact: object) -> str:
    try:
        return str(fact() if isinstance(fact, Callable) else fact)
    except Exception as error:  # the fact itself may be broken
        return f"unknown: {error!r}"


def _versions() -> str:
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return "\n".join(f"{name} {number}" for name, number in found.items())


def _written(text: str, error: Exception) -> str:
    """Write a report to a file and return its path; equal errors at the same place share a file."""
    frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    name = hashlib.blake2b(repr((type(error).__name__, frames)).encode(), digest_size=6).hexdigest()
    for folder in _folders():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            replace_file(folder / f"error-{name}.txt", text)
        except OSError:
            continue
        return str(folder / f"error-{name}.txt")
    return "the traceback (no report could be written)"


def _folders() -> Iterator[Path]:
    """Yield folders for reports: beside the latency database, else the temporary folder."""
    from taso_py.latency.database import default_path

    with suppress(OSError):
        yield default_path().parent / "reports"
    yield Path(tempfile.gettempdir()) / "taso-py-reports"
