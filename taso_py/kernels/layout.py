"""Memory layout of a node's operands.

A value that a view operator computes (permute, slice, expand, reshape) shares memory with its operand and is read with
strides, which affects the speed of kernels. All other values are dense, in the order of their memory format.

Invariant: the tensors made here have the element type, shape and strides that the value has at run time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from taso_py.backend.lowering import lower
from taso_py.backend.plan import IMAGE_RANK, MEMORY_FORMATS, Format
from taso_py.backend.random_tensors import uniform
from taso_py.backend.run import call_now
from taso_py.backend.schema import storage_of
from taso_py.backend.tensors import TORCH_DTYPES
from taso_py.ir.node import Node, Value
from taso_py.ir.operator import Constant
from taso_py.ir.types import TensorType
from taso_py.ops.movement import Reshape, Slice

_META = torch.device("meta")


def operand(value: Value, make: Callable[[TensorType], Tensor], format_: Format = Format.DENSE) -> Tensor:
    """Return a tensor laid out as the value is, with content from ``make``, which gives a dense tensor of a type.

    Channels-last values come from a kernel or a conversion; of views only slices are taken of them.
    """
    views: list[Node] = []
    while _is_viewed(value.node, format_) and not isinstance(value.node.inputs[0].node.op, Constant):
        views.append(value.node)
        value = value.node.inputs[0]
    tensor = make(value.type)
    if tensor.dim() == IMAGE_RANK and not value.node.is_static:
        tensor = tensor.contiguous(memory_format=MEMORY_FORMATS[format_])
    for node in reversed(views):
        (tensor,) = lower(call_now, node, [tensor], tensor.device)
    return tensor


def _is_viewed(node: Node, format_: Format) -> bool:
    return node.op.is_view if format_ is Format.DENSE else isinstance(node.op, Slice)


class Layouts:
    """Layout signatures of values, remembered per node."""

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[Node, dict[tuple[int, Format], str]] = WeakKeyDictionary()

    def signature(self, values: Sequence[Value], format_: Format = Format.DENSE) -> str:
        """Return operands' types and strides, and which are weights: the part of a latency key besides the operator."""
        return ", ".join(("weight " if is_weight(value) else "") + self._text(value, format_) for value in values)

    def is_view(self, node: Node) -> bool:
        """Return whether a node moves nothing: its result shares memory with its operand."""
        if not node.op.is_view or isinstance(node.inputs[0].node.op, Constant):
            return False
        if not isinstance(node.op, Reshape):
            return True
        tensor = operand(node.inputs[0], _meta)
        (result,) = lower(call_now, node, [tensor], _META)
        return storage_of(result) == storage_of(tensor)

    def _text(self, value: Value, format_: Format) -> str:
        op = value.node.op
        if isinstance(op, Constant):
            return op.text
        is_plain = format_ is Format.DENSE or value.type.rank != IMAGE_RANK or value.node.is_static
        if is_plain and not op.is_view:
            return value.type.at_example.text
        known, place = self._known.setdefault(value.node, {}), (value.output, format_)
        if place not in known:
            tensor = operand(value, _meta, format_)
            strides = "" if tensor.is_contiguous() else ":" + "x".join(map(str, tensor.stride()))
            known[place] = value.type.at_example.text + strides
        return known[place]


def is_weight(value: Value) -> bool:
    """Return whether a value is read from memory as weights are: it depends on weights only, and is not a number."""
    return value.node.is_static and not isinstance(value.node.op, Constant)


def _meta(type_: TensorType) -> Tensor:
    return torch.empty(type_.sizes, dtype=TORCH_DTYPES[type_.dtype], device=_META)


def random_operands(
    values: Sequence[Value],
    device: torch.device,
    format_: Format = Format.DENSE,
    *,
    seed: int = 0,
    least: float = 0.1,
    scale: float = 1.0,
) -> list[Tensor | None]:
    """Make tensors for values, None for constants.

    Numbers are moderate and, unless something else is asked for, positive, so that nothing becomes slow by overflow,
    NaN or denormals; integers are zero, which is a valid index into anything.

    Args:
        values: the values that the tensors stand for.
        device: the tensors' device.
        format_: the tensors' memory format.
        seed: of the random numbers.
        least: the least random number; the largest is greater by one.
        scale: a factor applied to the numbers afterwards.
    """
    generator = torch.Generator().manual_seed(seed)

    def make(type_: TensorType) -> Tensor:
        dtype = TORCH_DTYPES[type_.dtype]
        if not dtype.is_floating_point:
            return torch.zeros(type_.sizes, dtype=dtype, device=device)
        numbers = (uniform(type_.sizes, generator, torch.float32) + least) * scale
        return numbers.to(device=device, dtype=dtype)

    return [None if isinstance(value.node.op, Constant) else operand(value, make, format_) for value in values]
