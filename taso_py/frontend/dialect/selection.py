"""Import of lookups: embeddings, and indexing with one tensor of integers.

An embedding's ``padding_idx`` matters for gradients only. One that renormalizes what it reads writes to its table
before the lookup, by a call of its own, which stays opaque.

Invariant: whether negative integers count from the end is as in the call: in indexing they do, else they are errors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from taso_py.frontend.call import AtenCall, Result, apply
from taso_py.frontend.dialect.movement import reshaped
from taso_py.ir.node import Value
from taso_py.ops.selection import Take


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


ROWS: Mapping[str, Callable[[AtenCall], Result]] = {
    "aten.embedding.default": _embedding,
    "aten.index_select.default": _index_select,
    "aten.index.Tensor": _index,
}
"""One row per ATen overload."""
