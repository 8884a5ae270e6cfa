"""The entry point of the backend ``taso`` of ``torch.compile``.

PyTorch looks a backend up without a lock, and fails if two threads load it at once: so that this takes no time, nothing
is imported before there is something to compile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def taso(graph: Any, examples: Any, **options: Any) -> Callable[..., Any]:
    """Compiles a captured graph; see :func:`taso_py.runtime.dynamo.taso`."""
    from taso_py.runtime.dynamo import taso as compile_

    return compile_(graph, examples, **options)
