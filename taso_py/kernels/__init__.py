"""Kernels: the implementations that PyTorch offers for an operator, per device, and how to call each for measuring.

Invariant: a tile computes what the operators it covers mean; which tile is fastest is for measurement to say.
"""
