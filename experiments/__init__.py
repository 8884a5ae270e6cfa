"""Experiments: one module per question; each prints a table and writes CSV and a figure.

Invariant: experiments use the library as a user does; nothing imports them.
"""
