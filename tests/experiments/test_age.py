"""The age of tables: commits that change what they depend on count, others do not."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from experiments import running
from experiments.__main__ import main
from experiments.age import ages
from tests.experiments.examples import experiment
from tests.experiments.test_page import results

EXPERIMENTS = [experiment("a")]


@pytest.fixture
def commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Commits of a repository of its own: two change the package, one the documentation, one the experiment."""
    root = tmp_path / "repository"
    root.mkdir()
    monkeypatch.setattr(running, "ROOT", root)

    def git(*arguments: str) -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
        return subprocess.run(["git", *who, *arguments], cwd=root, capture_output=True, text=True, check=True).stdout

    git("init", "-q")
    made: list[str] = []
    for number, name in enumerate(("taso_py/a.py", "docs/a.md", "taso_py/a.py", "tests/experiments/examples.py")):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(number))
        git("add", ".")
        git("commit", "-q", "-m", name)
        made.append(git("rev-parse", "HEAD").strip())
    return made


@pytest.mark.parametrize(("place", "expected"), [(0, 2), (1, 2), (2, 1), (3, 0)])
def test_commits_that_change_what_a_table_depends_on_count(
    commits: list[str], tmp_path: Path, place: int, expected: int
) -> None:
    (found,) = ages([results(tmp_path, commit=commits[place])], EXPERIMENTS)
    assert (found.folder, found.date, found.state) == (tmp_path.name, "2026-01-02", "complete")
    assert found.commits == expected


def test_the_oldest_part_counts_and_changes_that_were_never_committed_do_not(
    commits: list[str], tmp_path: Path
) -> None:
    (found,) = ages([results(tmp_path, commit=f"{commits[3]}, {commits[0]} with changes")], EXPERIMENTS)
    assert found.commits == 2


@pytest.mark.parametrize("commit", ["unknown", "", "0123456789" * 4])
def test_a_commit_that_is_not_here_is_said_to_be_unknown(commits: list[str], tmp_path: Path, commit: str) -> None:
    (found,) = ages([results(tmp_path, commit=commit)], EXPERIMENTS)
    assert found.commits is None


def test_the_command_shows_every_table_of_a_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "engines.json").write_text('{"date": "2026-01-02", "commit": "unknown", "missing": ["a"]}')
    assert main(["age", "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert all(text in shown for text in ("engines", "2026-01-02", "unfinished", "not known here"))


def test_a_folder_without_results_is_a_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["age", "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("experiments: error: there are no results")
