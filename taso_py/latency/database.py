"""The latency database: latencies measured on this machine, valid as long as nothing about it changes.

It is an SQLite file that several processes may use at once. Each opens it for itself, also after a fork.

Invariant: it is only a cache. Any problem with the file or its folder costs one warning and new measurements, never a
result and never an exception.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar, cast

from platformdirs import user_cache_path

from taso_py.ir.errors import TasoError
from taso_py.latency import schema
from taso_py.latency.clock import Latency
from taso_py.latency.environment import Environment
from taso_py.latency.schema import FORMATS, Key, LatencyKind, Row, SearchKey
from taso_py.latency.usual import KEYS, SHORTEST_S, pace_among

log = logging.getLogger(__name__)

T = TypeVar("T")
BUSY_S = 10.0
IN_MEMORY = Path(":memory:")


class LatencyDatabase:
    """Latencies by environment, kernel and signature; a context manager that closes its file.

    Without a path it is the user's own, in `default_path`. If that or the given path cannot be used, the database is in
    memory, and ``path`` is None. Threads may share it.
    """

    path: Path | None
    problem: str | None = None
    """The reason why entries are kept in memory only, if they should have been in a file."""

    def __init__(self, path: Path | str | None = None) -> None:
        """Open a database, creating it if needed; ``":memory:"`` makes a private one."""
        self._lock = threading.Lock()
        self.path = None
        try:
            wanted = default_path() if path is None else Path(path)
            self.path = None if wanted == IN_MEMORY else wanted
            self._connection = _open(wanted)
        except (sqlite3.Error, OSError) as error:
            self._continue_in_memory(error)

    def get(
        self, environment: Environment, kernel: str, signature: str, kind: LatencyKind = LatencyKind.CALL
    ) -> Latency | None:
        """Return the stored latency, or None."""
        return self.get_many(environment, [(kernel, signature)], kind).get((kernel, signature))

    def get_many(
        self, environment: Environment, keys: Iterable[Key], kind: LatencyKind = LatencyKind.CALL
    ) -> dict[Key, Latency]:
        """Return the stored latencies of a kind; keys without one are missing from the result."""
        key, wanted = environment.key(), list(keys)
        return self._run(lambda connection: schema.read(connection, key, kind, wanted))

    def put(
        self,
        environment: Environment,
        kernel: str,
        signature: str,
        latency: Latency,
        kind: LatencyKind = LatencyKind.CALL,
    ) -> None:
        """Store a latency, at once and for all processes, replacing an older one for the same key."""
        self.put_together(environment, {(kernel, signature): latency}, kind)

    def put_together(self, environment: Environment, latencies: Mapping[Key, Latency], kind: LatencyKind) -> None:
        """Store latencies of a kind that belong together: all of them or, if the process ends meanwhile, none."""
        rows = _rows(environment, latencies, kind)
        self._run_at_once(lambda connection: schema.write(connection, {environment.key(): environment}, rows))

    def put_first(
        self, environment: Environment, latencies: Mapping[Key, Latency], kind: LatencyKind
    ) -> dict[Key, Latency]:
        """Store latencies that belong together, unless all are known; return those that are stored from then on."""
        key, rows = environment.key(), _rows(environment, latencies, kind)

        def insert(connection: sqlite3.Connection) -> dict[Key, Latency]:
            known = schema.read(connection, key, kind, latencies)
            if len(known) == len(latencies):
                return known
            schema.write(connection, {key: environment}, rows)
            return dict(latencies)

        return self._run_at_once(insert)

    def rows(self, *kinds: LatencyKind) -> list[Row]:
        """Return the latencies of these kinds, by default all, sorted by environment, kind, kernel and signature."""
        found = self._run(schema.read_all)
        return [row for row in found if not kinds or row.kind in kinds]

    def has_search(self, environment: Environment, search: SearchKey) -> bool:
        """Return whether a search is stored as converged."""
        key = environment.key()
        return self._run(lambda connection: schema.has_search(connection, key, search))

    def put_search(self, environment: Environment, search: SearchKey, best_s: float) -> None:
        """Store that a search has converged, and the finite cost in seconds of its best graph."""
        self._run_at_once(lambda connection: schema.write_search(connection, environment, search, best_s, _now()))

    def environments(self) -> dict[str, dict[str, str | int | bool]]:
        """Return the environments by key, as `Environment.as_dict` describes them."""
        found = self._run(lambda connection: connection.execute("SELECT * FROM environment ORDER BY key").fetchall())
        return {key: json.loads(description) for key, description in found}

    def clear(self, environment: str | None = None) -> int:
        """Delete everything, or one environment by its key; return the number of latencies deleted."""
        return self._run_at_once(lambda connection: schema.clear(connection, environment))

    def export(self) -> dict[str, Any]:
        """Return everything as one JSON document, which `merge` reads."""
        latencies = [{**vars(row), "latency": vars(row.latency)} for row in self.rows()]
        return {"format": FORMATS[-1], "environments": self.environments(), "latencies": latencies}

    def merge(self, document: object) -> int:
        """Import a document that `export` gave, replacing entries here; return the number of latencies imported.

        If an environment has a usual pace here, that stays, and the latencies are converted to it. Raises `TasoError`,
        and imports nothing, if the document is not such an export.
        """
        environments, rows = _parse(document)

        def insert(connection: sqlite3.Connection) -> int:
            taken = [row for key in environments for row in _at_pace_here(connection, key, rows)]
            schema.forget_replaced(connection, environments, taken)
            schema.write(connection, environments, taken)
            return len(taken)

        return self._run_at_once(insert)

    def close(self) -> None:
        """Close the file; everything that was put is stored already."""
        self._connection.close()

    def __enter__(self) -> LatencyDatabase:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _run_at_once(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run some work in one transaction; if the file fails, continue in memory."""
        return self._run(lambda connection: _transaction(connection, work))

    def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run some work on the connection; if the file fails, continue in memory."""
        with self._lock:
            try:
                return work(self._connection)
            except sqlite3.DatabaseError as error:
                if self.path is None or isinstance(error, sqlite3.ProgrammingError):
                    raise
                self._connection.close()
                self._continue_in_memory(error)
                return work(self._connection)

    def _continue_in_memory(self, error: Exception) -> None:
        self.problem = f"{self.path or 'the cache'} cannot be used: {error}"
        log.warning("latencies are kept for this run only: %s", self.problem)
        self.path = None
        self._connection = _open(IN_MEMORY)


def default_path() -> Path:
    """Return the path of the user's database: in ``$TASO_PY_CACHE``, or else in ``taso-py`` in the platform's caches.

    Raises:
        OSError: there is no such folder, since the user has no home.
    """
    if folder := os.environ.get("TASO_PY_CACHE"):
        return Path(folder) / "latencies.sqlite"
    try:
        return user_cache_path("taso-py", appauthor=False) / "latencies.sqlite"
    except RuntimeError as error:
        raise FileNotFoundError("the user has no home; set TASO_PY_CACHE to a folder") from error


def _rows(environment: Environment, latencies: Mapping[Key, Latency], kind: LatencyKind) -> list[Row]:
    """Return the rows of latencies that are measured now."""
    key, now = environment.key(), _now()
    return [Row(key, kind, *pair, now, latency) for pair, latency in latencies.items()]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


class _DamagedError(sqlite3.DatabaseError):
    """A file that is not a complete latency database."""


def _open(path: Path) -> sqlite3.Connection:
    """Connect to a database, setting aside a file that is none, and waiting for other processes."""
    if path == IN_MEMORY:
        return _connect(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + BUSY_S
    while True:
        found = _identity(path)
        try:
            return _connect(path)
        except sqlite3.DatabaseError as error:
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK) & 0xFF
            if time.monotonic() >= deadline:
                raise
            if isinstance(error, _DamagedError) or code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
                _set_aside(path, found, error)
            elif code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                time.sleep(0.02)
            else:
                raise


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        _transaction(connection, _adopt)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA foreign_keys = ON")
        (health,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if health != "ok":
            raise _DamagedError(" ".join(health.split()))
    except BaseException:
        connection.close()
        raise
    return connection


def _adopt(connection: sqlite3.Connection) -> None:
    """Make an empty file a latency database, and refuse a file that is neither empty nor ours."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application == version == tables == 0:
        schema.create(connection)
    elif application != schema.APPLICATION_ID:
        raise _DamagedError("it belongs to another program")
    elif version == schema.UNTYPED_VERSION:
        schema.migrate(connection)
    elif version == schema.SUMMED_VERSION:
        schema.forget_refinements(connection)
    elif version < schema.VERSION:
        raise _DamagedError("an older taso-py wrote it, which measured otherwise")
    elif version > schema.VERSION:
        raise sqlite3.DatabaseError("a newer taso-py wrote it; upgrade, or set TASO_PY_CACHE to another folder")


def _at_pace_here(connection: sqlite3.Connection, environment: str, rows: Iterable[Row]) -> list[Row]:
    """Return an environment's imported rows, converted to the usual pace that is stored for it here, if any.

    Rows that come without a pace of their own, and ceilings, stay as they are.
    """
    own = [row for row in rows if row.environment == environment]
    here = pace_among(schema.read(connection, environment, LatencyKind.PACE, KEYS))
    if here is None:
        return own
    paces = {(row.kernel, row.signature): row.latency for row in own if row.kind is LatencyKind.PACE}
    there = pace_among(paces) or here
    return [
        row if row.kind is LatencyKind.CEILING else replace(row, latency=there.convert(row.latency, here))
        for row in own
        if row.kind is not LatencyKind.PACE
    ]


def _transaction(connection: sqlite3.Connection, work: Callable[[sqlite3.Connection], T]) -> T:
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        return work(connection)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _set_aside(path: Path, found: tuple[int, int] | None, error: Exception) -> None:
    """Rename the file that was found, with its journals, unless another process did so already."""
    with contextlib.closing(sqlite3.connect(f"{path}.lock", timeout=BUSY_S, isolation_level=None)) as lock:
        # The lock between processes that every platform has: nobody else renames between the check and the renaming.
        lock.execute("BEGIN EXCLUSIVE")
        if _identity(path) != found:
            return
        names = (path.with_name(f"{path.name}.corrupt-{n}") for n in itertools.count(1))
        aside = next(name for name in names if not name.exists())
        for suffix in ("-journal", "-wal", "-shm", ""):
            with contextlib.suppress(FileNotFoundError):
                os.rename(f"{path}{suffix}", f"{aside}{suffix}")
    log.warning("%s is no usable latency database (%s); it is now %s, and a new one begins", path, error, aside.name)


def _parse(document: object) -> tuple[dict[str, Environment], list[Row]]:
    """Return the environments, by their keys here, and rows of an export; raises `TasoError` if it is not one."""
    try:
        content = cast("dict[str, Any]", document)
        if content["format"] not in FORMATS:
            raise TasoError(f"these latencies are in the format {content['format']!r}; export them as {FORMATS[-1]!r}")
        is_typed = content["format"] == FORMATS[-1]
        described = {key: Environment.from_dict(fields) for key, fields in content["environments"].items()}
        rows: list[Row] = []
        for row in content["latencies"]:
            given = str(row["kernel"]), str(row["signature"])
            named = (LatencyKind(row["kind"]), *given) if is_typed else schema.typed(*given)
            if named is not None:
                where, when = described[row["environment"]].key(), datetime.fromisoformat(row["measured"]).isoformat()
                rows.append(Row(where, *named, measured=when, latency=Latency(**row["latency"])))
        for row in rows:
            f"{row.kernel}{row.signature}".encode()  # SQLite takes no half of a surrogate pair, nor larger numbers
            if row.latency.samples % 1 or max(row.latency.samples, row.latency.high_s) >= 2**63:
                raise ValueError("no counts or seconds")
            if row.kind is LatencyKind.PACE and row.latency.median_s < SHORTEST_S:
                raise ValueError("no pace")
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise TasoError("this is no export of latencies; write one with 'taso-py latencies export'") from error
    return {environment.key(): environment for environment in described.values()}, rows
