"""Context managers that restore the state of models after their calls.

Invariant: whatever the body writes to the buffers of the modules and to example inputs is undone, also if it raises.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from taso_py.backend import Program
from taso_py.backend.writes import Writes
from taso_py.frontend.snapshot import Snapshot


@contextmanager
def preserve_attributes(model: object) -> Generator[None]:
    """Restore all that a module and its parts store, but for parameters, to what it is before the body.

    What modules make at their first call is dropped, except by lazy ones. Another object is left alone.
    """
    before = Snapshot(model) if isinstance(model, nn.Module) else None
    try:
        yield
    finally:
        if before is not None:
            before.restore()


@contextmanager
def preserve_buffers(modules: Iterable[nn.Module]) -> Generator[None]:
    """Restore the modules' buffers to their content before the body."""
    before = [Snapshot(module) for module in modules]
    try:
        yield
    finally:
        for snapshot in before:
            snapshot.restore(snapshot.mutated())


@contextmanager
def preserve_inputs(arguments: Any) -> Generator[None]:
    """Restore the tensors among arguments to their content before the body."""
    tensors = [leaf for leaf in pytree.tree_leaves(arguments) if isinstance(leaf, Tensor)]
    before = [(tensor, tensor._version, tensor.detach().clone()) for tensor in tensors]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, version, content in before:
                if tensor._version != version:
                    tensor.copy_(content)


@contextmanager
def preserve_state(program: Program, modules: Iterable[nn.Module], arguments: Any) -> Generator[None]:
    """Restore what modules that compute a program write to; free of cost if it writes to nothing.

    Args:
        program: tells whether there are writes.
        modules: their buffers are restored.
        arguments: the inputs that the body calls them with.
    """
    writes = Writes.of(program.graph)
    with ExitStack() as stack:
        if writes.buffers:
            stack.enter_context(preserve_buffers(modules))
        if writes.inputs:
            stack.enter_context(preserve_inputs(arguments))
        yield


def counters_of(program: Program, modules: Iterable[nn.Module], arguments: Any) -> Callable[[], None]:
    """Return a function that restores counters, to be called before each of many calls.

    A position in a cache that is counted up by each call would be out of range sooner or later. So whole numbers that
    the program writes to are restored; other content does not decide what a call does, and would take long to restore.

    Args:
        program: what the modules compute.
        modules: their buffers are written to.
        arguments: the arguments of the calls.
    """
    writes = Writes.of(program.graph)
    leaves = pytree.tree_leaves(arguments) if writes.inputs else []
    buffers = [module.get_buffer(key) for module in modules for key in writes.buffers]
    state = [*(leaf for leaf in leaves if isinstance(leaf, Tensor)), *buffers]
    counters = [tensor for tensor in state if not (tensor.is_floating_point() or tensor.is_complex())]
    before = [tensor.clone() for tensor in counters]

    def restore() -> None:
        if counters:
            torch._foreach_copy_(counters, before)  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]

    return restore


def repeatable(call: Callable[[], object], program: Program, module: nn.Module, arguments: Any) -> Callable[[], object]:
    """Return a call of a module with arguments before which counters are restored, if it has any."""
    if not Writes.of(program.graph):
        return call
    restore = counters_of(program, [module], arguments)

    def repeated() -> object:
        restore()
        return call()

    return repeated
