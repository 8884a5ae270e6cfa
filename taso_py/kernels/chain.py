"""Chains: a convolution or matrix product with static weights, and the epilogue that a kernel can fuse into it.

Most libraries compute a batch normalisation, an addition and an activation while they write the result of the product;
the operators they accept differ, the shape of the pattern does not.

Invariant: a chain's nodes form a path from the product to the root; whether others read the inner ones depends on the
graph and is not checked here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from taso_py.backend.plan import BoundKernel, Packs
from taso_py.ir.node import Node, Value, make_as
from taso_py.ir.operator import Constant
from taso_py.ir.types import TensorType
from taso_py.kernels.tile import Cover, Formats
from taso_py.ops.contraction import Conv2d, Linear, Matmul
from taso_py.ops.elementwise import Add
from taso_py.ops.normalization import BatchNorm


@dataclass(frozen=True)
class Chain:
    """A product and its epilogue, in the order in which they are computed."""

    product: Node
    norm: Node | None
    """An inference batch normalisation."""
    other: Value | None
    """The value that is added, of the type of the product."""
    nodes: tuple[Node, ...]
    """All nodes, the product first."""
    activation: Node | None

    @property
    def statics(self) -> tuple[Value, ...]:
        """The weight, the bias if there is one, and the parameters of the normalisation."""
        return (*self.product.inputs[1:], *(self.norm.inputs[1:] if self.norm else ()))

    @property
    def weight(self) -> TensorType:
        """The type of the weight as :meth:`parameters` gives it."""
        type_ = self.product.inputs[1].type
        return replace(type_, shape=type_.shape[::-1]) if isinstance(self.product.op, Matmul) else type_

    @property
    def operands(self) -> tuple[Value, ...]:
        """The values read at run time: the input, and the summand."""
        return (self.product.inputs[0], *((self.other,) if self.other else ()))

    @property
    def rows(self) -> int:
        """The number of vectors that a linear layer is applied to."""
        return math.prod(self.product.inputs[0].type.sizes[:-1])

    @property
    def text(self) -> str:
        """The part of the latency key that depends on the operators.

        A normalisation is not part of it, since it becomes weight and bias; nor is the orientation of a packed weight:
        if a product and a linear layer were measured apart, the search would take the noise between them for a gain.
        """
        has_bias = self.norm is not None or len(self.product.inputs) == 3
        epilogue = ["bias"] * has_bias + ["add"] * (self.other is not None)
        product = Linear.name if isinstance(self.product.op, Matmul) else self.product.op.text
        return " ".join([product, *epilogue, *([self.activation.op.text] if self.activation else ())])

    @property
    def bare(self) -> Chain:
        """The product alone, without a bias."""
        product = make_as(self.product.op, self.product.inputs[:2], self.product.types)
        return Chain(product, None, None, nodes=(product,), activation=None)

    def cover(
        self,
        name: str,
        formats: tuple[Formats, ...],
        bind: Callable[[Chain, Sequence[Tensor], Packs], BoundKernel],
        text: str | None = None,
        *,
        binds_bare: bool = True,
    ) -> Cover:
        """Return the cover of a tile that computes this chain.

        Args:
            name: the tile's name.
            formats: the memory formats to choose from.
            bind: packs the static operands.
            text: the part of the latency key that depends on the operators, if not :attr:`text`.
            binds_bare: true if the tile computes the bare product as well.
        """
        is_bare = len(self.nodes) == 1 and len(self.product.inputs) == 2
        return Cover(
            name,
            self.nodes,
            self.operands,
            formats=formats,
            statics=self.statics,
            packed=self.weight,
            binder=lambda statics, packs: bind(self, statics, packs),
            text=self.text if text is None else text,
            bare=None if is_bare or not binds_bare else lambda: self.bare.cover(name, formats, bind),
        )

    def packed(
        self,
        statics: Sequence[Tensor],
        packs: Packs,
        pack: Callable[..., Tensor],
        *arguments: Any,
        tells_size: bool = True,
    ) -> tuple[Tensor, Tensor | None]:
        """Return weight and bias of :meth:`parameters`, the weight packed.

        Args:
            statics: the static operands.
            packs: the weights that are packed already.
            pack: packs the weight, given the arguments.
            arguments: everything besides the weight that determines how it is packed.
            tells_size: true if the packed tensor knows its size; if not, it counts as much as the weight.
        """
        weight, bias = self.parameters(statics)
        folded = self.norm and (self.norm.op, self.norm.inputs[1:])
        which = pack, repr(arguments), self.product.inputs[1], isinstance(self.product.op, Matmul), folded
        packed = packs.packed(which, lambda: pack(weight, *arguments), None if tells_size else weight.nbytes)
        return packed, None if bias is None else bias.contiguous()  # libraries read it as dense, without a question

    def parameters(self, statics: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
        """Return weight and bias with the normalisation folded in, in the precision of the weight, output axis first.

        A normalised product is ``(x * w + b) * s + t``: the weight becomes ``w * s`` and the bias ``b * s + t``, both
        computed in double precision.
        """
        count = len(self.product.inputs) - 1
        weight, bias = statics[0], statics[1] if count == 2 else None
        if isinstance(self.product.op, Matmul):
            weight = weight.t()
        if self.norm is None:
            return weight, bias
        scale, shift = scale_and_shift(self.norm, statics[count:])
        folded = weight.double() * scale.reshape(-1, *[1] * (weight.dim() - 1))
        return folded.to(weight.dtype), (shift if bias is None else bias.double() * scale + shift).to(weight.dtype)


def scale_and_shift(norm: Node, parameters: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return scale and shift of an inference batch normalisation, in double precision.

    Of ``(x - mean) / sqrt(variance + eps) * gamma + beta`` the parameters are gamma, beta, mean and variance.
    """
    gamma, beta, mean, variance = (tensor.double() for tensor in parameters)
    scale = gamma / torch.sqrt(variance + cast(float, cast(BatchNorm, norm.op).eps))
    return scale, beta - mean * scale


def chains(root: Node) -> Iterator[Chain]:
    """Yield the chains that end with a node."""
    activation, end = (None, root) if root.op.epilogue is None else (root, root.inputs[0].node)
    tail = [] if activation is None else [activation]
    yield from _normed(end, None, tail, activation)
    if isinstance(end.op, Add) and end.inputs[0] != end.inputs[1] and end.inputs[0].type == end.inputs[1].type:
        for this, other in (end.inputs, end.inputs[::-1]):
            yield from _normed(this.node, other, [end, *tail], activation)


def _normed(end: Node, other: Value | None, tail: list[Node], activation: Node | None) -> Iterator[Chain]:
    if _is_product(end):
        yield Chain(end, None, other, nodes=(end, *tail), activation=activation)
    elif is_inference_norm(end):
        product = end.inputs[0].node
        if isinstance(product.op, Conv2d) and _is_product(product):
            yield Chain(product, end, other, nodes=(product, end, *tail), activation=activation)


def _is_product(node: Node) -> bool:
    if not isinstance(node.op, Conv2d | Linear | Matmul):
        return False
    first, *others = node.inputs
    return (
        not first.node.is_static
        and all(value.node.is_static and not isinstance(value.node.op, Constant) for value in others)
        and first.type.rank >= 2
        and others[0].type.rank == (4 if isinstance(node.op, Conv2d) else 2)
        and all(size > 0 for size in (*first.type.sizes, *node.types[0].sizes))
    )


def is_inference_norm(node: Node) -> bool:
    """Return whether a node is a batch normalisation whose parameters are known at build time."""
    return isinstance(node.op, BatchNorm) and all(value.node.is_static for value in node.inputs[1:])
