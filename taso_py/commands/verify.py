"""``taso-py verify``: prove every rule again, from nothing."""

from __future__ import annotations

import argparse
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from time import perf_counter
from typing import Any

from tqdm import tqdm

from taso_py.commands.common import command, print_json
from taso_py.rules.database import read_database
from taso_py.rules.substitution import Substitution
from taso_py.rules.text import write_rule
from taso_py.rules.verdict import Outcome, Verdict


def add(commands: Any) -> None:
    """Adds the subcommand to the parser."""
    parser = command(commands, "verify", _verify, "Prove every rule again; exit status 0 only if all are PROVED.")
    parser.add_argument(
        "files", metavar="FILE", type=Path, nargs="*", help="rule files (default: the shipped database)"
    )
    parser.add_argument("--jobs", metavar="J", type=int, default=os.cpu_count() or 1, help="processes (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print the verdicts as one JSON document")


def check_rule(rule: Substitution) -> Verdict:
    """The prover's answer; a function of its own so that other processes find it by name."""
    from verify import check

    return check(rule)


def _verify(parsed: argparse.Namespace) -> int:
    rules = [rule for path in parsed.files or [None] for rule in read_database(path)]
    start = perf_counter()
    with ProcessPoolExecutor(parsed.jobs) as pool:
        verdicts = list(tqdm(pool.map(check_rule, rules, chunksize=4), total=len(rules), unit="rule", desc="verify"))
    seconds = perf_counter() - start
    counts = {outcome: sum(verdict.outcome is outcome for verdict in verdicts) for outcome in Outcome}
    failed = [(rule, v) for rule, v in zip(rules, verdicts, strict=True) if v.outcome is not Outcome.PROVED]
    if parsed.json:
        found = [{"id": rule.id, "outcome": v.outcome.value, "reason": v.reason} for rule, v in failed]
        print_json({**{o.value: n for o, n in counts.items()}, "seconds": round(seconds, 3), "failed": found})
    else:
        for rule, verdict in failed:
            evidence = f" ({verdict.counterexample})" if verdict.counterexample else ""
            print(f"{verdict.outcome.value.upper()} {verdict.reason}{evidence}\n{write_rule(rule)}\n")
        print(", ".join(f"{number} {o.value}" for o, number in counts.items()) + f" in {seconds:.1f} s")
    return 1 if failed else 0
