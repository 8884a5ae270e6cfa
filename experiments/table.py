"""Tables: rows to CSV and back, and as text for readers.

Invariant: a file holds every digit; only text for readers is rounded.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from experiments.harness import Row
from taso_py.files import replace_file

ENDS = ("_low", "_high")
"""Suffixes of the columns that hold the interval of another."""


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """Write rows; columns are in the order in which rows first name them."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, fieldnames=_names(rows))
    writer.writeheader()
    writer.writerows(rows)
    replace_file(path, text.getvalue())


def read_csv(path: Path) -> list[Row]:
    """Read rows; empty cells are left out."""
    with path.open(newline="", encoding="utf-8") as file:
        return [{name: _value(text) for name, text in row.items() if text} for row in csv.DictReader(file)]


def columns(rows: Sequence[Row], drawn: Collection[str] = ()) -> list[str]:
    """Return the columns for readers: those that are not only drawn; an interval is part of its own column."""
    names = _names(rows)
    hidden = {*drawn, *(name + end for name in names for end in ENDS)}
    return [name for name in names if name not in hidden]


def cell(row: Row, name: str) -> tuple[str, str]:
    """Return a cell and its interval as text; the interval may be empty."""
    low, high = (row.get(name + end) for end in ENDS)
    is_interval = low is not None and high is not None and low != high
    return _shown(row.get(name, "")), f"{_shown(low)} to {_shown(high)}" if is_interval else ""


def is_text(rows: Sequence[Row], name: str) -> bool:
    """Return whether a column holds words rather than numbers."""
    return any(isinstance(row.get(name), str) and row[name] != "" for row in rows)


def _names(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.0f}" if 1e3 <= abs(value) < 1e15 else f"{value:#.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _value(text: str) -> Any:
    if text in ("True", "False"):
        return text == "True"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
