"""Import of sources as programs, whose graphs can be optimized.

Invariant: a module's hooks that only observe are not called during the import.
"""

from __future__ import annotations

from torch.export import ExportedProgram

from taso_py.frontend import Program, import_module, import_program
from taso_py.frontend.hooks import hooks_set_aside
from taso_py.models.source import Source


def import_source(source: Source) -> Program:
    """Import a source and return its program."""
    if isinstance(source.module, ExportedProgram):
        return import_program(source.module, source.args, source.kwargs)
    with hooks_set_aside(source.module, source.args, source.kwargs):
        return import_module(source.module, source.args, source.kwargs)
