"""Tile of functions that PyTorch computes in single precision inside: half-precision values, without casts around them.

Models in half precision write ``softmax(x.float()).to(x.dtype)``, and norms likewise. The kernels for half precision
convert each element as they read it and round each result once, as the casts do, but move half as many bytes, once.

Invariant: a kernel is used only if, on values whose squares overflow half precision, it was seen to round once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from taso_py.backend.lowering import lower
from taso_py.backend.plan import BoundKernel
from taso_py.backend.run import call_now
from taso_py.backend.tensors import TORCH_DTYPES
from taso_py.ir.errors import ShapeError
from taso_py.ir.node import Node, Value, make, make_as
from taso_py.ir.operator import Input, Operator
from taso_py.ir.types import DType, TensorType
from taso_py.kernels.probe import example, works_on
from taso_py.kernels.tile import DENSE, Cover, Tile
from taso_py.ops.elementwise import Cast, Gelu, Silu
from taso_py.ops.normalization import LayerNorm, RmsNorm, Softmax

_SCALES: Mapping[type[Operator], float] = {LayerNorm: 600.0, RmsNorm: 600.0, Softmax: 12.0, Gelu: 8.0, Silu: 8.0}
"""The operators, and the range of the numbers on which their kernels are probed."""
_PROBED = (4, 512)
"""Shape of the probe's operand."""
_OFTEN = 0.02
"""Share of results that may be rounded the other way, where single precision leaves them close to the middle."""


def _covers(node: Node, device: torch.device) -> Iterator[Cover]:
    if device.type not in ("cpu", "cuda") or not isinstance(node.op, Cast):
        return
    inner, half = node.inputs[0].node, node.types[0].dtype
    if type(inner.op) not in _SCALES or len(inner.inputs) != 1 or inner.types[0].dtype is not DType.F32:
        return
    first = inner.inputs[0].node
    if not isinstance(first.op, Cast) or first.is_static or half not in (DType.F16, DType.BF16):
        return
    (x,) = first.inputs
    if x.type.dtype is half and _is_fixed(inner) and works_on(device, lambda: rounds_once(inner.op, half, device)):
        narrow = make_as(inner.op, [x], node.types)
        yield Cover(
            "aten.single",
            (first, inner, node),
            (x,),
            formats=(DENSE,),
            binder=lambda _, __: _bound(narrow, device),
            text=f"{inner.op.at_example.text} {half}",
        )


def _is_fixed(node: Node) -> bool:
    """Return whether the axes that a norm is over, of which the kernel is told, have sizes that are known."""
    op = node.op
    axes = node.types[0].shape[-op.axes :] if isinstance(op, LayerNorm | RmsNorm) else ()
    return all(isinstance(axis, int) for axis in axes)


def _bound(node: Node, device: torch.device) -> BoundKernel:
    """Return the one call that computes a node."""
    calls: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []

    def note(target: Any, x: object, *rest: object, **named: object) -> None:
        calls.append((target, rest, named))

    lower(note, node, [None], device)
    ((target, rest, named),) = calls
    return BoundKernel(f"{node.op.name}_in_single", partial(target, **named) if named else target, rest)


@cache
def rounds_once(op: Operator, dtype: DType, device: torch.device) -> bool:
    """Return whether PyTorch's kernel of an operator of one operand rounds nothing but results to half precision."""

    def computed(x: Tensor, dtype: DType) -> Tensor:
        operand: Value = make(Input("x", TensorType(dtype, _PROBED))).value
        (result,) = lower(call_now, make(op, [operand]), [x], device)
        return result

    x = (example(_PROBED, torch.float32, device) * _SCALES[type(op)]).to(TORCH_DTYPES[dtype])
    with torch.no_grad():
        try:
            differs = computed(x, dtype) != computed(x.float(), DType.F32).to(x.dtype)
        except (RuntimeError, NotImplementedError, ShapeError):  # the last for axes that the probe does not have
            return False
    return float(differs.float().mean()) <= _OFTEN


SINGLE = Tile("aten.single", _covers)
"""The tile of norms, softmax and activations between casts to single precision and back."""
