"""Entry point of the ``torch.compile`` backend ``taso``.

PyTorch looks backends up without a lock, and fails if two threads load one at once (torch 2.13). So this module imports
nothing until a graph is compiled, and other entry points of the package register the backend in advance.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any


def taso(graph: Any, examples: Any, **options: Any) -> Callable[..., Any]:
    """Compile a captured graph; see :func:`taso_py.dynamo.backend.taso`."""
    from taso_py.dynamo.backend import taso as compile_

    return compile_(graph, examples, **options)


def register() -> None:
    """Register the backend, so that PyTorch need not look it up."""
    from torch._dynamo.backends.registry import register_backend  # imported here: it takes as long as PyTorch itself

    with suppress(AssertionError):  # already registered
        register_backend(taso, name="taso")
