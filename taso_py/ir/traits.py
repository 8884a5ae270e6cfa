"""Operator traits: facts besides the definition that kernels, proofs and prices rely on.

A trait is declared once, on the operator's class; every list of operators elsewhere is derived. An operator that
declares nothing is one of which nothing is known, which is always safe: it is computed as it is, alone.

Invariant: the traits of an operator of the table agree with its definition and with what PyTorch does, as tests hold
(``tests/ops/test_traits.py``, ``tests/kernels/test_formats.py``); ``has_channels`` alone is a judgement.
"""

from __future__ import annotations

import enum
from typing import ClassVar


class Rounding(enum.Enum):
    """The cases in which a floating-point result may differ from the definition, which is over the reals."""

    NEVER = "never"
    """No rounding: elements are only selected or fixed numbers; or rounding is the meaning itself, as in a cast."""
    BEYOND_INTEGERS = "beyond integers"
    """Sums and products of elements, which are exact on small enough integers."""
    ANY = "any"
    """Quotients, roots and other functions; also the default for unknown operators."""


class Traits:
    """The traits of an operator; the defaults are those of an operator of which nothing is known."""

    commutative: ClassVar[bool] = False
    """True if the order of the inputs does not matter."""
    is_elementwise: ClassVar[bool] = False
    """True if an output element depends only on the operands' elements at its own (broadcast) index."""
    is_movement: ClassVar[bool] = False
    """True if every output element is an input element or a fixed number, whatever the elements are."""
    fills: ClassVar[bool] = False
    """For data movement: true if some output elements are fixed numbers."""
    is_view: ClassVar[bool] = False
    """True if PyTorch lets the result share memory with the operand wherever strides can express it."""
    is_contraction: ClassVar[bool] = False
    """True for matrix products and convolutions: sums of products of the operands' elements, and a bias."""
    accumulates: ClassVar[bool] = False
    """True if the result adds up many elements; false for a normalisation, which divides by a sum."""
    multiplies: ClassVar[bool] = False
    """True if it multiplies or divides elements by others, or by something computed from several of them."""
    applies: ClassVar[frozenset[str]] = frozenset()
    """The scalar functions (:mod:`taso_py.ops.functions`) that the definition applies to element-dependent values."""
    reads_truth: ClassVar[bool] = False
    """True if operands are truth values, or may be."""
    reads_index: ClassVar[bool] = False
    """True if the last operand is a tensor of integers that choose elements of the others."""
    rounding: ClassVar[Rounding] = Rounding.ANY
    """The cases in which a floating-point result may differ from the definition."""
    has_channels: ClassVar[bool] = False
    """True if it works on images by channel, so that its speed depends on their memory format."""
    keeps_format: ClassVar[bool] = False
    """True if PyTorch gives the result in the memory format of the images it reads."""
    reads_formats: ClassVar[bool] = False
    """True if PyTorch reads images in any memory format without conversion; implied by :attr:`keeps_format`."""
    epilogue: ClassVar[str | None] = None
    """oneDNN's name of the activation, if libraries can fuse it into the kernel of a product.

    Numbers among the operator's attributes are oneDNN's, in the same order.
    """
