"""Reports of optimizations, profiles and predictions: data, JSON, text for the terminal, and HTML pages.

Invariant: reports hold data that was measured elsewhere; nothing here measures or decides.
"""
