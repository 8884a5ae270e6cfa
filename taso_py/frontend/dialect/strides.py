"""Import of calls whose result depends on the operand's strides, or that refuse a conjugate view.

Invariant: such a call gets its operand with the strides it has in the original, however the nodes before it are
rewritten: by an opaque ``contiguous``, which no rule removes and which costs nothing where the operand is contiguous
already.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from taso_py.backend.bits import may_have_bits
from taso_py.backend.tensors import encode
from taso_py.frontend.call import AtenCall, Result, apply
from taso_py.ir.node import Value
from taso_py.ir.operator import Ref
from taso_py.ir.size import Dim, is_never_negative
from taso_py.ops.layout import contiguous, in_order, permuted
from taso_py.ops.opaque import Opaque


def fixed_layout(x: Value, layout: Tensor) -> Value:
    """Return the value with the strides of a given tensor, or as it is if that tensor is not dense."""
    order = memory_order(layout)
    return in_order(x, None if order is None else tuple(order))


def without_bits(x: Value) -> Value:
    """Return the value, resolved if a rewrite could turn it into a conjugate or negative view."""
    if may_have_bits(x):
        for target in ("aten.resolve_conj.default", "aten.resolve_neg.default"):
            x = apply(Opaque(target, (Ref(0),), (x.type,)), x)
    return x


def _as_strided(call: AtenCall) -> Result:
    """Import a read by strides as a function of the operand's elements in memory order, if it stays within."""
    x = call.value("self")
    order = memory_order(call.layouts[x])
    call.require(not x.type.open or (order is not None and _is_dense(x, call.strides(x), order)))
    # An offset counts from where the storage begins; none is where the operand begins.
    call.require(call["storage_offset"] is None or call.layouts[x].storage_offset() == 0)
    size, stride, offset = call["size"], call["stride"], call["storage_offset"]
    last, elements = offset or 0, 1
    for extent, step in zip(size, stride, strict=True):
        last = last + (extent - 1) * step
    for extent in x.type.dims:
        elements = elements * extent
    call.require(order is not None and (0 in size or is_never_negative(elements - 1 - last)))
    rank = x.type.rank
    dense = contiguous(permuted(without_bits(x), [axis - rank for axis in order or ()]))
    arguments = (Ref(0), tuple(size), tuple(stride), offset)
    return apply(Opaque("aten.as_strided.default", arguments, call.types), dense)


def _is_dense(x: Value, strides: Sequence[Dim] | None, order: Sequence[int]) -> bool:
    """Return whether elements are dense in memory in this order of axes, for all open sizes."""
    step: Dim = 1
    for axis in reversed(order):
        if strides is None or (x.type.dims[axis] != 1 and strides[axis] != step):
            return False
        step = step * x.type.dims[axis]
    return True


def memory_order(tensor: Tensor) -> list[int] | None:
    """Return the axes from outermost to innermost in memory; None unless the tensor is dense."""
    order = sorted(range(tensor.dim()), key=lambda axis: (-tensor.stride(axis), -tensor.shape[axis]))
    return order if tensor.permute(order).is_contiguous() else None


def _reinterpreted(call: AtenCall) -> Result:
    """Import a view of the bits as another type, which needs a dense last axis."""
    x = call.value("self")
    call.require(call.layouts[x].is_contiguous())
    others = [encode(value) for name, value in call.arguments.items() if name != "self"]
    return apply(Opaque(str(call.overload), (Ref(0), *others), call.types), contiguous(without_bits(x)))


def _as_real(call: AtenCall) -> Result:
    return apply(Opaque(str(call.overload), (Ref(0),), call.types), without_bits(call.value("self")))


ROWS: Mapping[str, Callable[[AtenCall], Result]] = {
    "aten.as_strided.default": _as_strided,
    "aten.view.dtype": _reinterpreted,
    "aten.view_as_complex.default": _reinterpreted,
    "aten.view_as_real.default": _as_real,
}
"""One row per ATen overload."""

NEEDS_ROW = frozenset({"aten.as_strided.default", "aten.as_strided_scatter.default", "aten.as_strided_copy.default"})
"""Overloads that would be wrong, not only slow, after a change of layout; refused where their row does not apply."""
