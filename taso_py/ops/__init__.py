"""The table of operators: typed attributes, shape inference, and what each computes.

Invariant: this package knows no tensor library but numpy, and that in :mod:`taso_py.ops.evaluate` only.
"""
