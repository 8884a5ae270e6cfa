"""Import of lookups: embeddings, indexing with one tensor of integers, and elements of each row.

An embedding's ``padding_idx`` matters for gradients only. One that renormalizes what it reads writes to its table
before the lookup, by a call of its own, which stays opaque.

Invariant: whether negative integers count from the end is as in the call: in indexing they do, else they are errors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from taso_py.frontend.call import AtenCall, Result, apply
from taso_py.frontend.dialect.movement import reshaped, sliced
from taso_py.ir.node import Value
from taso_py.ops.selection import Gather, Take


def _embedding(call: AtenCall) -> Result:
    return apply(Take(-2), call.value("weight"), call.value("indices"))


def _index_select(call: AtenCall) -> Result:
    x, index = call.value("self"), call.value("index")
    axis = call.axis("dim", x)
    return apply(Take(axis), x, index if index.type.rank else reshaped(index, (1,)))


def _index(call: AtenCall) -> Result:
    x = call.value("self")
    found = [(axis, index) for axis, index in enumerate(call["indices"]) if index is not None]
    call.require(len(found) == 1)
    ((axis, index),) = found
    call.require(isinstance(index, Value))
    return apply(Take(axis - x.type.rank, 1), x, index)


def _gather(call: AtenCall) -> Result:
    """Import elements that integers choose; of longer axes than those of the integers, the first ones."""
    x, index, axis = call.value("self"), call.value("index"), call.axis("dim", call.value("self"))
    call.require(x.type.rank == index.type.rank)
    for other in range(-x.type.rank, 0):
        size, count = x.type.dims[other], index.type.dims[other]
        if other != axis and size != count:
            call.require(isinstance(size, int) and isinstance(count, int))
            x = sliced(x, other, 0, count)
    return apply(Gather(axis), x, index)


ROWS: Mapping[str, Callable[[AtenCall], Result]] = {
    "aten.embedding.default": _embedding,
    "aten.index_select.default": _index_select,
    "aten.index.Tensor": _index,
    "aten.gather.default": _gather,
}
"""One row per ATen overload."""
