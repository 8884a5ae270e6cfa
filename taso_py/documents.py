"""Where the pages of the documentation are, for messages that point to one.

Invariant: what is named exists: in an installed package beside the code, in a clone of the repository in its ``docs``.
"""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent
HOMES = (HERE / "docs", HERE.parent / "docs")
"""The folders, the first that is there counts: wheels have the pages in the package."""


def page(name: str) -> str:
    """The path of a page, ``limits.md`` for example."""
    return str(next((home / name for home in HOMES if (home / name).is_file()), HOMES[-1] / name))
