"""The entry point of the backend ``taso`` of ``torch.compile``.

PyTorch looks a backend up without a lock, and fails if two threads load it at once (torch 2.13). So loading it takes no
time, as nothing is imported before there is something to compile; and whoever has used this package otherwise has it
registered.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any


def taso(graph: Any, examples: Any, **options: Any) -> Callable[..., Any]:
    """Compiles a captured graph; see :func:`taso_py.dynamo.backend.taso`."""
    from taso_py.dynamo.backend import taso as compile_

    return compile_(graph, examples, **options)


def register() -> None:
    """Registers the backend, so that nobody has to load it."""
    from torch._dynamo.backends.registry import register_backend  # imported here: it takes as long as PyTorch itself

    with suppress(AssertionError):  # it is registered
        register_backend(taso, name="taso")
