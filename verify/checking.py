"""The check of a rule: random testing, then proof, then random testing again.

Invariant: PROVED means proved and not contradicted by PyTorch on random sizes and values.
"""

from __future__ import annotations

from dataclasses import replace

from taso_py.ir.errors import TasoError
from taso_py.rules.substitution import Substitution
from taso_py.rules.verdict import Counterexample, Outcome, Verdict
from verify.limits import ProofLimits
from verify.prover import DEFAULT_LIMITS, prove
from verify.witness import TRIALS, TargetRefused, find_counterexample, witness


def check(rule: Substitution, limits: ProofLimits = DEFAULT_LIMITS, seed: int = 0, trials: int = TRIALS) -> Verdict:
    """Return the verdict on a rule: REFUTED with a counterexample, PROVED, or UNKNOWN.

    A rule that the witness cannot try at all is UNKNOWN even if a proof exists: it might be vacuous.
    """
    try:
        found, before = find_counterexample(rule, seed, trials)
        if found is not None:
            return _refuted(found, "differs")
        verdict = prove(rule, limits)
        if verdict.outcome is not Outcome.PROVED:
            return verdict
        found, after = find_counterexample(rule, seed + 1, 2 * trials)
    except TasoError as refusal:
        return Verdict(Outcome.UNKNOWN, str(refusal))
    if found is not None:
        return _refuted(found, "proved, but PyTorch disagrees; please report this: differs")
    return replace(
        verdict, reason=f"{verdict.reason}, {before + after} trials{_empty_tensor_remark(rule, seed + 2, trials)}"
    )


def _empty_tensor_remark(rule: Substitution, seed: int, trials: int) -> str:
    """Return a remark if a proved rule is false for empty tensors, which it does not cover and is never applied to.

    An empty mean is not a number, and PyTorch's convolutions of no channels have no features either.
    """
    try:
        holds = witness(rule, seed, 2 * trials, least=0) is None
    except TargetRefused:
        holds = False
    except TasoError:
        return ""
    return "" if holds else "; not of empty tensors"


def _refuted(found: Counterexample, how: str) -> Verdict:
    return Verdict(Outcome.REFUTED, f"{how} {found}", counterexample=found)
