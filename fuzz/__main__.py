"""The command: ``python -m fuzz --count 1000 --seed 0``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from fuzz.campaign import CampaignTally, Failure, run
from fuzz.kinds import ROUNDS
from taso_py.arguments import CommandParser
from taso_py.engines.names import SESSION_ENGINES
from taso_py.executors import add_options, open_pool
from taso_py.ir.errors import TasoError
from taso_py.progress import progress_bar


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; exit status 0 if every model passed."""
    parser = CommandParser(
        prog="python -m fuzz",
        description="Random models are imported, rewritten by random rules and computed by random kernels; results are "
        "compared with PyTorch's. A failing model is made as small as possible and written as a Python file.",
    )
    parser.add_argument("--count", metavar="N", type=int, default=200, help="models (%(default)s)")
    parser.add_argument("--seed", metavar="S", type=int, default=0, help="(%(default)s)")
    parser.add_argument(
        "--kind", choices=[*dict.fromkeys(ROUNDS)], help="all models are of this kind (default: of each in turns)"
    )
    parser.add_argument(
        "--engines", nargs="+", choices=SESSION_ENGINES, default=[], help="engines that also compute the models"
    )
    add_options(parser)
    parser.add_argument(
        "--out", metavar="DIR", type=Path, help="folder for failing models (default: they are not written)"
    )
    options = parser.parse_args(arguments)
    if min(options.count, options.jobs) < 1:
        parser.error("--count and --jobs must be at least 1")
    try:
        tally = _campaign(options)
    except TasoError as error:
        sys.stderr.write(f"fuzz: error: {error}\n")
        return 2
    sys.stdout.write(f"{tally}\n")
    return 1 if tally.failures else 0


def _campaign(options: argparse.Namespace) -> CampaignTally:
    tally = CampaignTally()
    kinds = [options.kind] if options.kind else ROUNDS
    with (
        open_pool(options.jobs, options.executor) as pool,
        progress_bar(desc="models", total=options.count, unit="model") as bar,
    ):
        for found in run(options.count, options.seed, pool=pool, rounds=kinds, engines=options.engines):
            tally.add(found)
            bar.update(found.tried)
            _report(found.failures, options.out)
    return tally


def _report(failures: Sequence[Failure], folder: Path | None) -> None:
    for failure in failures:
        sys.stdout.write(f"{failure}\n")
        sys.stdout.flush()
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"failure_{failure.batch}_{failure.seed}.py").write_text(str(failure), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
