"""The prover: decides whether the two sides of a substitution are equal for every size.

Invariant: proving imports no torch; only the witness (:mod:`verify.witness`) does, and with it :func:`check`.
"""

from taso_py.rules.substitution import Substitution
from taso_py.rules.verdict import Verdict
from verify.limits import ProofLimits
from verify.prover import DEFAULT_LIMITS, prove


def check(rule: Substitution, limits: ProofLimits = DEFAULT_LIMITS, seed: int = 0) -> Verdict:
    """Test at random, prove, then test again; see :func:`verify.checking.check`."""
    from verify.checking import check as with_witness  # imports torch, which a mere proof does not need

    return with_witness(rule, limits, seed)


__all__ = ["ProofLimits", "check", "prove"]
