"""Taking exported programs apart, all composite operators kept whole but for a few.

PyTorch 2.13 prepares every composite operator that it knows, five hundred, for being kept whole, and takes that back
afterwards: several times what a small program itself takes. Here only those are prepared that are called.

Invariant: a program comes out as :meth:`torch.export.ExportedProgram.run_decompositions` gives it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Generator, Iterator, Mapping, Set
from functools import cache
from typing import Any

import torch._export.utils
import torch.export.exported_program
from torch import fx
from torch._ops import OpOverload
from torch.export import ExportedProgram

_utils: Any = torch._export.utils
_programs: Any = torch.export.exported_program
_IS_KNOWN = hasattr(_programs, "_collect_all_valid_cia_ops") and hasattr(_utils, "_is_preservable_cia_op")
"""Whether this PyTorch collects composite operators as those do that this was written for."""
_met: set[OpOverload] = set()
"""Composite operators that others were seen to call while they were taken apart."""


def decompose(exported: ExportedProgram, table: Mapping[Any, Any]) -> ExportedProgram:
    """The program without writes, taken apart by a table alone; call it under :func:`taso_py.backend.tracing.quiet`.

    Where an operator is called that was not prepared, which its table of dispatched calls shows, the program is taken
    apart again with that one prepared too.
    """
    if not _IS_KNOWN:
        return exported.run_decompositions(dict(table))
    while True:
        kept = {*table, *_met, *filter(_utils._is_preservable_cia_op, _called(exported.graph_module))}
        others = _composites() - kept
        for dispatched in map(_dispatched, others):
            dispatched.clear()
        try:
            with _known_composites(kept):
                functional = exported.run_decompositions(dict(table))
        except Exception:
            if not _note_met(others):
                raise
        else:
            if not _note_met(others):
                return functional


def _note_met(operators: Collection[OpOverload]) -> bool:
    """Whether one of the operators was called since its table of dispatched calls was cleared; it is prepared then."""
    met = [operator for operator in operators if _dispatched(operator)]
    _met.update(met)
    return bool(met)


def _dispatched(operator: Any) -> dict[Any, Any]:
    """An operator's table of dispatched calls, which is filled anew where it was cleared."""
    return operator._dispatch_cache


def _called(module: fx.GraphModule) -> Iterator[OpOverload]:
    """The operators in a module's graph, and in those inside of it."""
    for part in module.modules():
        if isinstance(part, fx.GraphModule):
            yield from {node.target for node in part.graph.nodes if isinstance(node.target, OpOverload)}


@cache
def _composites() -> Set[OpOverload]:
    """The composite operators that can be kept whole; those that are declared later are seen where they are called."""
    return frozenset(_utils._collect_all_valid_cia_ops())


@contextlib.contextmanager
def _known_composites(operators: Set[OpOverload]) -> Generator[None]:
    """Lets PyTorch believe, for as long as the body runs, that these are all composite operators there are."""
    before = _programs._collect_all_valid_cia_ops
    _programs._collect_all_valid_cia_ops = lambda: operators
    try:
        yield
    finally:
        _programs._collect_all_valid_cia_ops = before
