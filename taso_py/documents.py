"""Paths of the documentation's pages, for messages that refer to one.

Invariant: the paths exist: beside the code in an installed package, in ``docs`` in a clone of the repository.
"""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent
HOMES = (HERE / "docs", HERE.parent / "docs")
"""Folders of the pages, of which the first that has a page counts; wheels have them in the package."""


def page(name: str) -> str:
    """Return the path of a page, for example ``limits.md``."""
    return str(next((home / name for home in HOMES if (home / name).is_file()), HOMES[-1] / name))
