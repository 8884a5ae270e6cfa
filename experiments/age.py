"""Age of results: how many commits since each table was measured changed what it depends on.

A page cannot say so itself, since it is committed too and would be out of date at the next commit.

Invariant: nothing is measured or written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from experiments.harness import Experiment
from experiments.page import ResultSection, read_sections
from experiments.running import git

DECIDES = ("taso_py", "substitutions")
"""Files that every experiment depends on, beside its own module."""


@dataclass(frozen=True)
class Age:
    """How far the code has moved on since one table was measured."""

    folder: str
    experiment: str
    date: str
    state: str
    """Whether the table is complete, in a word or two."""
    commits: int | None
    """Commits since the oldest part that change files it depends on; None if that commit is not known here."""


def ages(folders: Iterable[Path], experiments: Iterable[Experiment]) -> Iterator[Age]:
    """Yield the age of every table in folders of results, folder by folder, the oldest table first.

    Raises:
        PageError: a folder has no results.
    """
    known = list(experiments)
    for folder in folders:
        sections, _ = read_sections(folder, known)
        found = [_age(folder, section) for section in sections]
        yield from sorted(found, key=lambda age: (age.commits is not None, -(age.commits or 0)))


def _age(folder: Path, section: ResultSection) -> Age:
    module = section.experiment.measure.__module__.replace(".", "/") + ".py"
    counts = [_commits_since(commit.split()[0], (*DECIDES, module)) for commit in section.commits]
    return Age(
        folder=folder.name,
        experiment=section.experiment.name,
        date=section.facts.get("date", ""),
        state=section.state,
        commits=None if None in counts or not counts else max(count for count in counts if count is not None),
    )


def _commits_since(commit: str, paths: Iterable[str]) -> int | None:
    """Return the number of commits after one that change files, by their paths in the repository."""
    try:
        found = git("rev-list", "--count", f"{commit}..HEAD", "--", *paths)
    except OSError:
        return None
    return int(found.stdout) if found.returncode == 0 else None
