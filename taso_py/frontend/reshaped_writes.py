"""Writes through calls that return a view for some memory layouts and a copy for others, or that repeat elements.

An export records what happened for the example inputs of a ``reshape``: the argument is written to, or it is not. For
an argument that lies otherwise in memory the original may do the opposite, which its graph cannot. And of elements of
an ``expand`` that are one in memory, PyTorch's functional form adds up what a write changes in each.

Invariant: what a program that passes writes to does not depend on the layout of its arguments, and is written once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from taso_py.backend.schema import bind, is_mutable, overlaps_itself, written_arguments
from taso_py.frontend.higher_order import view_source
from taso_py.frontend.source import refuse

_aten = torch.ops.aten
_RESHAPES = (_aten.reshape, _aten.reshape_as, _aten.flatten, _aten.ravel, _aten.contiguous)
_LAYOUT_DECIDES = frozenset(getattr(packet, name) for packet in _RESHAPES for name in packet.overloads())


def check_reshaped_writes(exported: ExportedProgram) -> None:
    """Refuse writes that reach an argument or not, depending on how it lies in memory.

    Raises:
        ImportRefusal: there is one.
    """
    given = set(exported.graph_signature.user_inputs)
    for node, written in _writes(exported.graph):
        if _may_reach(written, given):
            problem = "writes to what is a view of an argument or a copy of it, depending on its memory layout"
            refuse(node, problem, "use view in place of reshape and flatten, or clone what is written to")


def check_expanded_writes(graph: fx.Graph) -> None:
    """Refuse writes to elements that are one in memory, as those of an expanded value are.

    Raises:
        ImportRefusal: there is one.
    """
    for node, written in _writes(graph):
        value = written.meta.get("val")
        if isinstance(value, Tensor) and overlaps_itself(value):
            problem = "writes to elements of an expanded value that are one in memory"
            refuse(node, problem, "write to it before it is expanded, or clone what is expanded")


def _writes(graph: fx.Graph) -> Iterator[tuple[fx.Node, fx.Node]]:
    """Yield the calls that write to their arguments, each with a value that it writes to."""
    for node in graph.nodes:
        overload = node.target
        if isinstance(overload, OpOverload) and is_mutable(overload):
            arguments = bind(overload, node.args, node.kwargs)
            for written in pytree.tree_leaves([arguments[name] for name in written_arguments(overload)]):
                if isinstance(written, fx.Node):
                    yield node, written


def _may_reach(node: fx.Node, given: set[Any]) -> bool:
    """Return whether a value is a view of one of these inputs for some of its layouts and a copy for others."""
    is_uncertain = False
    while (source := view_source(node)) is not None:
        is_uncertain = is_uncertain or (node.target in _LAYOUT_DECIDES and not _is_always_view(source, node))
        node = source
    return is_uncertain and node.op == "placeholder" and node.name in given


def _is_always_view(source: fx.Node, reshaped: fx.Node) -> bool:
    """Return whether a reshape is a view whatever the layout: it adds and drops axes of size one, and splits others."""
    one, other = source.meta.get("val"), reshaped.meta.get("val")
    if not isinstance(one, Tensor) or not isinstance(other, Tensor) or reshaped.target is _aten.contiguous.default:
        return False
    before, after = (_kept_sizes(tensor) for tensor in (one, other))
    if before == after:
        return True
    return all(size.isdecimal() for size in (*before, *after)) and _splits([*map(int, before)], [*map(int, after)])


def _kept_sizes(tensor: Tensor) -> list[str]:
    return [str(size) for size in tensor.shape if str(size) != "1"]


def _splits(before: Sequence[int], after: Sequence[int]) -> bool:
    """Return whether sizes are others split into factors, in order."""
    remaining = list(after)
    for size in before:
        product = 1
        while product < size and remaining:
            product *= remaining.pop(0)
        if product != size:
            return False
    return not remaining
