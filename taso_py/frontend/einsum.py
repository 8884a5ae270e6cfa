"""Sums over products of two tensors, as one product of matrices where that is what they are.

PyTorch views the operands of an einsum under shapes of its own before it multiplies them. Here the axes that both
operands and the result have stay axes, so that what is around the product is seen to be so: attention, for example.

Invariant: what is computed is what PyTorch computes, bit for bit and in the same memory layout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class MatrixProduct:
    """The axes of the two operands and the result of an einsum, a letter each, as those of a product of matrices."""

    operands: tuple[str, str]
    result: str
    batch: str
    """Axes that all three have, in the result's order; at least one."""
    row: str
    """The axis of the first operand and the result."""
    column: str
    """The axis of the second operand and the result."""
    summed: str
    """The axis of both operands that the result lacks."""

    def fits(self, left: Tensor, right: Tensor) -> bool:
        """Return whether two tensors have these axes, of equal sizes where they share them: none is to be repeated."""
        if any(x.dim() != len(axes) for x, axes in zip((left, right), self.operands, strict=True)):
            return False
        sizes = [dict(zip(axes, x.shape, strict=True)) for x, axes in zip((left, right), self.operands, strict=True)]
        return all(sizes[0][letter] == sizes[1][letter] for letter in self.batch + self.summed)

    def apply(self, left: Tensor, right: Tensor) -> Tensor:
        """Return the product of two tensors, which fit."""
        first = _arranged(left, self.operands[0], self.batch, self.row, self.summed)
        second = _arranged(right, self.operands[1], self.batch, self.summed, self.column)
        axes = self.batch + self.row + self.column
        return torch.matmul(first, second).permute([axes.index(letter) for letter in self.result])


def _arranged(x: Tensor, axes: str, batch: str, first: str, second: str) -> Tensor:
    """Return a tensor as matrices; where that exchanges their axes, this is a transposition of its own."""
    if axes.index(first) < axes.index(second):
        return x.permute([axes.index(letter) for letter in batch + first + second])
    return x.permute([axes.index(letter) for letter in batch + second + first]).mT


def as_product(equation: str) -> MatrixProduct | None:
    """Return the product of matrices that an equation says, if it is one of as many as the batch has.

    PyTorch multiplies two single matrices by another kernel than we would.
    """
    operands, arrow, result = equation.replace(" ", "").partition("->")
    letters = operands.split(",")
    parts = (*letters, result)
    if not arrow or len(letters) != 2 or any(len(set(part)) < len(part) or not part.isalpha() for part in parts):
        return None
    first, second = map(set, letters)
    batch = "".join(letter for letter in result if letter in first & second)
    row, column = ((own - other) & set(result) for own, other in ((first, second), (second, first)))
    summed = (first & second) - set(result)
    is_whole = first | second == {*batch, *row, *column, *summed}
    if not batch or not is_whole or not len(row) == len(column) == len(summed) == 1:
        return None
    return MatrixProduct((letters[0], letters[1]), result, batch, *row, *column, *summed)


def einsum(
    equation: str, operands: Sequence[Tensor], *, path: Sequence[int] | None = None, otherwise: Callable[..., Tensor]
) -> Tensor:
    """Return an einsum as a product of matrices, or as ``otherwise`` takes it apart."""
    product = as_product(equation) if len(operands) == 2 else None
    if product is None or not product.fits(*operands):
        return otherwise(equation, operands, path=path)
    return product.apply(*operands)
