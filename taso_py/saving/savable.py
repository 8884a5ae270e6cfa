"""Whether what is optimized has a form to be saved in at all, found out before minutes are spent on it.

Invariant: what passes has been written to a file, read back and imported again.
"""

from __future__ import annotations

from taso_py.backend import Program, build
from taso_py.frontend import ImportRefusal
from taso_py.models.source import Source
from taso_py.saving.artifact import UnsavableError, deserialize, open_shapes, serialize
from taso_py.saving.folder import ArtifactError

UNSAVABLE = (UnsavableError, ImportRefusal)
"""What is raised where a program has no file, or none that can be read back or imported again."""


def file_of(source: Source, program: Program, original: Program) -> bytes:
    """A program, computed plainly, as a ``.pt2`` file; it leaves those sizes open that the original does.

    Raises:
        UnsavableError: it has no such form.
    """
    return serialize(build(program), source.args, source.kwargs, open_shapes(original))


def check_savable(source: Source, program: Program) -> None:
    """Makes sure that a result can be saved: the unchanged program must be.

    Args:
        source: what is optimized.
        program: its program.

    Raises:
        ArtifactError: it cannot be.
    """
    try:
        deserialize(file_of(source, program, program))
    except UnsavableError as error:
        advice = "take and return tensors in plain tuples, lists or dicts, or leave --output out"
        raise ArtifactError(f"the result could not be saved: {error}; {advice}") from error
    except ImportRefusal as error:
        raise ArtifactError(f"a saved result could not be read again: {error}; leave --output out") from error
