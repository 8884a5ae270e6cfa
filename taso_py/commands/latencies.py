"""``taso-py latencies``: list, move or delete measured latencies."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from taso_py.commands.common import command
from taso_py.ir.errors import TasoError

IMPORTS = """Imported latencies replace those that are here. If this machine has a reference
speed for the same processor, imported latencies are scaled to it; those that come
without a reference speed are imported unchanged."""


def add(commands: Any) -> None:
    """Add the subcommand to the parser."""
    summary = "List, move or delete measured latencies."
    parser = command(commands, "latencies", _latencies, summary, epilog=IMPORTS)
    parser.add_argument("action", choices=("list", "devices", "clear", "export", "import"))
    parser.add_argument(
        "file", metavar="FILE", type=Path, nargs="?", help="for export and import (default: stdout, stdin)"
    )


def _latencies(parsed: argparse.Namespace) -> int:
    from taso_py.latency.database import LatencyDatabase
    from taso_py.latency.schema import LatencyKind

    if parsed.file is not None and parsed.action not in ("export", "import"):
        raise TasoError(f"latencies {parsed.action} takes no FILE; leave {parsed.file} out")
    with LatencyDatabase() as database:
        if database.path is None:
            raise TasoError("nothing was done; set TASO_PY_CACHE to a folder whose database can be used")
        if parsed.action == "list":
            rows = database.rows(LatencyKind.CALL, LatencyKind.INTERLEAVED)
            for row in rows:
                again = "  (interleaved)" if row.kind is LatencyKind.INTERLEAVED else ""
                print(f"{row.latency.median_s * 1e6:12.2f} us  {row.kernel}  {row.signature}{again}")
            print(f"{len(rows)} latencies in {database.path}", file=sys.stderr)
        elif parsed.action == "devices":
            counts = Counter(row.environment for row in database.rows())
            for key, described in database.environments().items():
                print(f"{key}  {counts[key]:6} latencies  {_summary(described)}")
        elif parsed.action == "clear":
            print(f"{database.clear()} latencies deleted")
        elif parsed.action == "export":
            text = json.dumps(database.export(), indent=1) + "\n"
            _write_text(parsed.file, text)
        else:
            print(f"{database.merge(_read_json(parsed.file))} latencies added")
    return 0


def _summary(described: Mapping[str, object]) -> str:
    """Return an environment in one line."""
    facts = (
        ("device_name", "{}"),
        ("launched_by", "launched by {}"),
        ("torch_version", "torch {}"),
        ("threads", "{} threads"),
        ("settings", "{}"),
    )
    return ", ".join(text.format(described[name]) for name, text in facts if described.get(name))


def _write_text(path: Path | None, text: str) -> None:
    if path is None:
        sys.stdout.write(text)
        return
    try:
        path.write_text(text)
    except OSError as error:
        raise TasoError(f"cannot write {path}: {error.strerror}") from error


def _read_json(path: Path | None) -> Any:
    try:
        return json.loads(path.read_text() if path else sys.stdin.read())
    except OSError as error:
        raise TasoError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise TasoError(f"{path or 'standard input'} is not JSON: {error}") from error
