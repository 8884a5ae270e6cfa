"""Searching the graphs that a set of substitutions reaches for one that is cheap by a given cost.

Invariant: this package knows no tensor library; what a node costs is told by an object that it is handed.
"""
