"""Substitutions: what they are, how they are written, matched and applied.

Invariant: a substitution says nothing about any particular model; everything here is independent of PyTorch.
"""
