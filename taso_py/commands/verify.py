"""``taso-py verify``: prove every rule again, from nothing."""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from taso_py.commands.common import command, print_json
from taso_py.ir.errors import TasoError
from taso_py.rules.database import read_database
from taso_py.rules.substitution import Substitution
from taso_py.rules.text import write_rule
from taso_py.rules.verdict import Outcome, Verdict

_Answer = TypeVar("_Answer")


def add(commands: Any) -> None:
    """Adds the subcommand to the parser."""
    parser = command(commands, "verify", _verify, "Prove every rule again; exit status 0 only if all are PROVED.")
    parser.add_argument(
        "files", metavar="FILE", type=Path, nargs="*", help="rule files (default: the shipped database)"
    )
    parser.add_argument("--jobs", metavar="J", type=int, default=os.cpu_count() or 1, help="processes (%(default)s)")
    parser.add_argument(
        "--second-opinion",
        action="store_true",
        help="also ask whether each proved rule follows from other rules of the shipped database as axioms",
    )
    parser.add_argument("--json", action="store_true", help="print the verdicts as one JSON document")


def check_rule(rule: Substitution) -> Verdict:
    """The prover's answer; a function of its own so that other processes find it by name."""
    from verify import check

    return check(rule)


def opinion_of(rule: Substitution) -> str:
    """What the axiomatic method says of a rule: ``agrees`` or ``silent``."""
    from verify.axiomatic import second_opinion, shipped_axioms

    return second_opinion(rule, shipped_axioms()).opinion.value


def _verify(parsed: argparse.Namespace) -> int:
    if parsed.jobs < 1:
        raise TasoError(f"--jobs must be at least 1, not {parsed.jobs}")
    rules = [rule for path in parsed.files or [None] for rule in read_database(path)]
    start = perf_counter()
    opinions: dict[str, str] = {}
    with _pool(parsed.jobs) as pool:
        verdicts = _each(pool, check_rule, rules, "verify")
        if parsed.second_opinion:
            proved = [r for r, verdict in zip(rules, verdicts, strict=True) if verdict.outcome is Outcome.PROVED]
            found = _each(pool, opinion_of, proved, "second opinion")
            opinions = {rule.id: opinion for rule, opinion in zip(proved, found, strict=True)}
    seconds = perf_counter() - start
    counts = {outcome.value: sum(verdict.outcome is outcome for verdict in verdicts) for outcome in Outcome}
    failed = [(rule, v) for rule, v in zip(rules, verdicts, strict=True) if v.outcome is not Outcome.PROVED]
    if parsed.json:
        reasons = [
            {"id": rule.id, "outcome": v.outcome.value, "reason": v.reason, "counterexample": _evidence(v)}
            for rule, v in failed
        ]
        asked = {"second_opinion": opinions} if parsed.second_opinion else {}
        print_json({**counts, "seconds": round(seconds, 3), "failed": reasons, **asked})
    else:
        for rule, verdict in failed:
            print(f"{verdict.outcome.value.upper()} {verdict.reason}\n{write_rule(rule)}\n")
        for name, opinion in opinions.items():
            print(f"{name}  {opinion}")
        print(", ".join(f"{number} {name}" for name, number in counts.items()) + f" in {seconds:.1f} s")
        if parsed.second_opinion:
            agreeing = sum(opinion == "agrees" for opinion in opinions.values())
            print(f"second opinion: {agreeing} of {len(opinions)} proved rules follow from others as axioms")
    return 1 if failed else 0


def _evidence(verdict: Verdict) -> dict[str, Any] | None:
    """A counterexample as JSON has it: sizes, the variables' elements, and what both sides are."""
    found = verdict.counterexample
    if found is None:
        return None
    values = {name: _elements(array) for name, array in found.values.items()}
    sides = {"source": _elements(found.source), "target": _elements(found.target)}
    return {"sizes": dict(found.sizes), "values": values, **sides}


def _elements(array: NDArray[Any]) -> Any:
    """Nested lists; JSON has no NaN and no infinity, so these are texts."""
    finite = np.isfinite(array)
    return array.tolist() if finite.all() else np.where(finite, array.astype(object), array.astype(str)).tolist()


@contextmanager
def _pool(jobs: int) -> Generator[ProcessPoolExecutor]:
    """Worker processes that leave an interrupt to this process, and end with it."""
    with ProcessPoolExecutor(jobs, initializer=signal.signal, initargs=(signal.SIGINT, signal.SIG_IGN)) as pool:
        try:
            yield pool
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _each(
    pool: ProcessPoolExecutor, function: Callable[[Substitution], _Answer], rules: Sequence[Substitution], name: str
) -> list[_Answer]:
    return list(tqdm(pool.map(function, rules, chunksize=4), total=len(rules), unit="rule", desc=name))
