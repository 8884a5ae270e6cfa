"""``taso-py verify``: prove every rule again from scratch.

A true rule also fails if its two sides may differ more in floating point than the numerics class that it states, since
a user's cap on the class would let it pass.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from taso_py.commands.common import command, print_json
from taso_py.executors import add_options, open_pool
from taso_py.progress import progress_bar
from taso_py.rules.database import read_database
from taso_py.rules.substitution import Substitution
from taso_py.rules.text import write_rule
from taso_py.rules.verdict import Numerics, Outcome, Verdict

_Answer = TypeVar("_Answer")

CHUNK = 4
"""Number of rules that a process is given together."""
UNDERSTATED = "understated"
"""Result of a rule that is proved, but at a higher numerics class than it states."""


def add(commands: Any) -> None:
    """Add the subcommand to the parser."""
    parser = command(
        commands, "verify", _verify, "Prove every rule again; exit status 0 only if all are PROVED as stated."
    )
    parser.add_argument(
        "files", metavar="FILE", type=Path, nargs="*", help="rule files (default: the shipped database)"
    )
    add_options(parser, os.cpu_count() or 1)
    parser.add_argument(
        "--second-opinion",
        action="store_true",
        help="also ask whether each proved rule follows from other rules of the shipped database as axioms",
    )
    parser.add_argument("--json", action="store_true", help="print the verdicts as one JSON document")


def check_rule(rule: Substitution) -> Verdict:
    """Return the prover's verdict; a module-level function, so that other processes can import it."""
    from verify import check

    return check(rule)


def opinion_of(rule: Substitution) -> str:
    """Return the result of the axiomatic method for a rule: ``agrees`` or ``silent``."""
    from verify.audit.axiomatic import second_opinion, shipped_axioms

    return second_opinion(rule, shipped_axioms(rule)).opinion.value


def _verify(parsed: argparse.Namespace) -> int:
    rules = [rule for path in parsed.files or [None] for rule in read_database(path)]
    start = perf_counter()
    opinions: dict[str, str] = {}
    with open_pool(parsed.jobs, parsed.executor) as pool:
        verdicts = _each(pool.map(check_rule, rules, chunk=CHUNK, lost=_died), rules, "verify")
        if parsed.second_opinion:
            proved = [r for r, verdict in zip(rules, verdicts, strict=True) if verdict.outcome is Outcome.PROVED]
            found = _each(pool.map(opinion_of, proved, chunk=CHUNK), proved, "second opinion")
            opinions = {rule.id: opinion for rule, opinion in zip(proved, found, strict=True)}
    seconds = perf_counter() - start
    results = [_result(rule, verdict) for rule, verdict in zip(rules, verdicts, strict=True)]
    names = [outcome.value for outcome in Outcome] + [UNDERSTATED] * (UNDERSTATED in results)
    counts = {name: results.count(name) for name in names}
    failed = [
        (rule, result, _reason(v, result), v)
        for rule, result, v in zip(rules, results, verdicts, strict=True)
        if result != Outcome.PROVED.value
    ]
    if parsed.json:
        reasons = [
            {"id": rule.id, "outcome": result, "reason": reason, "counterexample": _evidence(v)}
            for rule, result, reason, v in failed
        ]
        asked = {"second_opinion": opinions} if parsed.second_opinion else {}
        print_json({**counts, "seconds": round(seconds, 3), "failed": reasons, **asked})
    else:
        for rule, result, reason, _ in failed:
            print(f"{result.upper()} {reason}\n{write_rule(rule)}\n")
        for name, opinion in opinions.items():
            print(f"{name}  {opinion}")
        print(", ".join(f"{number} {name}" for name, number in counts.items()) + f" in {seconds:.1f} s")
        if parsed.second_opinion:
            agreeing = sum(opinion == "agrees" for opinion in opinions.values())
            print(f"second opinion: {agreeing} of {len(opinions)} proved rules follow from others as axioms")
    return 1 if failed else 0


def _result(rule: Substitution, verdict: Verdict) -> str:
    """Return the outcome, or ``UNDERSTATED`` if the rule is proved at a higher numerics class than it states."""
    return UNDERSTATED if rule.numerics < (verdict.numerics or Numerics.EXACT) else verdict.outcome.value


def _reason(verdict: Verdict, result: str) -> str:
    """Return why a rule fails, in one line."""
    if result != UNDERSTATED or verdict.numerics is None:
        return verdict.reason
    return f"true, but the two sides may differ more than the rule states: write numerics {verdict.numerics.name}"


def _evidence(verdict: Verdict) -> dict[str, Any] | None:
    """Return a counterexample as data for JSON: sizes, values of variables, and both sides."""
    found = verdict.counterexample
    if found is None:
        return None
    values = {name: _elements(array) for name, array in found.values.items()}
    sides = {"source": _elements(found.source), "target": _elements(found.target)}
    return {"sizes": dict(found.sizes), "values": values, **sides}


def _elements(array: NDArray[Any]) -> Any:
    """Return nested lists of an array, with NaN and infinities as strings, which JSON does not have."""
    finite = np.isfinite(array)
    return array.tolist() if finite.all() else np.where(finite, array.astype(object), array.astype(str)).tolist()


def _each(answers: Iterable[_Answer], rules: Sequence[Substitution], name: str) -> list[_Answer]:
    return list(progress_bar(answers, desc=name, total=len(rules), unit="rule", leave=True))


def _died(_rule: Substitution) -> Verdict:
    return Verdict(Outcome.UNKNOWN, "the processes that tried to prove it died")
