"""Traits of nodes as kernels ask for them: of the operator, or of a call outside the table that is known by name.

Invariant: of calls outside the table nothing is known but what stands in one row here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from taso_py.ir.node import Node
from taso_py.ops.opaque import Opaque


@dataclass(frozen=True)
class _Known:
    """What :class:`taso_py.ir.traits.Traits` says of operators, of a call with one operand."""

    keeps_format: bool = False
    epilogue: str | None = None


_KNOWN: Mapping[str, _Known] = {
    "aten.hardswish.default": _Known(keeps_format=True, epilogue="hardswish"),
    "aten.hardsigmoid.default": _Known(keeps_format=True, epilogue="hardsigmoid"),
    "aten.hardtanh.default": _Known(keeps_format=True),
    "aten.clamp.default": _Known(keeps_format=True),
    "aten.pad.default": _Known(keeps_format=True),
}
_NOTHING = _Known()


def _known(node: Node) -> _Known:
    op = node.op
    # Of all ways to pad, that one makes a dense result.
    if not isinstance(op, Opaque) or len(node.inputs) != 1 or "text:circular" in op.arguments:
        return _NOTHING
    return _KNOWN.get(op.target, _NOTHING)


def keeps_format(node: Node) -> bool:
    """Whether PyTorch gives a node's result in the memory format of the images that it reads."""
    return node.op.keeps_format or _known(node).keeps_format


def epilogue(node: Node) -> str | None:
    """The name of an activation that libraries compute while they write a product; None for any other node."""
    return node.op.epilogue or _known(node).epilogue


def is_elementwise(node: Node) -> bool:
    """Whether a node computes a function of its operands' elements at equal places."""
    return (node.op.is_elementwise and not node.op.is_movement) or epilogue(node) is not None
