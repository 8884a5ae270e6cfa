"""The intermediate representation: sizes, types, operators as such, interned nodes, graphs, and their text.

Invariant: this package imports the standard library and networkx only.
"""
