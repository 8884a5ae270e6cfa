"""Latencies in a compiler that fuses: elementwise operators are computed in the loops that compute their operands.

Inductor makes one kernel of elementwise operators that follow each other, or follow a norm, a softmax or a sum. What
reads the result of a library's call (a product, a convolution) starts a kernel of its own.

Invariant: an operator costs what its kernel takes by itself, or nothing.
"""

from __future__ import annotations

from taso_py.backend.plan import Format
from taso_py.engines.tiles import computes_by_element
from taso_py.ir.node import Node, Value
from taso_py.kernels.chain import is_inference_norm
from taso_py.kernels.tile import Cover
from taso_py.latency.latencies import Latencies
from taso_py.ops.normalization import Attention
from taso_py.ops.opaque import Opaque


class FusedLatencies(Latencies):
    """Latencies of covers in a compiler that fuses elementwise operators into loops."""

    def of_cover(self, cover: Cover, reads: Format) -> float:
        """Return the latency of a cover that reads a memory format; 0 if the loop of an operand computes it too."""
        return 0.0 if _is_fused(cover) else super().of_cover(cover, reads)


def _is_fused(cover: Cover) -> bool:
    """Return whether a cover is an elementwise operator that a loop computes along with its operands."""
    root = cover.root
    if len(cover.nodes) > 1 or not (computes_by_element(root) or is_inference_norm(root)):
        return False
    running = [_source(value) for value in root.inputs if not value.node.is_static]
    return any(node.inputs for node in running) and not any(map(_is_call, running))


def _source(value: Value) -> Node:
    """Return the node that computes a value, seen through operators that move data of one operand."""
    node = value.node
    while node.op.is_movement and len(node.inputs) == 1:
        node = node.inputs[0].node
    return node


def is_library_call(node: Node) -> bool:
    """Return whether a compiler leaves a node to a library: a product, a convolution or attention."""
    return node.op.is_contraction or isinstance(node.op, Attention)


def _is_call(node: Node) -> bool:
    """Return whether a compiler leaves a node to a library, or knows nothing about it."""
    return is_library_call(node) or isinstance(node.op, Opaque)
