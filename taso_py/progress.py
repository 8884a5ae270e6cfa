"""Progress on standard error: bars, and a line for each phase of a job with its seconds.

Invariant: bars move in a terminal, and a log gets a line at long intervals; the seconds of all phases add up to those
of the job.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Any, TypeAlias

from tqdm import tqdm

OnShare: TypeAlias = Callable[[float], None]
"""Called with the share of something that is over, from 0 to 1."""
TERMINAL_SECONDS, LOG_SECONDS = 0.1, 15.0
"""Shortest interval between two updates of a bar, in a terminal and in a log."""


def progress_bar(
    steps: Iterable[Any] | None = None,
    *,
    desc: str | None = None,
    total: float | None = None,
    unit: str = "it",
    shown: bool = True,
    leave: bool = False,
    **more: Any,
) -> tqdm[Any]:
    """Return a bar over steps, or one that is updated by its caller.

    Args:
        steps: the steps to iterate over, if any.
        desc: a description.
        total: the number of steps, if that is not the length of ``steps``.
        unit: the name of a step.
        shown: whether to show the bar.
        leave: whether it stays on the screen at the end.
        more: further arguments of tqdm.
    """
    pause, delay = (TERMINAL_SECONDS, 0.0) if _is_terminal() else (LOG_SECONDS, LOG_SECONDS)
    # tqdm writes an update after ``maxinterval`` if ``mininterval`` is less.
    return tqdm(
        steps,
        desc=desc,
        total=total,
        unit=unit,
        disable=not shown or not hasattr(sys.stderr, "write"),
        leave=leave,
        mininterval=pause,
        delay=delay,
        maxinterval=max(10.0, pause),
        **more,
    )


@contextmanager
def share_bar(desc: str, *, shown: bool = True) -> Generator[OnShare]:
    """Show a bar for something that ends when a share of time or rounds is used up, with the time that is left."""
    form = "{desc}: {percentage:3.0f}%|{bar}| {elapsed} passed, {remaining} left{postfix}"
    with progress_bar(desc=desc, total=1.0, shown=shown, bar_format=form, smoothing=0.0) as bar:

        def on_share(share: float) -> None:
            bar.update(min(share, 1.0) - bar.n)

        yield on_share


class Phases:
    """The consecutive phases of a job and their seconds; a phase within another interrupts it."""

    def __init__(self, *, shown: bool = False, now: Callable[[], float] = time.perf_counter) -> None:
        """Start measuring.

        Args:
            shown: whether to write to standard error.
            now: returns the time in seconds.
        """
        self.seconds: dict[str, float] = {}
        """Seconds of each phase, by name, in order of their first start; repeated phases are added up."""
        self.shown = shown and hasattr(sys.stderr, "write")
        """True if anything is written."""
        self._now = now
        self._open: list[str] = []
        self._since = now()

    @contextmanager
    def phase(self, name: str, about: str = "") -> Generator[None]:
        """Measure a phase, and write a line at its end.

        Args:
            name: a word.
            about: a description for users.
        """
        self._turn()
        self._open.append(name)
        before = self.seconds.setdefault(name, 0.0)
        if self.shown and _is_terminal():
            sys.stderr.write(f"\r\x1b[K{name:<9}{'...':>7}    {about}")
            sys.stderr.flush()
        try:
            yield
        finally:
            self._turn()
            self._open.pop()
            if self.shown:
                clear = "\r\x1b[K" if _is_terminal() else ""
                self.say(f"{clear}{name:<9}{self.seconds[name] - before:>7.1f} s  {about}".rstrip())

    @contextmanager
    def phase_with_bar(self, name: str, about: str = "") -> Generator[OnShare]:
        """Measure a phase that reports its progress to a bar."""
        with self.phase(name, about), share_bar(name, shown=self.shown) as on_share:
            yield on_share

    def say(self, line: str) -> None:
        """Write a line, if progress is shown."""
        if self.shown:
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()

    def _turn(self) -> None:
        """Add the time since the last change to the innermost phase."""
        now = self._now()
        if self._open:
            self.seconds[self._open[-1]] += now - self._since
        self._since = now


def _is_terminal() -> bool:
    """Return whether standard error is a terminal; it may be closed, or an object without ``isatty``."""
    return getattr(sys.stderr, "isatty", lambda: False)()
