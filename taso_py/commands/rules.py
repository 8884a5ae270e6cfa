"""``taso-py rules``: list the substitution database."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich.table import Table

from taso_py.commands.common import command, print_json, show, some_path
from taso_py.ir.errors import TasoError
from taso_py.rules.database import read_database
from taso_py.rules.ruleset import RuleSet
from taso_py.rules.substitution import Substitution
from taso_py.rules.text import write_rule


def add(commands: Any) -> None:
    """Add the subcommand to the parser."""
    parser = command(commands, "rules", _rules, "List the substitution database.")
    parser.add_argument("action", choices=("list", "show", "stats"))
    parser.add_argument("id", metavar="ID", nargs="?", help="for show: a rule's identifier or its beginning")
    parser.add_argument(
        "--rules", metavar="PATH", type=some_path, help="a rule file or folder (default: the shipped database)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def _rules(parsed: argparse.Namespace) -> int:
    if parsed.id is not None and parsed.action != "show":
        raise TasoError(f"rules {parsed.action} takes no ID; 'taso-py rules show {parsed.id}' shows one rule")
    rules = read_database(parsed.rules)
    if parsed.action == "stats":
        return _rules_stats(rules, parsed.json)
    if parsed.action == "show":
        if not parsed.id:
            raise TasoError("rules show needs an identifier; 'taso-py rules list' prints them")
        rules = RuleSet(stored for stored in rules.stored if stored.id.startswith(parsed.id))
        if not rules:
            known = "'taso-py rules list' prints them; those for a model's loops are in its trace.rules"
            raise TasoError(f"no rule has the identifier {parsed.id}; {known}")
    if parsed.json:
        print_json([{"id": r.id, "text": write_rule(r), "numerics": r.numerics.name} for r in rules])
    elif parsed.action == "show":
        print("\n\n".join(map(write_rule, rules)))
    else:
        for rule in rules:
            print(f"{rule.id}  {rule.numerics.name:<11}  {' '.join(rule.statement.split())}")
    return 0


def _rules_stats(rules: Sequence[Substitution], as_json: bool) -> int:
    by_operators = Counter(max(rule.size) for rule in rules)
    by_numerics = Counter(rule.numerics.name for rule in rules)
    macros = sum(rule.proof == "derived" for rule in rules)
    stats = {
        "total": len(rules),
        "base": len(rules) - macros,
        "macros": macros,
        "by_operators": {str(size): count for size, count in sorted(by_operators.items())},
        "by_numerics": dict(sorted(by_numerics.items())),
    }
    if as_json:
        print_json(stats)
        return 0
    table = Table(box=None, show_header=False)
    for name, value in stats.items():
        text = ", ".join(f"{k}: {n}" for k, n in value.items()) if isinstance(value, dict) else str(value)
        table.add_row(name, text)
    show(table)
    return 0
