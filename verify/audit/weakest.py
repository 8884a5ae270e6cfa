"""The weakest preconditions of a rule that is not true as stated: ``python -m verify.audit.weakest FILE``.

Some rules hold only where two sizes are equal, or an attribute has its neutral value (one group, no padding). This
searches for the smallest sets of such equalities under which the proof succeeds, separately for each direction: an
equality of sizes in one direction may be implied by the shapes of the other.

Invariant: the rule is proved under every precondition that is found, and under no proper subset of it.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from taso_py.arguments import CommandParser
from taso_py.ir.errors import TasoError
from taso_py.ir.node import Node
from taso_py.ir.operator import Input
from taso_py.ir.size import symbol
from taso_py.ops.scalar import Condition
from taso_py.rules.database import read_database
from taso_py.rules.substitution import Substitution, attribute_symbols
from taso_py.rules.text import write_rule
from taso_py.rules.verdict import Outcome
from verify.hypotheses import number_symbols, reachable_nodes, without_equalities
from verify.limits import ProofLimits
from verify.prover import DEFAULT_LIMITS, prove
from verify.witness import witness

Precondition: TypeAlias = tuple[Condition, ...]

MOST_EQUALITIES = 3
_TRIALS = 4
"""Random trials before a proof is tried: most sets of equalities are refuted at once."""
_NEUTRAL = {"groups": 1, "stride": 1, "dilation": 1, "padding": 0, "widths": 0, "kernel": 1, "start": 0}


def weakest(
    rule: Substitution, most: int = MOST_EQUALITIES, limits: ProofLimits = DEFAULT_LIMITS
) -> tuple[Precondition, ...]:
    """Return the smallest sets of equalities that make the rule provable: one empty set if it is as it stands.

    The result is empty if there is none of at most ``most`` equalities. Equivalent sets are found once.
    """
    candidates = list(equalities(rule))
    for count in range(most + 1):
        found: dict[str, Precondition] = {}
        for chosen in itertools.combinations(candidates, count):
            if _holds(rule, chosen, limits):
                found.setdefault(without_equalities(_with_preconditions(rule, chosen)).statement, chosen)
        if found:
            return tuple(found.values())
    return ()


def equalities(rule: Substitution) -> Iterator[Condition]:
    """Yield attributes at their neutral value, axes of size one, and equalities of symbols in one role."""
    roles: dict[str, str] = {}
    for node in reachable_nodes(rule.source):
        roles.update((name, role) for name, role in _roles(node) if name not in roles)
    for name, role in sorted(roles.items()):
        yield Condition(symbol(name) - _NEUTRAL.get(role, 1), is_equality=True)
    for a, b in itertools.combinations(sorted(roles), 2):
        if roles[a] == roles[b]:
            yield Condition(symbol(a) - symbol(b), is_equality=True)


def _roles(node: Node) -> Iterator[tuple[str, str]]:
    if isinstance(node.op, Input):
        yield from ((name, "size") for name in node.op.type.symbols)
        return
    numbers = number_symbols(node.op)
    for attribute, value in node.op.attributes:
        role = "start" if attribute in ("start", "stop") else attribute
        yield from ((name, role) for name in attribute_symbols(value) - numbers)


def _holds(rule: Substitution, chosen: Precondition, limits: ProofLimits) -> bool:
    instance = _with_preconditions(rule, chosen)
    try:
        if witness(instance, trials=_TRIALS) is not None:
            return False
    except TasoError:
        return False
    return prove(instance, limits).outcome is Outcome.PROVED


def _with_preconditions(rule: Substitution, chosen: Precondition) -> Substitution:
    return replace(rule, preconditions=(*rule.preconditions, *chosen))


def _directions(rule: Substitution) -> Iterator[tuple[str, Substitution]]:
    yield "forward", rule
    try:
        yield "backward", rule.reversed
    except TasoError:
        return


def _describe(found: Sequence[Precondition]) -> str:
    if not found:
        return f"no {MOST_EQUALITIES} equalities suffice"
    return " or ".join(", ".join(map(str, conditions)) or "nothing" for conditions in found)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; exit status 0 if every rule has a precondition in at least one direction."""
    parser = CommandParser(prog="python -m verify.audit.weakest", description="What rules need to be true.")
    parser.add_argument("files", metavar="FILE", type=Path, nargs="+", help="rule files")
    parsed = parser.parse_args(arguments)
    try:
        rules = [rule for path in parsed.files for rule in read_database(path)]
    except TasoError as error:
        sys.stderr.write(f"verify.audit.weakest: error: {error}\n")
        return 2
    is_complete = True
    for rule in rules:
        results = {name: weakest(direction) for name, direction in _directions(rule)}
        is_complete &= any(results.values())
        sys.stdout.write(write_rule(rule) + "\n")
        sys.stdout.writelines(f"  {name} needs {_describe(found)}\n" for name, found in results.items())
    return 0 if is_complete else 1


if __name__ == "__main__":
    sys.exit(main())
