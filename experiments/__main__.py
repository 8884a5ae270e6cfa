"""``python -m experiments list | NAME | all [--quick] [--device cpu|cuda] [--out DIR]``.

Invariant: a user's mistake is one line and exit status 2, as on the main command line.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table

from experiments import (
    correctness,
    end_to_end,
    faults,
    fidelity,
    generation,
    grouped_convolutions,
    memory_formats,
    round_trip,
    rule_size,
    search_speed,
    search_vs_greedy,
    verification,
)
from experiments.harness import Experiment, Settings, conduct
from taso_py.cost.environment import resolve_device
from taso_py.ir.errors import TasoError

MODULES = (
    *(generation, verification, round_trip, correctness, fidelity, memory_formats, grouped_convolutions),
    *(search_speed, search_vs_greedy, rule_size, end_to_end, faults),
)
EXPERIMENTS: Mapping[str, Experiment] = {module.EXPERIMENT.name: module.EXPERIMENT for module in MODULES}


def main() -> int:
    """Runs the experiments asked for; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m experiments", description=__doc__)
    parser.add_argument("name", choices=("list", "all", *EXPERIMENTS))
    parser.add_argument("--quick", action="store_true", help="fewer models and shorter searches")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--out", type=Path, help="(default: experiments/results/DEVICE)")
    parser.add_argument("--seed", type=int, default=0)
    parsed = parser.parse_args()
    if parsed.name == "list":
        for experiment in EXPERIMENTS.values():
            print(f"{experiment.name:<20} {experiment.question}")
        return 0
    out = parsed.out or Path("experiments/results") / parsed.device
    settings = Settings(parsed.device, parsed.quick, out, parsed.seed)
    try:
        resolve_device(parsed.device)
        for experiment in EXPERIMENTS.values():
            if parsed.name in ("all", experiment.name):
                _show(experiment, settings)
    except TasoError as error:
        print(f"experiments: error: {error}", file=sys.stderr)
        return 2
    return 0


def _show(experiment: Experiment, settings: Settings) -> None:
    rows = conduct(experiment, settings)
    names = list(dict.fromkeys(name for row in rows for name in row))
    table = Table(title=experiment.question, box=None)
    for name in names:
        table.add_column(name)
    for row in rows:
        table.add_row(*(f"{row.get(n):.4g}" if isinstance(row.get(n), float) else str(row.get(n, "")) for n in names))
    # Tables are wide: a terminal wraps lines, which reads better than columns of one letter.
    Console(width=max(Console().width, 14 * len(names))).print(table)


if __name__ == "__main__":
    raise SystemExit(main())
