"""Check that a program can be saved, before minutes are spent on optimizing it.

Invariant: a program that passes was written to a file, read back and imported again.
"""

from __future__ import annotations

from taso_py.backend import Fixed, Program, build
from taso_py.frontend import ImportRefusal
from taso_py.frontend.reexport import open_shapes
from taso_py.models.source import Source
from taso_py.ops.opaque import Opaque
from taso_py.saving.artifact import UnsavableError, check_structures, deserialize, serialize
from taso_py.saving.folder import ArtifactError

UNSAVABLE = (UnsavableError, ImportRefusal)
"""Errors raised if a program cannot be written to a file, read back or imported again."""


def pt2_bytes(source: Source, program: Program, original: Program) -> bytes:
    """Return a program, computed by plain calls, as a ``.pt2`` file with the open sizes of the original.

    Raises:
        UnsavableError: the program cannot be saved.
    """
    return serialize(build(program), source.args, source.kwargs, open_shapes(original))


def is_plain(program: Program) -> bool:
    """Return whether all of a program is of kinds that can always be saved.

    That is so for operators of the table on tensors in containers that can be read back, with sizes that are not open.
    It need not be so for other operators, which may be the user's own and are also what writes to state, and for other
    arguments.
    """
    signature = program.signature
    try:
        check_structures(signature.in_spec, signature.out_spec)
    except Exception:  # whatever it is, the trial shows and explains it
        return False
    return (
        not program.open
        and not any(isinstance(node.op, Opaque) for node in program.graph.nodes)
        and not any(isinstance(leaf, Fixed) for leaf in (*signature.inputs, *signature.outputs))
    )


def check_savable(source: Source, program: Program) -> None:
    """Check that results can be saved, which requires that the unchanged program can be.

    Args:
        source: the source to optimize.
        program: its program.

    Raises:
        ArtifactError: it cannot be saved, or not read again.
    """
    try:
        deserialize(pt2_bytes(source, program, program))
    except UNSAVABLE as error:
        raise unsavable(error) from error


def unsavable(error: UnsavableError | ImportRefusal) -> ArtifactError:
    """Return the error for users that says that a program cannot be saved, and what to do."""
    if isinstance(error, ImportRefusal):
        return ArtifactError(f"a saved result could not be read again: {error}; leave --output out")
    advice = "take and return tensors in plain tuples, lists or dicts, or leave --output out"
    return ArtifactError(f"the result could not be saved: {error}; {advice}")
