"""The prover: whether the two sides of a substitution are equal for every size.

Invariant: proving imports no torch; only the witness (:mod:`verify.witness`) does.
"""

from verify.limits import Limits
from verify.prover import prove

__all__ = ["Limits", "prove"]
