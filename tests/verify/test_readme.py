"""The prover's README says how large the trusted part is; this keeps it true."""

from __future__ import annotations

import re
from pathlib import Path

VERIFY = Path(__file__).parent.parent.parent / "verify"
FILE = r"`((?:audit/)?\w+\.py)`"
ROWS = re.findall(r"^\| (`.*`) \| ([\d,]+) \|", (VERIFY / "README.md").read_text(encoding="utf-8"), re.MULTILINE)


def lines(name: str) -> int:
    return len((VERIFY / name).read_text(encoding="utf-8").splitlines())


def test_the_table_names_every_file() -> None:
    named = [name for files, _ in ROWS for name in re.findall(FILE, files)]
    there = [path.relative_to(VERIFY).as_posix() for path in VERIFY.rglob("*.py") if path.name != "__init__.py"]
    assert sorted(named) == sorted(there)


def test_the_sizes_are_true() -> None:
    for files, stated in ROWS:
        counted = sum(map(lines, re.findall(FILE, files)))
        assert abs(counted - int(stated.replace(",", ""))) <= 10, (files, counted)
