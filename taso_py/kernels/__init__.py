"""Kernels: the implementations that PyTorch offers for an operator, per device, and how to call each for measuring.

Invariant: a tile computes the result of the operators it covers; measurement decides which tile is fastest.
"""
