"""The page of all results in a folder: every table and figure, its question, how to read it, and its circumstances.

It is made of the files that experiments write, so it can be made again at any time, also of a folder from elsewhere.

Invariant: missing and failed parts are named on the page; they never keep the rest from being shown.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import ChoiceLoader, FileSystemLoader
from markupsafe import Markup, escape

from experiments.harness import Experiment, Row
from experiments.table import cell, columns, is_text, read_csv
from taso_py.ir.errors import TasoError
from taso_py.report.page import templates

PAGE = "index.html"
LONG = 30
"""Most rows of a table that is not folded."""


class PageError(TasoError):
    """A folder without results to make a page of."""


@dataclass(frozen=True)
class Column:
    """A column of a table as it is shown."""

    heading: str
    is_text: bool
    cells: tuple[tuple[str, str], ...]
    """Texts, each with its interval, which may be empty."""


@dataclass(frozen=True)
class ResultSection:
    """An experiment with its results in a folder."""

    experiment: Experiment
    facts: Mapping[str, Any]
    """Content of ``NAME.json``; empty if it was not run."""
    rows: Sequence[Row]
    figure: str
    """A ``data:`` address; empty if there is none."""
    problem: str = ""
    """Reason why its files cannot be read; empty if they can."""

    @property
    def failures(self) -> Mapping[str, str]:
        """Reasons of failed parts, by part."""
        return self.facts.get("failures", {})

    @property
    def missing(self) -> Sequence[str]:
        """Parts that are still to be run."""
        return self.facts.get("missing", ())

    @property
    def commits(self) -> Sequence[str]:
        """Commits that its parts were measured by, each with a remark if something had been changed besides."""
        return list(filter(None, self.facts.get("commit", "").split(", ")))

    @property
    def circumstances(self) -> list[str]:
        """Date, commit and effort of the run."""
        facts = self.facts
        return [
            *([facts["date"]] if "date" in facts else []),
            *([f"commit {facts['commit']}"] if "commit" in facts else []),
            *self.effort,
        ]

    @property
    def effort(self) -> list[str]:
        """Effort of the run: whether it was quick, its seed, and how long it took."""
        facts = self.facts
        return [
            *(["quick"] if facts.get("quick") else []),
            *([f"seed {facts['seed']}"] if "seed" in facts else []),
            *([f"{facts['wall_s']:.0f} s"] if facts.get("wall_s") else []),
        ]

    @property
    def reading(self) -> Markup:
        """How to read it, as a sentence with the names of columns set as code."""
        text = self.experiment.reading
        return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text[:1].upper() + text[1:] + "."))))

    @property
    def columns(self) -> list[Column]:
        """Columns of the table."""
        return [
            Column(name.replace("_", " "), is_text(self.rows, name), tuple(cell(row, name) for row in self.rows))
            for name in columns(self.rows, self.experiment.drawn)
        ]

    @property
    def is_folded(self) -> bool:
        """True if the table is so long that it is folded."""
        return len(self.rows) > LONG

    @property
    def state(self) -> str:
        """State of the results in a word or two."""
        if not self.facts:
            return "unreadable" if self.problem else "not run"
        if self.problem or self.failures:
            return "with failures"
        return "unfinished" if self.missing else "complete"


def write_page(folder: Path, experiments: Iterable[Experiment]) -> Path:
    """Make the page of a folder; return its path.

    Raises:
        PageError: there are no results in the folder.
    """
    path = folder / PAGE
    page = render(folder, experiments)
    path.write_text(page, encoding="utf-8")
    return path


def render(folder: Path, experiments: Iterable[Experiment]) -> str:
    """Return the page of a folder.

    Raises:
        PageError: there are no results in it.
    """
    shown, absent = read_sections(folder, experiments)
    environments = [section.facts["environment"] for section in shown if "environment" in section.facts]
    house = templates()
    own = FileSystemLoader(Path(__file__).parent)
    loaders = [own, house.loader] if house.loader is not None else [own]
    return (
        house.overlay(loader=ChoiceLoader(loaders))
        .get_template("page.html")
        .render(
            sections=shown,
            absent=absent,
            environment=max(environments, key=environments.count, default={}),
            complete=sum(section.state == "complete" for section in shown),
            failures=sum(len(section.failures) for section in shown),
            kind=_kind(shown),
            wall_s=sum(section.facts.get("wall_s", 0.0) for section in shown),
        )
    )


def read_sections(folder: Path, experiments: Iterable[Experiment]) -> tuple[list[ResultSection], list[str]]:
    """Return the experiments with results in a folder, and the names of the others.

    Raises:
        PageError: there are no results in the folder.
    """
    sections = [_section(folder, experiment) for experiment in experiments]
    shown = [section for section in sections if section.facts or section.problem]
    if not shown:
        raise PageError(f"there are no results in {folder}; run an experiment first")
    return shown, [section.experiment.name for section in sections if section not in shown]


def _section(folder: Path, experiment: Experiment) -> ResultSection:
    base = folder / experiment.name
    facts: Mapping[str, Any] = {}
    rows: Sequence[Row] = []
    figure = problem = ""
    try:
        if base.with_suffix(".json").exists():
            facts = json.loads(base.with_suffix(".json").read_text(encoding="utf-8"))
        if base.with_suffix(".csv").exists():
            rows = read_csv(base.with_suffix(".csv"))
        if base.with_suffix(".png").exists():
            figure = "data:image/png;base64," + base64.b64encode(base.with_suffix(".png").read_bytes()).decode()
    except (OSError, ValueError) as error:
        problem = f"its files cannot be read: {error}"
    return ResultSection(experiment, facts=facts, rows=rows, figure=figure, problem=problem)


def _kind(sections: Sequence[ResultSection]) -> str:
    kinds = {bool(section.facts.get("quick")) for section in sections}
    return "mixed" if len(kinds) > 1 else "quick" if True in kinds else "full"
