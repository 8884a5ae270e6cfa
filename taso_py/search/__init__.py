"""Search for a cheap graph, by a given cost, among those that a set of substitutions reaches.

Invariant: this package knows no tensor library; costs come from an object that is passed in.
"""
