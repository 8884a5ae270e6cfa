"""``python -m experiments list|age|page|all|NAME [--quick] [--device cpu|cuda] [--out DIR] [--minutes M] [--again]``.

Invariant: a user's mistake is one line and exit status 2, as on the main command line.
"""

from __future__ import annotations

import argparse
import math
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from tqdm import tqdm

from experiments.age import ages
from experiments.catalogue import EXPERIMENTS
from experiments.harness import Experiment, Row, Settings
from experiments.markdown import write_text
from experiments.page import write_page
from experiments.running import ExperimentRun, conduct, finished_parts
from experiments.table import cell, columns, is_text
from taso_py.arguments import CommandParser
from taso_py.ir.errors import TasoError
from taso_py.latency.environment import resolve_device

RESULTS, TRIED = Path("experiments/results"), Path("build/experiments")
"""Folders of full results and of those of ``--quick``, each with a subfolder per device."""
INCOMPLETE, MISTAKE, INTERRUPTED = 1, 2, 130
"""Exit statuses besides 0."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the requested experiments; return the exit status."""
    parsed = _parser().parse_args(arguments)
    if parsed.name == "list":
        for experiment in EXPERIMENTS.values():
            print(f"{experiment.name:<20} {experiment.question}")
        return 0
    out = parsed.out or (TRIED if parsed.quick else RESULTS) / parsed.device
    settings = Settings(parsed.device, parsed.quick, out, parsed.seed)
    until = None if parsed.minutes is None else time.monotonic() + 60 * parsed.minutes
    try:
        if parsed.name == "age":
            _show_ages([parsed.out] if parsed.out else sorted(path.parent for path in RESULTS.glob("*/results.md")))
            return 0
        if parsed.name == "page":
            _write(out)
            return 0
        resolve_device(parsed.device)
        chosen = [_on(EXPERIMENTS[parsed.name], parsed.device)] if parsed.name != "all" else _all(parsed.device)
        return _run(chosen, settings, again=parsed.again, until=until)
    except TasoError as error:
        print(f"experiments: error: {error}", file=sys.stderr)
        return MISTAKE
    except KeyboardInterrupt:
        print("experiments: interrupted; the same command continues from here", file=sys.stderr)
        return INTERRUPTED


def _parser() -> CommandParser:
    parser = CommandParser(
        prog="python -m experiments", description="Run experiments; write tables, figures and a page of them."
    )
    parser.add_argument("name", choices=("list", "age", "all", "page", *EXPERIMENTS))
    parser.add_argument("--quick", action="store_true", help="fewer models and shorter searches")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--out", type=Path, help=f"(default: {RESULTS}/DEVICE, with --quick {TRIED}/DEVICE)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--minutes",
        type=_minutes,
        help="stop after this time; the same command continues from there; 0 makes tables of the finished parts",
    )
    parser.add_argument("--again", action="store_true", help="also run parts that are finished")
    return parser


def _minutes(text: str) -> float:
    """Parse a time of zero or more minutes."""
    try:
        minutes = float(text)
    except ValueError:
        minutes = math.nan
    if not 0 <= minutes < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of minutes, zero or more")
    return minutes


def _all(device: str) -> Sequence[Experiment]:
    return [experiment for experiment in EXPERIMENTS.values() if device in experiment.devices]


def _on(experiment: Experiment, device: str) -> Experiment:
    """Return an experiment, after a check that it is for such a device."""
    if device not in experiment.devices:
        raise TasoError(f"{experiment.name} is not for {device}; give --device {' or '.join(experiment.devices)}")
    return experiment


def _run(chosen: Sequence[Experiment], settings: Settings, *, again: bool, until: float | None) -> int:
    """Run experiments, one after the other, and write the pages of all results in the folder."""
    outcomes = {e.name: ExperimentRun(e.parts(settings)) if again else finished_parts(e, settings) for e in chosen}
    total = sum(len(outcome.parts) for outcome in outcomes.values())
    try:
        with tqdm(total=total, unit="part", dynamic_ncols=True) as bar:

            def tell(experiment: Experiment, part: str) -> None:
                bar.update(total - sum(len(outcome.missing) for outcome in outcomes.values()) - bar.n)
                bar.set_description(f"{experiment.name}: {part}")

            for experiment, most in _turns(chosen, outcomes, in_turns=until is not None and len(chosen) > 1):
                outcome = outcomes[experiment.name]
                rows, _ = conduct(experiment, settings, outcome=outcome, most=most, until=until, tell=tell)
                if most is None:
                    bar.clear()
                    _show(experiment, rows)
            bar.update(total - bar.n)
    finally:
        _write(settings.out)
    for name, outcome in outcomes.items():
        for part, reason in outcome.failures.items():
            print(f"experiments: {name}: {part} failed: {reason}", file=sys.stderr)
        if outcome.missing:
            print(f"experiments: {name}: {len(outcome.missing)} parts are still to be run", file=sys.stderr)
    return 0 if all(outcome.is_complete for outcome in outcomes.values()) else INCOMPLETE


def _write(folder: Path) -> None:
    """Write the page and the text of all results in a folder, and print where they are."""
    print(write_page(folder, EXPERIMENTS.values()))
    print(write_text(folder, EXPERIMENTS.values()))


def _turns(
    chosen: Sequence[Experiment], outcomes: Mapping[str, ExperimentRun], *, in_turns: bool
) -> Iterator[tuple[Experiment, int | None]]:
    """Yield the experiments in the order in which to run them, each with the most parts to run: all, or in turns.

    In turns, checks come first and whole, then one part of each other experiment that has none yet, and only then the
    rest.
    """
    checks = [experiment for experiment in chosen if in_turns and experiment.is_check]
    others = [experiment for experiment in chosen if experiment not in checks]
    yield from ((check, None) for check in checks)
    if in_turns:
        new = [experiment for experiment in others if outcomes[experiment.name].is_new]
        yield from ((experiment, 1) for experiment in sorted(new, key=lambda experiment: experiment.is_long))
    yield from ((experiment, None) for experiment in others)


def _show_ages(folders: Sequence[Path]) -> None:
    """Print how far the code has moved on since each table was measured."""
    table = Table(title="commits since, to taso_py, the substitutions and the experiment itself", box=None)
    for heading in ("results", "experiment", "date", "state"):
        table.add_column(heading)
    table.add_column("commits since", justify="right")
    for age in ages(folders, EXPERIMENTS.values()):
        commits = "not known here" if age.commits is None else str(age.commits)
        table.add_row(age.folder, age.experiment, age.date, age.state, commits)
    Console().print(table)


def _show(experiment: Experiment, rows: Sequence[Row]) -> None:
    names = columns(rows, experiment.drawn)
    table = Table(title=experiment.question, box=None)
    for name in names:
        table.add_column(name, justify="left" if is_text(rows, name) else "right")
    for row in rows:
        table.add_row(*("\n".join(filter(None, cell(row, name))) for name in names))
    # Tables are wide: a terminal wraps lines, which reads better than columns of one letter.
    Console(width=max(Console().width, 14 * len(names))).print(table)


if __name__ == "__main__":
    # A termination signal is handled like Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    raise SystemExit(main())
