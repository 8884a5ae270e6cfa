"""What is known of an operator beside its definition: facts that kernels, proofs and prices go by.

A trait is declared once, on the operator's class; every list of operators elsewhere is derived. An operator that
declares nothing is one of which nothing is known, which is always safe: it is computed as it is, alone.

Invariant: the traits of an operator of the table agree with its definition and with what PyTorch does, as tests hold
(``tests/ops/test_traits.py``, ``tests/kernels/test_formats.py``); ``has_channels`` alone is a judgement.
"""

from __future__ import annotations

import enum
from typing import ClassVar


class Rounding(enum.Enum):
    """When a result in floating point may differ from the definition, which is over the reals."""

    NEVER = "never"
    """It only chooses among elements and fixed numbers; or rounding is what the operator means, as of a cast."""
    BEYOND_INTEGERS = "beyond integers"
    """Sums and products of elements, which are exact on integers that are small enough."""
    ANY = "any"
    """Quotients, roots and other functions; also what is not known."""


class Traits:
    """The traits of an operator, with the values for one of which nothing is known."""

    commutative: ClassVar[bool] = False
    """Whether the order of the inputs is without meaning."""
    is_elementwise: ClassVar[bool] = False
    """Whether an output element depends on nothing but the operands' elements at its own index, as broadcast."""
    is_movement: ClassVar[bool] = False
    """Whether every output element is an input element, or a fixed number, whatever the elements are."""
    fills: ClassVar[bool] = False
    """Of data movement: whether some output elements are fixed numbers."""
    is_view: ClassVar[bool] = False
    """Whether PyTorch lets the result share memory with the operand, wherever strides can express it."""
    is_contraction: ClassVar[bool] = False
    """Whether it is a matrix product or convolution: sums of products of the operands' elements, and a bias."""
    accumulates: ClassVar[bool] = False
    """Whether the result adds up many elements; a normalisation, which divides by a sum, does not."""
    multiplies: ClassVar[bool] = False
    """Whether it multiplies or divides elements by others, or by what it computes of several of them."""
    applies: ClassVar[frozenset[str]] = frozenset()
    """The scalar functions (:mod:`taso_py.ops.functions`) that the definition applies to what depends on elements."""
    rounding: ClassVar[Rounding] = Rounding.ANY
    """When a result in floating point may differ from the definition."""
    has_channels: ClassVar[bool] = False
    """Whether it works on images by channel, so that its speed depends on their memory format."""
    keeps_format: ClassVar[bool] = False
    """Whether PyTorch gives a result in the memory format of the images that it reads."""
    reads_formats: ClassVar[bool] = False
    """Whether PyTorch reads images in any memory format as they are; implied by :attr:`keeps_format`."""
    epilogue: ClassVar[str | None] = None
    """The name of an activation that libraries compute while they write a product, as oneDNN calls it.

    Numbers among the operator's attributes are oneDNN's, in the same order.
    """
