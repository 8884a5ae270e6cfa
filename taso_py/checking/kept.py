"""Running models that have state without leaving any trace in it.

Invariant: whatever the body writes to the buffers of the modules is undone, also where it fails.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import AbstractContextManager, contextmanager, nullcontext

from torch import nn

from taso_py.backend import Program
from taso_py.backend.writes import is_write
from taso_py.frontend.snapshot import Snapshot


@contextmanager
def kept(modules: Iterable[nn.Module]) -> Generator[None]:
    """Puts what modules hold back to what it was."""
    before = [Snapshot(module) for module in modules]
    try:
        yield
    finally:
        for snapshot in before:
            snapshot.restore(snapshot.mutated())


def state_kept(program: Program, modules: Iterable[nn.Module]) -> AbstractContextManager[None]:
    """The same for modules that compute a program, at no cost if it has no state to write to."""
    return kept(modules) if any(map(is_write, program.graph.effects)) else nullcontext()
