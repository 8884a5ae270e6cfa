"""Context managers that restore the state of models after their calls.

Invariant: whatever the body writes to the buffers of the modules is undone, also if it raises.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import AbstractContextManager, contextmanager, nullcontext

from torch import nn

from taso_py.backend import Program
from taso_py.backend.writes import is_write
from taso_py.frontend.snapshot import Snapshot


@contextmanager
def preserve_buffers(modules: Iterable[nn.Module]) -> Generator[None]:
    """Restore the modules' buffers to their content before the body."""
    before = [Snapshot(module) for module in modules]
    try:
        yield
    finally:
        for snapshot in before:
            snapshot.restore(snapshot.mutated())


def preserve_state(program: Program, modules: Iterable[nn.Module]) -> AbstractContextManager[None]:
    """Restore the buffers of modules that compute a program; free of cost if the program writes to none."""
    return preserve_buffers(modules) if any(map(is_write, program.graph.effects)) else nullcontext()
