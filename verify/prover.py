"""The prover: whether the two sides of a substitution are equal for every size.

Invariant: PROVED is certain under the assumptions that verify/README.md lists; whatever else happens is UNKNOWN with a
reason, and depends on the rule and the limits only.
"""

from __future__ import annotations

import re

from taso_py.ir.errors import TasoError
from taso_py.ops.scalar import Condition
from taso_py.rules.substitution import Substitution, attribute_symbols
from taso_py.rules.verdict import Outcome, Verdict
from verify.equality import Equality, negative
from verify.hypotheses import assumptions, check_kinds, obligations, output_index, solved
from verify.laws import Level
from verify.limits import Budget, Limits, Refused
from verify.normalize import Normalizer
from verify.numerics import classify
from verify.solver import Solver
from verify.terms import close

DEFAULT_LIMITS = Limits()
_BOUND_NAME = re.compile(r"k\d+")


def prove(rule: Substitution, limits: Limits = DEFAULT_LIMITS) -> Verdict:
    """Tries to prove a substitution for all sizes of at least one; PROVED with its numerics class, or UNKNOWN.

    The levels are tried from the lowest; each proves on its own, and the first that does gives the class.
    """
    budget = Budget(limits)
    reason = ""
    try:
        rule = solved(rule)
        refuse_foreign(rule)
        for level in Level:
            reason = first_difference(rule, level, budget)
            if not reason:
                return Verdict(Outcome.PROVED, f"index, {level.name.lower()}", classify(rule, level))
    except TasoError as error:
        reason = str(error)
    except (ValueError, OverflowError, ZeroDivisionError) as error:
        reason = f"a definition cannot be read at symbolic sizes: {error}"
    return Verdict(Outcome.UNKNOWN, reason)


def first_difference(rule: Substitution, level: Level, budget: Budget) -> str:
    """Why the sides are not shown to be equal at a level; empty if they are.

    Raises:
        Refused: a limit was reached.
    """
    facts = assumptions(rule)
    for statement in obligations(rule):
        if not facts.follows(statement) and not Solver(facts, budget).implied([], [[statement]]):
            return f"the target needs {Condition(statement)}"
    for number, (left, right) in enumerate(zip(rule.source.outputs, rule.target.outputs, strict=True)):
        index, context = output_index(left.type, facts)
        solver = Solver(context, budget)
        normalizer = Normalizer(context, budget, solver, level)
        difference = close([*normalizer.element(left, index), *negative(normalizer.element(right, index))])
        if not Equality(solver).is_zero(difference):
            return f"output {number}: the sides are not shown to be equal"
    return ""


def refuse_foreign(rule: Substitution) -> None:
    """Refuses a rule about things that are not real numbers, or with names that the prover uses itself.

    Raises:
        Refused: it is such a rule.
    """
    check_kinds([*rule.source.nodes, *rule.target.nodes])
    names: set[str] = set()
    for node in (*rule.source.nodes, *rule.target.nodes):
        names.update(*(type_.symbols for type_ in node.types), *(attribute_symbols(v) for _, v in node.op.attributes))
    clash = next((name for name in sorted(names) if _BOUND_NAME.fullmatch(name)), None)
    if clash is not None:
        raise Refused(f"rename the size {clash}: bound indices have such names")
