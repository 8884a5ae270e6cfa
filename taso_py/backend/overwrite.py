"""Reuse of dead operands' storage for results.

Much of the time of a call on large tensors goes into new memory: allocating it, and moving it into the caches. If the
storage of an elementwise call's operand is dead after the call, the result is written there; so is the result of a
kernel whose summand dies. For finding mistakes, :func:`poison` does the opposite: it destroys every storage as soon as
it is dead, so that a later read shows.

Invariant: only storage that was allocated within the graph is written to, after its last read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch._ops import OpOverload

from taso_py.backend.schema import in_place_form, is_trusted
from taso_py.backend.storage import KERNEL, OVERWRITES, Storages, allocates
from taso_py.ir.types import TensorType

aten = torch.ops.aten

TYPE = "type"
"""The fx ``meta`` key of the type of a node's result."""
OVERWRITING = "overwriting"
"""The fx ``meta`` key of a kernel's function that writes the result to the last operand, if there is one."""
_SAME_CONTENT = (aten.reshape.default, aten.contiguous.default)
"""Calls whose result has exactly the elements of the operand, without gaps or overlaps, as a view or a copy."""
COMMUTE = (aten.add.Tensor, aten.mul.Tensor)
"""Elementwise calls that may take their operands in either order, unless they have other arguments."""


def overwrite_dead(graph: fx.Graph) -> None:
    """Make calls write to an operand that dies there: elementwise calls, and those of kernels that can."""
    storages = Storages(graph)
    for node in graph.nodes:
        form = _form(node)
        source = None if form is None else _dying(node, form, storages)
        if form is not None and source is not None:
            operands = list(node.args)
            operands.insert(form.place, operands.pop(source))
            node.args, node.target = tuple(operands), form.function
            node.meta[OVERWRITES] = form.place
            storages.join(operands[form.place], node)


def poison(module: fx.GraphModule) -> fx.GraphModule:
    """Make a module destroy everything it allocated as soon as it is dead, which must not change its results."""
    storages = Storages(module.graph)
    nodes = list(module.graph.nodes)
    for storage in storages.all():
        if storage.is_private and 0 <= storage.last_read < math.inf:
            with module.graph.inserting_after(nodes[int(storage.last_read)]):
                module.graph.call_function(_destroy, (next(filter(allocates, storage.nodes)),))
    module.recompile()
    return module


def _destroy(value: object) -> None:
    if isinstance(value, Tensor):
        value.fill_(math.nan if value.is_floating_point() or value.is_complex() else 77)


class _Form(NamedTuple):
    """The form of a call that writes to one of its operands."""

    function: Callable[..., Any]
    place: int
    """The position of the operand that it writes to."""
    sources: Sequence[int]
    """The positions of the original call's operands that can take that place."""


def _form(node: fx.Node) -> _Form | None:
    """Return the overwriting form of a call: an elementwise call overwrites its first operand, a kernel its last."""
    if KERNEL in node.meta:
        last, function = len(node.args) - 1, node.meta.get(OVERWRITING)
        return None if function is None else _Form(function, last, [last])
    target = node.target
    if node.op != "call_function" or not isinstance(target, OpOverload) or not is_trusted(target):
        return None
    type_: TensorType | None = node.meta.get(TYPE)
    if type_ is not None and type_.dtype.is_complex:
        # Products are rounded by the order of operands, and otherwise in place where operands lie in another order.
        return None
    function = in_place_form(target) if torch.Tag.pointwise in target.tags and allocates(node) else None
    commutes = target in COMMUTE and not node.kwargs
    return None if function is None else _Form(function, 0, range(min(len(node.args), 1 + commutes)))


def _dying(node: fx.Node, form: _Form, storages: Storages) -> int | None:
    """Return the position of an operand that the form may overwrite, or None."""
    for source in form.sources:
        operand = node.args[source]
        if isinstance(operand, fx.Node) and _may_take(node, operand, storages):
            return source
    return None


def _may_take(node: fx.Node, operand: fx.Node, storages: Storages) -> bool:
    storage, type_ = storages.of(operand), node.meta.get(TYPE)
    operands, source = (*node.args, *node.kwargs.values()), operand
    while source.target in _SAME_CONTENT:
        source = source.all_input_nodes[0]
    return (
        storage.is_private
        and storage.last_read <= storages.place[node]
        # The operand is the only value with this storage that the call reads, and it reads it once.
        and sum(isinstance(other, fx.Node) and storages.of(other) is storage for other in operands) == 1
        and (allocates(source) or OVERWRITES in source.meta)
        and type_ is not None
        and type_ == operand.meta.get(TYPE)
    )
