"""What happened, for people and for scripts.

Invariant: a report is data that was measured elsewhere; nothing here measures or decides.
"""
