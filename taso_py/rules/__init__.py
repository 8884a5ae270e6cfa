"""Substitutions: their definition, text form, matching and application.

Invariant: a substitution says nothing about any particular model; everything here is independent of PyTorch.
"""
