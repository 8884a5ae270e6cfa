"""The latency database: what it remembers, and what it survives."""

import dataclasses
import json
import logging
import multiprocessing
import sqlite3
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from taso_py.ir.errors import TasoError
from taso_py.latency.clock import Latency
from taso_py.latency.database import LatencyDatabase, default_path
from taso_py.latency.environment import Environment
from taso_py.latency.schema import (
    APPLICATION_ID,
    SUMMED_VERSION,
    UNTYPED_VERSION,
    VERSION,
    LatencyKind,
    SearchKey,
)

ENVIRONMENT = Environment("cpu", "a processor", "AVX2", "", "2.13.0", 2, "ieee", "ieee", False, False)
OTHER = dataclasses.replace(ENVIRONMENT, threads=1)
CONV = ("conv2d(stride=[1,1])", "f32[1,3,8,8] f32[4,3,3,3]")
RELU = ("relu", "f32[1,4,6,6]")
LATENCY = Latency(2e-3, 1.5e-3, 2.5e-3, 40, 3)
UNTYPED = [
    CONV,
    (CONV[0], f"{CONV[1]}, in turns"),
    ("pace:call", "f32[64]"),
    ("ceiling:copy", "8 bytes"),
    ("network", "in a run"),
    ("best by greedy 0123 of 9 kernels", "a digest"),
]
DATED = {"measured": "2026-11-01T00:00:00+00:00", "latency": dataclasses.asdict(LATENCY)}
FASTER = Latency(1e-3, 1e-3, 1e-3, 10, 0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "latencies.sqlite"


@pytest.fixture
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Nothing is logged."""
    yield
    assert caplog.messages == []


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged: one line each, as warnings."""
    assert all(record.levelno == logging.WARNING and "\n" not in record.getMessage() for record in caplog.records)
    return caplog.messages


def is_usable(path: Path) -> bool:
    with LatencyDatabase(path) as database:
        database.put(ENVIRONMENT, *RELU, FASTER)
    with LatencyDatabase(path) as database:
        return database.path == path and database.get(ENVIRONMENT, *RELU) == FASTER


@pytest.mark.usefixtures("quiet")
def test_what_was_put_is_there_the_next_time(path: Path) -> None:
    with LatencyDatabase(path) as database:
        assert database.get(ENVIRONMENT, *CONV) is None
        database.put(ENVIRONMENT, *CONV, LATENCY)
    with LatencyDatabase(path) as database:
        assert database.path == path
        assert database.get(ENVIRONMENT, *CONV) == LATENCY
        assert database.get_many(ENVIRONMENT, [CONV, RELU]) == {CONV: LATENCY}
        assert database.get(OTHER, *CONV) is None


def test_a_later_latency_replaces_the_earlier() -> None:
    with LatencyDatabase(":memory:") as database:
        database.put(ENVIRONMENT, *CONV, LATENCY)
        database.put(ENVIRONMENT, *CONV, FASTER)
        assert [row.latency for row in database.rows()] == [FASTER]


def test_rows_are_sorted_dated_and_point_to_their_environment() -> None:
    with LatencyDatabase(":memory:") as database:
        database.put(ENVIRONMENT, *RELU, FASTER)
        database.put(ENVIRONMENT, *CONV, LATENCY)
        rows = database.rows()
        assert [(row.kernel, row.signature) for row in rows] == [CONV, RELU]
        assert all(row.measured.endswith("+00:00") for row in rows)
        assert database.environments()[rows[0].environment] == ENVIRONMENT.as_dict()


def test_clear_forgets_one_environment_or_all() -> None:
    with LatencyDatabase(":memory:") as database:
        for environment in (ENVIRONMENT, OTHER):
            database.put(environment, *CONV, LATENCY)
            database.put(environment, *RELU, LATENCY)
        assert database.clear(OTHER.key()) == 2
        assert list(database.environments()) == [ENVIRONMENT.key()]
        assert database.clear() == 2
        assert database.rows() == []
        assert database.environments() == {}


def test_an_export_is_json_and_reads_back() -> None:
    with LatencyDatabase(":memory:") as database, LatencyDatabase(":memory:") as elsewhere:
        database.put(ENVIRONMENT, *CONV, LATENCY)
        database.put(OTHER, *RELU, FASTER)
        document = json.loads(json.dumps(database.export()))
        assert elsewhere.merge(document) == 2
        assert elsewhere.rows() == database.rows()
        assert elsewhere.environments() == database.environments()


def test_an_import_ends_what_was_found_out_by_the_latencies_that_it_replaces() -> None:
    key = SearchKey("graph", "setup", "kernels")
    with LatencyDatabase(":memory:") as database, LatencyDatabase(":memory:") as elsewhere:
        for environment in (ENVIRONMENT, OTHER):
            for call in (CONV, RELU):
                database.put(environment, *call, LATENCY)
                database.put(environment, *call, LATENCY, LatencyKind.INTERLEAVED)
            database.put_search(environment, key, 1.0)
        elsewhere.put(ENVIRONMENT, *CONV, FASTER)
        assert database.merge(elsewhere.export()) == 1
        kept = [(row.environment, row.kernel) for row in database.rows(LatencyKind.INTERLEAVED)]
        assert sorted(kept) == sorted(
            [(ENVIRONMENT.key(), RELU[0]), *((OTHER.key(), call[0]) for call in (CONV, RELU))]
        )
        assert not database.has_search(ENVIRONMENT, key)
        assert database.has_search(OTHER, key)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["format"], "taso-py latencies 99"),
        (["environments", ENVIRONMENT.key(), "threads"], "two"),
        (["latencies", 0, "latency", "low_s"], 9.0),
        (["latencies", 0, "latency", "median_s"], "fast"),
        (["latencies", 0, "measured"], "yesterday"),
        (["latencies", 0, "kernel"], "\ud800"),
        (["latencies", 0, "kind"], "guess"),
        (["latencies", 0, "latency", "samples"], 10**30),
        (["latencies", 0, "latency", "samples"], 5.5),
        (["latencies", 0, "latency", "high_s"], 2**64),
        (["latencies", 0, "environment"], "unknown"),
        (["latencies"], None),
    ],
)
def test_what_is_no_export_is_refused_whole(path: list[str | int], value: object) -> None:
    with LatencyDatabase(":memory:") as database, LatencyDatabase(":memory:") as elsewhere:
        database.put(ENVIRONMENT, *CONV, LATENCY)
        document = json.loads(json.dumps(database.export()))
        inner = document
        for step in path[:-1]:
            inner = inner[step]
        inner[path[-1]] = value
        with pytest.raises(TasoError):
            elsewhere.merge(document)
        assert elsewhere.rows() == []


@pytest.mark.parametrize("document", [None, [], "text", {}, {"format": "taso-py latencies 1"}])
def test_other_documents_are_refused(document: object) -> None:
    with LatencyDatabase(":memory:") as database, pytest.raises(TasoError, match="no export of latencies"):
        database.merge(document)


def test_a_corrupt_file_is_set_aside(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path.parent.mkdir()
    for n in (1, 2):
        path.write_bytes(b"no database at all" * 100)
        assert is_usable(path)
        assert path.with_name(f"latencies.sqlite.corrupt-{n}").read_bytes().startswith(b"no database")
    assert len(warnings(caplog)) == 2


def test_a_database_with_broken_pages_is_set_aside(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with LatencyDatabase(path) as database:
        for number in range(500):
            database.put(ENVIRONMENT, "relu", str(number), LATENCY)
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 8192)
    assert is_usable(path)
    assert len(warnings(caplog)) == 1
    assert path.with_name("latencies.sqlite.corrupt-1").exists()


@pytest.mark.parametrize("statement", ["CREATE TABLE songs (title TEXT)", f"PRAGMA user_version = {VERSION}"])
def test_the_database_of_another_program_is_set_aside_unharmed(
    statement: str, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path.parent.mkdir()
    connection = sqlite3.connect(path)
    connection.execute(statement)
    connection.close()
    content = path.read_bytes()
    assert is_usable(path)
    assert path.with_name("latencies.sqlite.corrupt-1").read_bytes() == content
    (message,) = warnings(caplog)
    assert "belongs to another program" in message


def write_as(version: int, path: Path) -> None:
    """Writes a database with one latency as another version would."""
    with LatencyDatabase(path) as database:
        database.put(ENVIRONMENT, *CONV, LATENCY)
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {version}")
    connection.close()


def test_the_database_of_an_older_version_is_set_aside(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_as(UNTYPED_VERSION - 1, path)
    with LatencyDatabase(path) as database:
        assert (database.path, database.rows()) == (path, [])
    (message,) = warnings(caplog)
    assert "an older taso-py wrote it" in message
    assert path.with_name("latencies.sqlite.corrupt-1").exists()


def test_latencies_that_had_no_kinds_get_them(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A database as version 4 wrote it: kinds were prefixes and suffixes, and converged searches were latencies."""
    path.parent.mkdir()
    connection = sqlite3.connect(path)
    connection.executescript(
        f"""PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {UNTYPED_VERSION};
        CREATE TABLE environment (key TEXT PRIMARY KEY, description TEXT NOT NULL);
        CREATE TABLE latency (environment TEXT NOT NULL REFERENCES environment (key), kernel TEXT NOT NULL,
            signature TEXT NOT NULL, median_s REAL NOT NULL, low_s REAL NOT NULL, high_s REAL NOT NULL,
            samples INTEGER NOT NULL, outliers INTEGER NOT NULL, measured TEXT NOT NULL,
            PRIMARY KEY (environment, kernel, signature)) WITHOUT ROWID;"""
    )
    connection.execute("INSERT INTO environment VALUES (?, ?)", (ENVIRONMENT.key(), json.dumps(ENVIRONMENT.as_dict())))
    connection.executemany(
        "INSERT INTO latency VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [(ENVIRONMENT.key(), *name, *dataclasses.astuple(LATENCY), "2026-11-01T00:00:00+00:00") for name in UNTYPED],
    )
    connection.commit()
    connection.close()
    for _ in range(2):
        with LatencyDatabase(path) as database:
            rows = database.rows()
            assert {(row.kind, row.kernel, row.signature) for row in rows} == {
                (LatencyKind.CALL, *CONV),
                (LatencyKind.PACE, "call", "f32[64]"),
                (LatencyKind.CEILING, "copy", "8 bytes"),
                (LatencyKind.NETWORK, "network", "in a run"),
            }
            assert {row.latency for row in rows} == {LATENCY}
            assert database.get(ENVIRONMENT, *CONV) == LATENCY
            assert database.environments() == {ENVIRONMENT.key(): ENVIRONMENT.as_dict()}
    assert warnings(caplog) == []


def test_interleaved_latencies_of_an_older_version_are_forgotten(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    search = SearchKey("a graph", "greedy", "onednn.conv")
    with LatencyDatabase(path) as database:
        database.put_together(ENVIRONMENT, {CONV: LATENCY, RELU: FASTER}, LatencyKind.INTERLEAVED)
        database.put_search(ENVIRONMENT, search, 1.0)
    for version, kept in ((VERSION, True), (SUMMED_VERSION, False)):
        write_as(version, path)
        with LatencyDatabase(path) as database:
            assert len(database.rows(LatencyKind.INTERLEAVED)) == 2 * kept
            assert database.has_search(ENVIRONMENT, search) == kept
            assert database.get(ENVIRONMENT, *CONV) == LATENCY
    assert warnings(caplog) == []


def test_an_export_without_kinds_is_read() -> None:
    latencies = [
        {"environment": ENVIRONMENT.key(), "kernel": kernel, "signature": signature} | DATED
        for kernel, signature in UNTYPED
    ]
    described = {ENVIRONMENT.key(): ENVIRONMENT.as_dict()}
    with LatencyDatabase(":memory:") as database:
        document = {"format": "taso-py latencies 1", "environments": described, "latencies": latencies}
        assert database.merge(document) == len(UNTYPED) - 1
        assert sorted(row.kind for row in database.rows()) == sorted(LatencyKind)


def test_a_search_is_remembered_by_its_kernels_and_is_no_latency(path: Path) -> None:
    search = SearchKey("a graph", "greedy", "onednn.conv onednn.linear")
    with LatencyDatabase(path) as database:
        database.put_search(ENVIRONMENT, search, 1.0)
        assert database.rows() == []
    with LatencyDatabase(path) as database:
        assert database.has_search(ENVIRONMENT, search)
        assert not database.has_search(OTHER, search)
        assert not database.has_search(ENVIRONMENT, dataclasses.replace(search, kernels="onednn.conv mkl.linear"))
        database.clear()
        assert not database.has_search(ENVIRONMENT, search)


def test_the_database_of_a_newer_version_is_left_alone(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_as(VERSION + 1, path)
    with LatencyDatabase(path) as database:
        assert database.path is None
        database.put(ENVIRONMENT, *RELU, FASTER)
        assert [row.kernel for row in database.rows()] == ["relu"]
    (message,) = warnings(caplog)
    assert "newer" in message
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT kernel FROM latency").fetchall() == [(CONV[0],)]
    connection.close()


def test_an_unusable_folder_means_memory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("in the way")
    with LatencyDatabase(tmp_path / "file" / "latencies.sqlite") as database:
        database.put(ENVIRONMENT, *CONV, LATENCY)
        assert database.get(ENVIRONMENT, *CONV) == LATENCY
        assert database.path is None
    assert len(warnings(caplog)) == 1


def test_a_folder_in_place_of_the_file_means_memory(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path.mkdir(parents=True)
    with LatencyDatabase(path) as database:
        database.put(ENVIRONMENT, *CONV, LATENCY)
        assert database.path is None
    assert len(warnings(caplog)) == 1


def test_a_file_that_fails_later_means_memory_from_then_on(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with LatencyDatabase(path) as database:
        connection = sqlite3.connect(path)
        connection.execute("DROP TABLE latency")
        connection.close()
        database.put(ENVIRONMENT, *CONV, LATENCY)
        assert database.get(ENVIRONMENT, *CONV) == LATENCY
        assert database.path is None
    assert len(warnings(caplog)) == 1


def test_using_a_closed_database_is_not_hidden(path: Path) -> None:
    with LatencyDatabase(path) as database:
        pass
    with pytest.raises(sqlite3.ProgrammingError):
        database.rows()


class Telling(logging.Handler):
    """Sends what is logged to another process."""

    def __init__(self, to: Connection) -> None:
        super().__init__()
        self.to = to

    def emit(self, record: logging.LogRecord) -> None:
        self.to.send(record.getMessage())


def write(path: Path, name: str, count: int, to: Connection) -> None:
    """In a process of its own: puts that many latencies, and tells the number of each once it is there."""
    logging.getLogger().handlers[:] = [Telling(to)]
    with LatencyDatabase(path) as database:
        for number in range(count):
            database.put(ENVIRONMENT, name, str(number), Latency(1.0, 1.0, 1.0, 1, 0))
            to.send(number)


@contextmanager
def writer(path: Path, name: str, count: int) -> Generator[tuple[BaseProcess, Connection]]:
    """Another process that writes, and what it tells; forked, so that it has not to import PyTorch anew."""
    heard, to = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=write, args=(path, name, count, to))
    process.start()
    to.close()
    with heard:
        yield process, heard
        process.join(60)


def told(heard: Connection) -> Iterator[int | str]:
    """What a process tells until it ends."""
    with suppress(EOFError, OSError):
        while True:
            yield heard.recv()


forks = pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="needs processes that fork")


@forks
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("damaged", [False, True])
def test_processes_that_write_at_once_lose_nothing(damaged: bool, path: Path) -> None:
    path.parent.mkdir()
    if damaged:
        path.write_bytes(b"no database at all" * 100)
    with writer(path, "a", 100) as (one, by_one), writer(path, "b", 100) as (other, by_other):
        logged = [what for heard in (by_one, by_other) for what in told(heard) if isinstance(what, str)]
    assert (one.exitcode, other.exitcode) == (0, 0)
    assert len(logged) == damaged
    with LatencyDatabase(path) as database:
        found = {(row.kernel, int(row.signature)) for row in database.rows()}
    assert found == {(name, number) for name in ("a", "b") for number in range(100)}
    assert len(list(path.parent.glob("*.corrupt-*"))) == damaged


@forks
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_killed_writer_leaves_a_usable_database(path: Path) -> None:
    with writer(path, "relu", sys.maxsize) as (process, heard):
        while heard.recv() < 20:
            pass
        process.kill()
        said = 21 + len(list(told(heard)))
    with LatencyDatabase(path) as database:
        numbers = sorted(int(row.signature) for row in database.rows())
    assert numbers == list(range(len(numbers)))
    assert len(numbers) >= said
    assert is_usable(path)
    assert list(path.parent.glob("*.corrupt-*")) == []


def test_the_default_place_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TASO_PY_CACHE", str(tmp_path / "mine"))
    with LatencyDatabase() as database:
        assert database.path == default_path() == tmp_path / "mine" / "latencies.sqlite"
    monkeypatch.delenv("TASO_PY_CACHE")
    if sys.platform != "linux":
        return
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert default_path() == tmp_path / "xdg" / "taso-py" / "latencies.sqlite"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert default_path() == tmp_path / "home" / ".cache" / "taso-py" / "latencies.sqlite"


def test_without_a_home_it_is_in_memory(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("TASO_PY_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    with pytest.raises(OSError, match="no home; set TASO_PY_CACHE"):
        default_path()
    with LatencyDatabase() as database:
        assert database.path is None
    assert len(warnings(caplog)) == 1


def test_what_belongs_together_is_kept_as_it_was_put_first(path: Path) -> None:
    with LatencyDatabase(path) as one, LatencyDatabase(path) as other:
        assert one.put_first(ENVIRONMENT, {CONV: LATENCY, RELU: LATENCY}, LatencyKind.CALL) == {
            CONV: LATENCY,
            RELU: LATENCY,
        }
        assert other.put_first(ENVIRONMENT, {CONV: FASTER, RELU: FASTER}, LatencyKind.CALL) == {
            CONV: LATENCY,
            RELU: LATENCY,
        }
        # A part of it that another version left, or an import, belongs to nothing.
        other.put(OTHER, *CONV, LATENCY)
        assert other.put_first(OTHER, {CONV: FASTER, RELU: FASTER}, LatencyKind.CALL) == {CONV: FASTER, RELU: FASTER}
        assert one.get_many(OTHER, [CONV, RELU]) == {CONV: FASTER, RELU: FASTER}
