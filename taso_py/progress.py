"""Progress bars on standard error.

Invariant: a terminal sees them move, a log gets a line now and then, whatever the pace of the work.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from tqdm import tqdm

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
) -> tqdm[Any]:
    """A bar over steps, or one that is told of them.

    Args:
        steps: what to go through, if the bar is to be iterated over.
        desc: what is done.
        total: how many steps there are, if that is not the length of ``steps``.
        unit: what a step is.
        shown: whether there is a bar at all.
        leave: whether it stays when all is done.
    """
    # There is no standard error where it was closed, and what takes its place need not know of terminals.
    is_terminal: bool = getattr(sys.stderr, "isatty", lambda: False)()
    pause = TERMINAL_SECONDS if is_terminal else LOG_SECONDS
    # tqdm itself writes a state after ``maxinterval`` where ``mininterval`` is less.
    return tqdm(
        steps,
        desc=desc,
        total=total,
        unit=unit,
        disable=not shown or not hasattr(sys.stderr, "write"),
        leave=leave,
        mininterval=pause,
        maxinterval=max(10.0, pause),
    )
