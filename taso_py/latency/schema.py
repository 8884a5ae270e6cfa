"""The tables of the latency database, and what older versions of them become.

Invariant: every function runs within the caller's transaction.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass
from enum import StrEnum
from typing import TypeAlias

from taso_py.latency.clock import Latency
from taso_py.latency.environment import Environment

Key: TypeAlias = tuple[str, str]
"""The text of a kernel, and the text of the types and formats that it runs on."""
FORMATS = "taso-py latencies 1", "taso-py latencies 2"
"""The formats of exports, the present one last."""
APPLICATION_ID = 0x7461736F
"""``taso`` in ASCII: tells our files from other programs' (https://sqlite.org/pragma.html#pragma_application_id)."""
VERSION = 6
"""Also raised when the way of measuring changes, so that latencies cannot be compared."""
SUMMED_VERSION = 5
"""The last version whose interleaved latencies were scaled to a sum, so that one wrong latency spoiled the others."""
UNTYPED_VERSION = 4
"""The last version whose latencies had no kind but a prefix or suffix in their names."""


class LatencyKind(StrEnum):
    """The kinds of latencies."""

    CALL = "call"
    """A call of a kernel, or a conversion between memory formats, measured alone."""
    INTERLEAVED = "interleaved"
    """Such a call measured again, interleaved with other calls of a graph."""
    NETWORK = "network"
    """The reference network in a run, and call by call."""
    PACE = "pace"
    """The calls that tell the usual pace of a machine."""
    CEILING = "ceiling"
    """A probe of the roofline, which no pace scales."""


@dataclass(frozen=True)
class Row:
    """One stored latency."""

    environment: str
    """The key of its environment."""
    kind: LatencyKind
    kernel: str
    signature: str
    measured: str
    """The time of measurement, as an ISO 8601 date and time in UTC."""
    latency: Latency


@dataclass(frozen=True)
class SearchKey:
    """A search, as its convergence is remembered."""

    graph: str
    """The digest of the graph."""
    setup: str
    """The key of the strategy, rules and limits."""
    kernels: str
    """The names of the kernels that compete."""


_CREATE = (
    "CREATE TABLE environment (key TEXT PRIMARY KEY, description TEXT NOT NULL)",
    f"""CREATE TABLE latency (
    environment TEXT NOT NULL REFERENCES environment (key),
    kind TEXT NOT NULL CHECK (kind IN ({", ".join(f"'{kind}'" for kind in LatencyKind)})),
    kernel TEXT NOT NULL,
    signature TEXT NOT NULL,
    median_s REAL NOT NULL CHECK (median_s BETWEEN low_s AND high_s),
    low_s REAL NOT NULL CHECK (low_s >= 0),
    high_s REAL NOT NULL CHECK (high_s < 9e999),
    samples INTEGER NOT NULL CHECK (samples > outliers),
    outliers INTEGER NOT NULL CHECK (outliers >= 0),
    measured TEXT NOT NULL,
    PRIMARY KEY (environment, kind, kernel, signature)
) WITHOUT ROWID""",
    """CREATE TABLE search (
    environment TEXT NOT NULL REFERENCES environment (key),
    graph TEXT NOT NULL,
    setup TEXT NOT NULL,
    kernels TEXT NOT NULL,
    best_s REAL NOT NULL CHECK (best_s >= 0 AND best_s < 9e999),
    finished TEXT NOT NULL,
    PRIMARY KEY (environment, graph, setup, kernels)
) WITHOUT ROWID""",
)
_FIGURES = "median_s, low_s, high_s, samples, outliers"
_SELECT_ONE = f"SELECT {_FIGURES} FROM latency WHERE environment = ? AND kind = ? AND kernel = ? AND signature = ?"
_SELECT_ALL = f"SELECT environment, kind, kernel, signature, measured, {_FIGURES} FROM latency ORDER BY 1, 2, 3, 4"
_SELECT_UNTYPED = f"SELECT environment, kernel, signature, measured, {_FIGURES} FROM untyped"
_SELECT_SEARCH = "SELECT 1 FROM search WHERE environment = ? AND graph = ? AND setup = ? AND kernels = ?"
_INSERT_ENVIRONMENT = "INSERT OR IGNORE INTO environment VALUES (?, ?)"
_INSERT_LATENCY = "INSERT OR REPLACE INTO latency VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_DELETE_INTERLEAVED = (
    f"DELETE FROM latency WHERE environment = ? AND kind = '{LatencyKind.INTERLEAVED}' AND kernel = ? AND signature = ?"
)
_INSERT_SEARCH = "INSERT OR REPLACE INTO search VALUES (?, ?, ?, ?, ?, ?)"


def create(connection: sqlite3.Connection) -> None:
    """Make an empty file a latency database."""
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {VERSION}")
    for statement in _CREATE:
        connection.execute(statement)


def migrate(connection: sqlite3.Connection) -> None:
    """Give the latencies of a database of :data:`UNTYPED_VERSION` their kinds.

    What searches had converged is forgotten: it was stored by the number of kernels, which may be others now.
    """
    described = connection.execute("SELECT key, description FROM environment").fetchall()
    connection.execute("ALTER TABLE latency RENAME TO untyped")
    connection.execute("DROP TABLE environment")
    create(connection)
    connection.executemany(_INSERT_ENVIRONMENT, described)
    for where, kernel, signature, when, *figures in connection.execute(_SELECT_UNTYPED).fetchall():
        named = typed(kernel, signature)
        if named is not None:
            connection.execute(_INSERT_LATENCY, (where, *named, *figures, when))
    connection.execute("DROP TABLE untyped")
    forget_refinements(connection)


def forget_refinements(connection: sqlite3.Connection) -> None:
    """Delete interleaved latencies, and the searches that converged with them, from an older version's tables."""
    connection.execute("DELETE FROM latency WHERE kind = ?", (LatencyKind.INTERLEAVED,))
    connection.execute("DELETE FROM search")
    connection.execute(f"PRAGMA user_version = {VERSION}")


def typed(kernel: str, signature: str) -> tuple[LatencyKind, str, str] | None:
    """Return the kind, kernel and signature of an entry without kind; None if it was no latency."""
    turns = ", in turns"
    if kernel.startswith("best by "):
        return None
    if kernel == "network":
        return LatencyKind.NETWORK, kernel, signature
    for kind in (LatencyKind.PACE, LatencyKind.CEILING):
        if kernel.startswith(f"{kind}:"):
            return kind, kernel.removeprefix(f"{kind}:"), signature
    if signature.endswith(turns):
        return LatencyKind.INTERLEAVED, kernel, signature.removesuffix(turns)
    return LatencyKind.CALL, kernel, signature


def read(
    connection: sqlite3.Connection, environment: str, kind: LatencyKind, keys: Iterable[Key]
) -> dict[Key, Latency]:
    """Return the latencies of a kind that are stored."""
    found = {pair: connection.execute(_SELECT_ONE, (environment, kind, *pair)).fetchone() for pair in keys}
    return {pair: Latency(*row) for pair, row in found.items() if row is not None}


def read_all(connection: sqlite3.Connection) -> list[Row]:
    """Return all latencies, sorted."""
    found = connection.execute(_SELECT_ALL).fetchall()
    return [
        Row(where, LatencyKind(kind), kernel, what, measured=when, latency=Latency(*figures))
        for where, kind, kernel, what, when, *figures in found
    ]


def write(connection: sqlite3.Connection, environments: Mapping[str, Environment], rows: Iterable[Row]) -> None:
    """Insert rows, replacing those with the same keys, and their environments."""
    described = [(key, json.dumps(environment.as_dict())) for key, environment in environments.items()]
    values = [
        (row.environment, row.kind, row.kernel, row.signature, *astuple(row.latency), row.measured) for row in rows
    ]
    connection.executemany(_INSERT_ENVIRONMENT, described)
    connection.executemany(_INSERT_LATENCY, values)


def has_search(connection: sqlite3.Connection, environment: str, search: SearchKey) -> bool:
    """Return whether a search is stored."""
    return connection.execute(_SELECT_SEARCH, (environment, *astuple(search))).fetchone() is not None


def write_search(
    connection: sqlite3.Connection, environment: Environment, search: SearchKey, best_s: float, finished: str
) -> None:
    """Insert a search, or replace it, and its environment."""
    key = environment.key()
    connection.execute(_INSERT_ENVIRONMENT, (key, json.dumps(environment.as_dict())))
    connection.execute(_INSERT_SEARCH, (key, *astuple(search), best_s, finished))


def forget_replaced(connection: sqlite3.Connection, environments: Iterable[str], rows: Iterable[Row]) -> None:
    """Delete what was found out by latencies that rows replace: their interleaved ones, and converged searches."""
    calls = [(row.environment, row.kernel, row.signature) for row in rows if row.kind is LatencyKind.CALL]
    connection.executemany(_DELETE_INTERLEAVED, calls)
    connection.executemany("DELETE FROM search WHERE environment = ?", [(key,) for key in environments])


def clear(connection: sqlite3.Connection, environment: str | None) -> int:
    """Delete everything, or one environment by its key; return the number of latencies deleted."""
    chosen = {"key": environment}
    connection.execute("DELETE FROM search WHERE environment = ifnull(:key, environment)", chosen)
    removed = connection.execute("DELETE FROM latency WHERE environment = ifnull(:key, environment)", chosen)
    connection.execute("DELETE FROM environment WHERE key = ifnull(:key, key)", chosen)
    return removed.rowcount
