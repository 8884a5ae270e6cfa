"""Verdicts on a collection of rules, file by file: ``python -m verify.audit.survey tests/sound tests/unsound``.

Each file is a class of statements. Rules are proved one after the other in this process, so that times are of one core;
with ``--witness`` those that are not proved are given to PyTorch. Exit status 0 if in every file at least the share
``--least`` of the rules is proved.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import process_time

from rich.console import Console
from rich.table import Table

from taso_py.arguments import CommandParser
from taso_py.ir.errors import TasoError
from taso_py.rules.database import SUFFIX, DatabaseError
from taso_py.rules.substitution import Substitution
from taso_py.rules.text import read_rules
from taso_py.rules.verdict import Outcome, Verdict
from verify import check, prove


@dataclass(frozen=True)
class Result:
    """One rule's verdict."""

    rule: Substitution
    verdict: Verdict
    seconds: float
    """Processor time of the proof, or of the failure to find one."""


@dataclass(frozen=True)
class Class:
    """The rules of one file."""

    name: str
    results: tuple[Result, ...]

    def count(self, outcome: Outcome) -> int:
        """Return the number of rules with this verdict."""
        return sum(result.verdict.outcome is outcome for result in self.results)

    @property
    def share(self) -> float:
        """Share of proved rules, from 0 to 1."""
        return self.count(Outcome.PROVED) / len(self.results) if self.results else 1.0


def survey(path: Path, asks_witness: bool = False) -> Class:
    """Prove every rule of a file.

    Raises:
        TasoError: the file cannot be read.
    """
    try:
        rules = read_rules(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DatabaseError(f"cannot read {path}: {error.strerror}") from error
    return survey_rules(path.name.removesuffix(SUFFIX), rules, asks_witness)


def survey_rules(name: str, rules: Iterable[Substitution], asks_witness: bool = False) -> Class:
    """Prove rules one after the other; those that are not proved are given to PyTorch if ``asks_witness``."""
    return Class(name, tuple(_result(rule, asks_witness) for rule in rules))


def _result(rule: Substitution, asks_witness: bool) -> Result:
    start = process_time()
    verdict = prove(rule)
    seconds = process_time() - start
    if asks_witness and verdict.outcome is not Outcome.PROVED:
        verdict = check(rule)
    return Result(rule, verdict, seconds)


def table(classes: Sequence[Class]) -> Table:
    """Return a table of counts and times by class, and in total."""
    result = Table(box=None)
    for column in ("class", "rules", "proved", "refuted", "unknown", "median ms", "max ms", "total s"):
        result.add_column(column, justify="left" if column == "class" else "right")
    everything = Class("all", tuple(found for class_ in classes for found in class_.results))
    for class_ in (*classes, everything):
        counts = (class_.count(outcome) for outcome in (Outcome.PROVED, Outcome.REFUTED, Outcome.UNKNOWN))
        seconds = [found.seconds for found in class_.results] or [0.0]
        times = (f"{1e3 * median(seconds):.1f}", f"{1e3 * max(seconds):.1f}", f"{sum(seconds):.2f}")
        result.add_row(class_.name, str(len(class_.results)), *map(str, counts), *times)
    return result


def _files(paths: Iterable[Path]) -> list[Path]:
    found = [file for path in paths for file in (sorted(path.glob(f"*{SUFFIX}")) if path.is_dir() else [path])]
    if not found:
        raise DatabaseError(f"there are no {SUFFIX} files")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the exit status."""
    parser = CommandParser(prog="python -m verify.audit.survey", description="Prove collections of rules.")
    parser.add_argument("paths", metavar="PATH", type=Path, nargs="+", help="rule files, or folders of them")
    parser.add_argument("--witness", action="store_true", help="try what is not proved through PyTorch")
    parser.add_argument(
        "--least", metavar="SHARE", type=float, default=0.0, help="proved part of each file (%(default)s)"
    )
    parsed = parser.parse_args(arguments)
    try:
        classes = [survey(path, parsed.witness) for path in _files(parsed.paths)]
    except TasoError as error:
        sys.stderr.write(f"verify.audit.survey: error: {error}\n")
        return 2
    console = Console()
    console.print(table(classes))
    for result in (result for class_ in classes for result in class_.results):
        if result.verdict.outcome is Outcome.UNKNOWN:
            console.print(f"{result.rule.id}: {result.verdict.reason}", markup=False, highlight=False)
    return 0 if all(class_.share >= parsed.least for class_ in classes) else 1


if __name__ == "__main__":
    sys.exit(main())
