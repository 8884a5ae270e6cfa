"""Tables of plain cells for the terminal."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from rich.markup import escape
from rich.table import Table


def plain_table(header: Sequence[str], rows: Iterable[Sequence[str]], numbers: Collection[str]) -> Table:
    """Return a table without lines, with the columns of numbers, named by their headers, to the right."""
    table = Table(box=None, pad_edge=False)
    for name in header:
        table.add_column(name, justify="right" if name in numbers else "left", no_wrap=True)
    for row in rows:
        table.add_row(*map(escape, row))
    return table
