"""Models as programs: the graph of operators of whatever a source holds.

Invariant: hooks of a module that only look on see nothing of the import.
"""

from __future__ import annotations

from torch.export import ExportedProgram

from taso_py.frontend import Program, import_module, import_program
from taso_py.frontend.hooks import hooks_set_aside
from taso_py.models.source import Source


def import_source(source: Source) -> Program:
    """Return the program of a source."""
    if isinstance(source.module, ExportedProgram):
        return import_program(source.module, source.args, source.kwargs)
    with hooks_set_aside(source.module, source.args, source.kwargs):
        return import_module(source.module, source.args, source.kwargs)
