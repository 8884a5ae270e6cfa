"""``taso-py generate``: enumerate, prove and write substitutions."""

from __future__ import annotations

import argparse
from pathlib import Path
from time import perf_counter
from typing import Any

from tqdm import tqdm

from taso_py.commands.common import command, print_json
from taso_py.commands.verify import check_rule
from taso_py.rules.database import Section, write_database


def add(commands: Any) -> None:
    """Adds the subcommand to the parser."""
    parser = command(commands, "generate", _generate, "Enumerate, prove and write substitutions.")
    parser.add_argument(
        "--max-ops", metavar="N", type=int, help="operators a side at most (default: what each set says)"
    )
    parser.add_argument("--ops", metavar="SET", action="append", help="vocabulary; repeatable (default: those shipped)")
    parser.add_argument("--out", metavar="DIR", type=Path, default=Path("substitutions"), help="(%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the values that terms are compared on")
    parser.add_argument("--json", action="store_true", help="print the run report as one JSON document")


def _generate(parsed: argparse.Namespace) -> int:
    from taso_py.generate.pipeline import Config, generate
    from taso_py.generate.widen import widened

    sets = {"vocabularies": tuple(parsed.ops)} if parsed.ops else {}
    config = Config(**sets, max_operators=parsed.max_ops, seed=parsed.seed)
    start = perf_counter()
    with _Phases() as phases:
        generation = generate(config, check_rule, phases)
        wide = widened(generation.rules, check_rule)
    report = generation.report
    facts = {
        "vocabularies": config.vocabularies,
        "max_operators": config.max_operators,
        "seed": config.seed,
        "terms": report.terms,
        "candidates": report.candidates,
        "outcomes": dict(sorted(report.outcomes.items())),
        "widened": len(wide),
    }
    write_database(parsed.out, [Section("-".join(config.vocabularies), [*generation.rules, *wide], facts)])
    seconds = perf_counter() - start
    if parsed.json:
        unproved = [{"rule": rule, "reason": reason} for rule, reason in report.unproved]
        print_json(
            {**facts, "rules": len(generation.rules) + len(wide), "unproved": unproved, "seconds": round(seconds, 1)}
        )
    else:
        for name, value in facts.items():
            print(f"{name:<14} {value}")
        print(f"{len(generation.rules) + len(wide)} rules written to {parsed.out} in {seconds:.0f} s")
    return 0


class _Phases:
    """A progress bar that starts anew with each phase."""

    def __init__(self) -> None:
        self._bar: tqdm[Any] | None = None

    def __enter__(self) -> _Phases:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def __call__(self, phase: str, done: int, total: int) -> None:
        if self._bar is None or self._bar.desc != phase:
            self.__exit__()
            self._bar = tqdm(total=total, leave=False)
            self._bar.desc = phase
        self._bar.update(done - self._bar.n)
