"""Tile of PyTorch's plain operators: one call per node, in the memory formats that the operator keeps.

Invariant: every node that can be lowered has a cover here, whatever the device.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from taso_py.backend.plan import IMAGE_RANK, Format, is_formatted
from taso_py.ir.node import Node, Value
from taso_py.ir.operator import Constant
from taso_py.ir.types import DType
from taso_py.kernels.tile import CHANNELS_LAST, DENSE, Cover, Formats, Tile
from taso_py.ops.contraction import Conv2d
from taso_py.ops.movement import Concat, Permute
from taso_py.ops.opaque import Opaque

_OPAQUE_KEEP_FORMAT = frozenset({"aten.clamp.default", "aten.pad.default"})
"""Single-operand calls outside the table that are known to keep the memory format."""
TO_LAST = (0, 2, 3, 1)
"""The order of axes that makes a channels-last value dense without moving anything."""
FROM_LAST = (0, 3, 1, 2)


def _covers(node: Node, device: torch.device) -> Iterator[Cover]:
    yield Cover("aten", (node,), node.inputs, formats=tuple(_formats(node, device)), text=node.op.at_example.text)


def _formats(node: Node, device: torch.device) -> Iterator[Formats]:
    yield DENSE
    order = _order(node)
    if order == TO_LAST:
        yield Format.CHANNELS_LAST, Format.DENSE
    elif order == FROM_LAST:
        yield Format.DENSE, Format.CHANNELS_LAST
    elif (_reads_formats(node) and _has_whole_image(node)) or (device.type != "cpu" and convolves_channels_last(node)):
        yield CHANNELS_LAST if _follows(node) else (Format.CHANNELS_LAST, Format.DENSE)


def convolves_channels_last(node: Node) -> bool:
    """Return whether a GPU computes the node as a channels-last convolution; in double precision cuDNN does not."""
    return isinstance(node.op, Conv2d) and node.types[0].dtype is not DType.F64


def _order(node: Node) -> tuple[int, ...] | None:
    """Return the order of axes if the node permutes a value that has a choice of memory format, else None."""
    if not isinstance(node.op, Permute) or not is_formatted(node.inputs[0]):
        return None
    lead = range(IMAGE_RANK - len(node.op.order))
    return (*lead, *(int(axis) + IMAGE_RANK for axis in node.op.order))


def _reads_formats(node: Node) -> bool:
    op = node.op
    if isinstance(op, Opaque):
        # Circular padding is the only kind with a dense result.
        return op.target in _OPAQUE_KEEP_FORMAT and len(node.inputs) == 1 and "text:circular" not in op.arguments
    return op.reads_formats or op.keeps_format


def _follows(node: Node) -> bool:
    """Return whether the result gets the memory format of the operands; sums and mixed concatenations are dense."""
    if not is_formatted(node.value) or _is_either(node.value):
        return True
    # Values that are both dense and channels last count as dense.
    if isinstance(node.op, Concat):
        return all(is_formatted(value) and not _is_either(value) for value in node.inputs)
    return not node.op.reads_formats


def _is_either(value: Value) -> bool:
    """Return whether a dense value of this shape is channels last at the same time."""
    if value.type.rank != IMAGE_RANK:
        return False
    _, channels, rows, columns = value.type.shape
    return channels == 1 or rows == columns == 1


def _has_whole_image(node: Node) -> bool:
    """Return whether an operand of rank 4 has the full shape, so that it decides the layout of the result."""
    images = [value for value in node.inputs if is_formatted(value)]
    others = [value for value in node.inputs if not is_formatted(value) and not isinstance(value.node.op, Constant)]
    decides = isinstance(node.op, Concat) or all(v.type.rank < IMAGE_RANK or _is_either(v) for v in others)
    return bool(images) and decides


ATEN = Tile("aten", _covers)
"""The tile of PyTorch's plain operators."""
