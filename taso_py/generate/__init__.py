"""From operators to substitutions: enumerate terms, pair those that agree, generalise and prove, prune.

Invariant: no rule is written by hand, and this package knows no solver: whoever starts it hands it a prover.
"""
