"""The error of the importer.

Invariant: its text is one line that names the cause, the place in the model where it is known, and what to do.
"""

from __future__ import annotations

from taso_py.ir.errors import TasoError


class ImportRefusal(TasoError):
    """A model that cannot be imported faithfully."""
