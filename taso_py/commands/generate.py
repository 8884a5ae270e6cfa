"""``taso-py generate``: enumerate, prove and write substitutions."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
from dataclasses import asdict
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from taso_py.commands.common import command, print_json, seed, some_path
from taso_py.commands.verify import check_rule
from taso_py.executors import Pool, add_options, open_pool
from taso_py.ir.errors import TasoError
from taso_py.progress import progress_bar
from taso_py.rules.database import Section, update_database, write_text

if TYPE_CHECKING:
    from taso_py.generate.pipeline import Config, Generation

REPORT = "generate.json"
"""The report of the run in the output folder: times, terms, and the fate of every candidate."""


def add(commands: Any) -> None:
    """Add the subcommand to the parser."""
    kept = "finished work is stored, and --resume continues from there"
    parser = command(commands, "generate", _generate, "Enumerate, prove and write substitutions.", kept=kept)
    parser.add_argument(
        "--max-ops",
        metavar="N",
        type=_some_operators,
        help="operators per side at most (default: the limit of each set)",
    )
    parser.add_argument("--ops", metavar="SET", action="append", help="operator set; repeatable (default: all shipped)")
    parser.add_argument(
        "--out", metavar="DIR", type=some_path, default=Path("substitutions"), help="folder (%(default)s)"
    )
    add_options(parser, os.cpu_count() or 1)
    parser.add_argument("--resume", action="store_true", help="continue an interrupted run that wrote to DIR")
    parser.add_argument(
        "--seed", type=seed, default=0, help="seed of the values that terms are compared on (%(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print the run report as one JSON document")


def _some_operators(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of operators; give 1 or more")
    return int(text)


def _generate(parsed: argparse.Namespace) -> int:
    from taso_py.generate.pipeline import Config
    from taso_py.generate.sets import SHIPPED

    if find_spec("egglog") is None:
        raise TasoError("generating rules needs egglog: pip install 'taso-py[generate]'")
    configs = [Config(names, parsed.max_ops, parsed.seed) for names in ([tuple(parsed.ops)] if parsed.ops else SHIPPED)]
    with open_pool(parsed.jobs, parsed.executor) as pool:
        reports = [_section(parsed, config, pool) for config in configs]
    write_text(parsed.out / REPORT, json.dumps(reports, indent=1) + "\n")
    if parsed.json:
        print_json(reports)
        return 0
    for report in reports:
        for name, value in report.items():
            if name != "fates":
                print(f"{name:<14} {value}")
    print(f"{sum(report['rules'] for report in reports)} rules written to {parsed.out}")
    print(f"{parsed.out / REPORT} lists the outcome for every candidate")
    return 0


def _section(parsed: argparse.Namespace, config: Config, pool: Pool) -> dict[str, Any]:
    """Generate and write one file, and return the report of the run."""
    from taso_py.generate.journal import Journal
    from taso_py.generate.pipeline import generate
    from taso_py.generate.widen import widen_rules

    name = "-".join(config.vocabularies)
    about = {**_choices(config), **_versions()}
    with Journal(parsed.out / f"{name}.journal", about, resume=parsed.resume) as journal, _Phases() as phases:
        generation = generate(config, check_rule, phases, pool=pool, journal=journal)
        wide = widen_rules(generation.rules, check_rule)
        facts = {**_facts(config, generation), "widened": len(wide)}
        update_database(parsed.out, Section(name, [*generation.rules, *wide], facts))
        journal.remove()
    fates = [asdict(fate) for fate in generation.report.fates]
    return {**facts, "rules": len(generation.rules) + len(wide), "seconds": phases.seconds, "fates": fates}


def _facts(config: Config, generation: Generation) -> dict[str, Any]:
    """Return the manifest's facts about a generation, which are the same in every run."""
    report = generation.report
    return {
        **_choices(config),
        "terms": report.terms,
        "candidates": report.candidates,
        "outcomes": dict(sorted(report.outcomes.items())),
    }


def _choices(config: Config) -> dict[str, Any]:
    return {"vocabularies": config.vocabularies, "max_operators": config.max_operators, "seed": config.seed}


def _versions() -> dict[str, str]:
    """Return the versions and sources that the result depends on besides its options."""
    versions = {name: version(name) for name in ("taso-py", "egglog", "numpy", "z3-solver")}
    return {**versions, "sources": _digest_of_sources()}


@cache
def _digest_of_sources() -> str:
    """Return a digest of the prover's and generator's sources; if it changes, everything is proved again."""
    import verify

    package = Path(__file__).parent.parent
    folders = (Path(verify.__file__).parent, *(package / name for name in ("ir", "ops", "rules", "generate")))
    content = hashlib.blake2b(digest_size=8)
    for path in sorted(path for folder in folders for path in folder.rglob("*.py")):
        content.update(path.name.encode() + path.read_bytes())
    return content.hexdigest()


class _Phases:
    """Progress bar that restarts with each phase, and measures its seconds."""

    def __init__(self) -> None:
        self._bar: tqdm[Any] | None = None
        self._since = perf_counter()
        self.seconds: dict[str, float] = {}
        """Wall-clock seconds by phase."""

    def __enter__(self) -> _Phases:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self.seconds[self._bar.desc] = round(perf_counter() - self._since, 1)
            self._bar.close()
            self._bar = None

    def __call__(self, phase: str, done: int, total: int) -> None:
        if self._bar is None or self._bar.desc != phase:
            self.__exit__()
            self._since = perf_counter()
            self._bar = progress_bar(desc=phase, total=total)
        self._bar.update(done - self._bar.n)
