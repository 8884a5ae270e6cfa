"""Progress on standard error: bars, and a line for each phase of a job with the seconds that it took.

Invariant: a terminal sees bars move, a log gets a line now and then, whatever the pace of the work; the seconds of all
phases together are those of the job.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Any, TypeAlias

from tqdm import tqdm

OnShare: TypeAlias = Callable[[float], None]
"""Told which share of something is over, from 0 to 1."""
TERMINAL_SECONDS, LOG_SECONDS = 0.1, 15.0
"""The least time between two states of a bar that are written."""


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
    """A bar over steps, or one that is told of them.

    Args:
        steps: what to go through, if the bar is to be iterated over.
        desc: what is done.
        total: how many steps there are, if that is not the length of ``steps``.
        unit: what a step is.
        shown: whether there is a bar at all.
        leave: whether it stays when all is done.
        more: for tqdm.
    """
    pause, delay = (TERMINAL_SECONDS, 0.0) if _is_terminal() else (LOG_SECONDS, LOG_SECONDS)
    # tqdm itself writes a state after ``maxinterval`` where ``mininterval`` is less.
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
    """A bar for what ends when a share of time or of rounds is used up; it says how many seconds that takes at most."""
    form = "{desc}: {percentage:3.0f}%|{bar}| {elapsed} passed, {remaining} left{postfix}"
    with progress_bar(desc=desc, total=1.0, shown=shown, bar_format=form, smoothing=0.0) as bar:

        def on_share(share: float) -> None:
            bar.update(min(share, 1.0) - bar.n)

        yield on_share


class Phases:
    """The phases of a job, one after the other; a phase within another interrupts it."""

    def __init__(self, *, shown: bool = False, now: Callable[[], float] = time.perf_counter) -> None:
        """Begin.

        Args:
            shown: whether to write to standard error.
            now: the time in seconds.
        """
        self.seconds: dict[str, float] = {}
        """What each took, by name, in the order in which they began; one that came again has all of its seconds."""
        self.shown = shown and hasattr(sys.stderr, "write")
        """Whether anything is written."""
        self._now = now
        self._open: list[str] = []
        self._since = now()

    @contextmanager
    def phase(self, name: str, about: str = "") -> Generator[None]:
        """A phase.

        Args:
            name: a word.
            about: what is done, for people.
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
    def timed(self, name: str, about: str = "") -> Generator[OnShare]:
        """A phase that is told how far it is, with a bar."""
        with self.phase(name, about), share_bar(name, shown=self.shown) as on_share:
            yield on_share

    def say(self, line: str) -> None:
        """Writes a line, where progress is shown."""
        if self.shown:
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()

    def _turn(self) -> None:
        """Charges the time to the innermost phase."""
        now = self._now()
        if self._open:
            self.seconds[self._open[-1]] += now - self._since
        self._since = now


def _is_terminal() -> bool:
    """Whether somebody watches standard error; there is none where it was closed, and not all know of terminals."""
    return getattr(sys.stderr, "isatty", lambda: False)()
