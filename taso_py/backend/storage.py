"""Storage analysis of an fx graph: which results share storage, and the last read of each storage.

Schemas of PyTorch's operators say which results are views of which operands; only results of operators known to
allocate certainly have storage of their own. A class of nodes that may share storage is *private* if all of it was
allocated within the graph.

Invariant: two nodes that share storage at run time are in one class; an unknown call may return a view of any operand.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import fx
from torch._ops import OpOverload

from taso_py.backend.schema import is_mutable, is_trusted, may_alias, target_of

_ALLOCATING = frozenset(
    {
        *("conv2d", "linear", "matmul", "mm", "bmm", "addmm", "_addmm_activation", "batch_norm", "layer_norm"),
        *("rms_norm", "group_norm", "softmax", "_softmax", "mean", "sum", "cat", "stack", "clone", "embedding"),
        *("index", "index_select", "baddbmm", "linalg_vector_norm", "conv3d", "conv_transpose2d", "flip"),
        *("cumsum", "gather", "hardswish"),
        *("max_pool2d", "avg_pool2d", "adaptive_avg_pool2d", "upsample_nearest2d", "upsample_bilinear2d"),
        "scaled_dot_product_attention",
    }
)
"""ATen operators not tagged as elementwise whose result is always new, whatever the operands."""

_MAY_RETURN_OPERAND = frozenset({"conj_physical"})
"""Elementwise operators that may return their operand itself, although their schemas do not say so."""

COMPUTES = "computes"
"""The name of the submodule that computes all outputs, in a module that is built around it; they are new."""
KERNEL = "kernel"
"""The fx ``meta`` key of the name of the kernel that a node calls."""

OVERWRITES = "overwrites"
"""The fx ``meta`` key of the position of the argument that a node's result is written to."""


@dataclass(eq=False)
class Storage:
    """A class of nodes that may share storage."""

    is_private: bool
    """True if all of it was allocated within the graph."""
    nodes: list[fx.Node]
    last_read: float
    """The position in the graph of the last node that reads a node of the class."""


class Storages:
    """The storage classes of a graph."""

    def __init__(self, graph: fx.Graph) -> None:
        self.place = {node: place for place, node in enumerate(graph.nodes)}
        self._of: dict[fx.Node, Storage] = {}
        for node in graph.nodes:
            is_new = allocates(node)
            reads = (math.inf if user.op == "output" else self.place[user] for user in node.users)
            # A call that is no more than a view, or new, is as private as its operands.
            is_private = is_new or OVERWRITES in node.meta or (_is_known(node) and bool(node.all_input_nodes))
            self._of[node] = Storage(is_private, [node], max(reads, default=-1))
            for operand in () if is_new else _may_share(node):
                self.join(node, operand)

    def of(self, node: fx.Node) -> Storage:
        """Return the class of a node."""
        return self._of[node]

    def all(self) -> list[Storage]:
        """Return all classes."""
        return list(dict.fromkeys(self._of.values()))

    def join(self, one: fx.Node, other: fx.Node) -> None:
        """Merge the classes of two nodes."""
        first, second = self._of[one], self._of[other]
        if first is not second:
            first.nodes += second.nodes
            first.is_private &= second.is_private
            first.last_read = max(first.last_read, second.last_read)
            self._of.update(dict.fromkeys(second.nodes, first))


def allocates(node: fx.Node) -> bool:
    """Return whether a call's result certainly has storage of its own."""
    if node.op == "call_module":
        return node.target == COMPUTES
    if node.op != "call_function" or OVERWRITES in node.meta:
        return False
    if KERNEL in node.meta:
        return True
    target = target_of(node)
    if not isinstance(target, OpOverload) or not is_trusted(target) or is_mutable(target) or may_alias(target):
        return False
    name = target.overloadpacket.__name__
    return (torch.Tag.pointwise in target.tags and name not in _MAY_RETURN_OPERAND) or name in _ALLOCATING


def _may_share(node: fx.Node) -> Sequence[fx.Node]:
    """Return the operands whose storage the result of a call may share."""
    overwritten = node.args[node.meta[OVERWRITES]] if OVERWRITES in node.meta else None
    return [overwritten] if isinstance(overwritten, fx.Node) else node.all_input_nodes


def _is_known(node: fx.Node) -> bool:
    """Return whether a call returns only its operands' storage or new storage."""
    target = target_of(node)
    return target is operator.getitem or (isinstance(target, OpOverload) and is_trusted(target))
