"""The prover: decides whether the two sides of a substitution are equal for every size.

Invariant: PROVED is certain under the assumptions that verify/README.md lists; any other outcome is UNKNOWN with a
reason, and depends on the rule and the limits only.
"""

from __future__ import annotations

import re

from taso_py.ir.errors import TasoError
from taso_py.ir.node import Value
from taso_py.ops.scalar import Condition
from taso_py.rules.substitution import Substitution, attribute_symbols, key
from taso_py.rules.verdict import Outcome, Verdict
from verify.context import Context
from verify.equality import Equality, negative
from verify.hypotheses import assumptions, check_kinds, lookups, obligations, output_index, without_equalities
from verify.laws import ProofLevel
from verify.limits import Budget, ProofLimits, Refused
from verify.normalize import Normalizer, may_be_movement
from verify.numerics import classify
from verify.signs import Signs
from verify.solver import Solver
from verify.terms import close, term_key

DEFAULT_LIMITS = ProofLimits()
_SHOWN = 160
"""Most characters of a term in a reason."""
_SIZE = re.compile(r"(?!k\d+$)[A-Za-z_]\w*")
"""Names of sizes in rules. Bound indices of definitions are k0, k1, ..; the prover's own names begin with a mark."""


def prove(rule: Substitution, limits: ProofLimits = DEFAULT_LIMITS) -> Verdict:
    """Prove a substitution for all sizes of at least one: PROVED with its numerics class, or UNKNOWN.

    The levels are tried from the lowest; each is a proof on its own, and the first that succeeds gives the class.
    """
    try:
        rule = without_equalities(rule)
        level = equal_at(rule, limits)
        if isinstance(level, ProofLevel):
            return Verdict(Outcome.PROVED, f"index, {level.name.lower()}", classify(rule, level))
        reason = level
    except TasoError as error:
        reason = str(error)
    except (ValueError, OverflowError, ZeroDivisionError) as error:
        reason = f"a definition cannot be read at symbolic sizes: {error}"
    return Verdict(Outcome.UNKNOWN, reason)


def equal_at(rule: Substitution, limits: ProofLimits = DEFAULT_LIMITS) -> ProofLevel | str:
    """Return the lowest level at which the sides of a rule are shown to be equal, or why they are not.

    Args:
        rule: a rule without preconditions that are equations.
        limits: how long to try.

    Raises:
        TasoError: the rule is not suitable for the prover; a ValueError or ArithmeticError has the same meaning.
    """
    refuse_unsuitable(rule, limits)
    facts = assumptions(rule)
    reason = _unmet(rule, facts, Budget(limits))
    if reason:
        return reason
    for level in ProofLevel:
        if level is ProofLevel.MOVEMENT and not may_be_movement(rule):
            continue
        reason = _difference(rule, facts, level, Budget(limits))
        if not reason:
            return level
    return reason


def _unmet(rule: Substitution, facts: Context, budget: Budget) -> str:
    """Return why the rule could not be applied anywhere, or not safely; empty if it can."""
    solver = Solver(facts, budget)
    if rule.preconditions and solver.impossible([condition.value for condition in rule.preconditions]):
        return "no sizes satisfy the preconditions"
    if lookups(rule.source) != lookups(rule.target):
        return "the sides look up different integers, or among different numbers of places"
    for statement in obligations(rule):
        if not facts.follows(statement) and not solver.implied([], [[statement]]):
            return f"the target needs {Condition(statement)}"
    return ""


def _difference(rule: Substitution, facts: Context, level: ProofLevel, budget: Budget) -> str:
    """Return why the sides are not shown to be equal at a level; empty if they are."""
    for number, (left, right) in enumerate(zip(rule.source.outputs, rule.target.outputs, strict=True)):
        reason = _output_difference(left, right, facts, level, budget, signs=Signs())
        if reason:
            return f"output {number}: {reason}"
    return ""


def _output_difference(
    left: Value, right: Value, facts: Context, level: ProofLevel, budget: Budget, *, signs: Signs
) -> str:
    """Return why two outputs are not shown to be equal where the assumed signs hold; empty if they are."""
    index, context = output_index(left.type, facts)
    solver = Solver(context, budget)
    normalizer = Normalizer(context, budget, solver, level, signs)
    source = normalizer.close(normalizer.element(left, index))
    allowed = normalizer.take_poles().under_approximation()
    target = normalizer.close(normalizer.element(right, index))
    poles = normalizer.take_poles().over_approximation()
    if normalizer.adds_coefficients:
        return "like terms are added up"
    equality = Equality(solver)
    difference = close([*source, *negative(target)])
    remainder = equality.remainder(difference)
    if remainder is not None and signs.is_zero(difference, normalizer.laws.is_nonnegative_sum):
        remainder = None
    if remainder is not None:
        reason = f"not shown to cancel: {term_key(remainder)[:_SHOWN]}"
    elif (pole := equality.uncovered(poles, allowed)) is not None:
        reason = f"the target may not be defined: {term_key(pole)[:_SHOWN]}"
    else:
        return ""
    cases = list(signs.cases())
    found = (_output_difference(left, right, facts, level, budget, signs=case) for case in cases)
    return next((reason for other in found if other), "") if cases else reason


def refuse_unsuitable(rule: Substitution, limits: ProofLimits) -> None:
    """Refuse a rule that is too large, is not about real numbers only, or uses names reserved by the prover.

    Raises:
        Refused: it is such a rule.
    """
    nodes = [*rule.source.nodes, *rule.target.nodes]
    if len(nodes) > limits.nodes:
        raise Refused(f"more than {limits.nodes} operators")
    check_kinds(nodes)
    names: set[str] = set()
    for node in nodes:
        names.update(*(type_.symbols for type_ in node.types), *(attribute_symbols(v) for _, v in node.op.attributes))
    foreign = [name for name in sorted(names) if not _SIZE.fullmatch(name)]
    foreign += [key(variable) for variable in rule.variables if not key(variable).isidentifier()]
    if foreign:
        raise Refused(f"rename {foreign[0]}: the prover reserves such names for indices")
