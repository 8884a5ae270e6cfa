"""Names by which users choose a search; nothing else is imported with them, since ``--help`` shows them.

Invariant: they are the keys of :data:`taso_py.search.strategies.SEARCHES`.
"""

from __future__ import annotations

TEMPLATES = ("templates", "templates-measured")
"""Searches that apply rules one by one in their order, and have rules of their own."""
SEARCHES = ("backtracking", "greedy", "saturation", *TEMPLATES)
