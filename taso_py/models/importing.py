"""Import of sources as programs, whose graphs can be optimized.

Invariant: a module's hooks that only observe are not called during the import.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from torch.export import ExportedProgram

from taso_py.frontend import Program, import_module, import_program
from taso_py.frontend.hooks import hooks_set_aside
from taso_py.models.source import Source


def import_source(source: Source, live: Collection[str] = (), shapes: Mapping[str, Any] | None = None) -> Program:
    """Import a source and return its program.

    Args:
        source: the source.
        live: names of buffers that other entry points of the model write to.
        shapes: the dimensions of a module's inputs to leave open, as torch.export takes them.
    """
    if isinstance(source.module, ExportedProgram):
        return import_program(source.module, source.args, source.kwargs, live, source.positive)
    with hooks_set_aside(source.module, source.args, source.kwargs):
        return import_module(source.module, source.args, source.kwargs, live, shapes, source.positive)
