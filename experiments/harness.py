"""What every experiment shares: its settings, its table, and the files it writes.

Invariant: each result is written with the versions, device, threads, seed and commit that it was obtained with.
"""

from __future__ import annotations

import csv
import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from taso_py.cost.environment import Environment

mpl.use("agg")

STYLES = tuple((line, mark) for line in ("-", "--", ":") for mark in ("o", "s", "^"))
"""How lines are told apart without colours."""


@dataclass(frozen=True)
class Settings:
    """How an experiment is run."""

    device: str
    quick: bool
    out: Path
    seed: int


@dataclass(frozen=True)
class Experiment:
    """A question and how it is answered."""

    name: str
    question: str
    run: Callable[[Settings], Sequence[Mapping[str, Any]]]
    """Gives the rows of the table."""
    plot: Callable[[Figure, Sequence[Mapping[str, Any]]], None]
    """Draws them; readable in black and white."""


def conduct(experiment: Experiment, settings: Settings) -> Sequence[Mapping[str, Any]]:
    """Runs an experiment and writes ``NAME.csv``, ``NAME.png`` and ``NAME.json``; returns the rows."""
    settings.out.mkdir(parents=True, exist_ok=True)
    rows = experiment.run(settings)
    base = settings.out / experiment.name
    with base.with_suffix(".csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(dict.fromkeys(name for row in rows for name in row)))
        writer.writeheader()
        writer.writerows(rows)
    figure = Figure(figsize=(9, 0.4 * len(rows) + 1.8), layout="constrained")
    experiment.plot(figure, rows)
    figure.savefig(base.with_suffix(".png"), dpi=150)
    base.with_suffix(".json").write_text(json.dumps(_circumstances(experiment, settings), indent=2) + "\n")
    return rows


def _circumstances(experiment: Experiment, settings: Settings) -> Mapping[str, Any]:
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return {
        "question": experiment.question,
        "quick": settings.quick,
        "seed": settings.seed,
        "date": datetime.now(UTC).date().isoformat(),
        "commit": commit.stdout.strip() or "unknown",
        "environment": Environment.current(settings.device).as_dict(),
    }
