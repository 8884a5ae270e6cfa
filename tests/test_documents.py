"""Pages that messages point to are there, in a clone and in a wheel."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from taso_py import documents

ROOT = Path(__file__).parent.parent


def test_a_page_is_found_in_a_clone_and_in_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Path(documents.page("limits.md")) == ROOT / "docs" / "limits.md"
    (tmp_path / "limits.md").write_text("# Limits")
    monkeypatch.setattr(documents, "HOMES", (tmp_path, ROOT / "docs"))
    assert Path(documents.page("limits.md")) == tmp_path / "limits.md"
    assert Path(documents.page("tutorial.md")) == ROOT / "docs" / "tutorial.md"


def test_every_page_is_in_the_wheel() -> None:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    pages = {f"docs/{path.name}": f"taso_py/docs/{path.name}" for path in (ROOT / "docs").glob("*.md")}
    assert wheel["force-include"] == pages
