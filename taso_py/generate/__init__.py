"""Rule generator: enumerate terms, pair those that agree, generalize, prove and prune.

Invariant: no rule is written by hand, and this package knows no solver: its caller passes a prover.
"""
