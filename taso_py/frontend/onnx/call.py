"""One call of an ONNX operator, as the rows that compute it in PyTorch receive it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from taso_py.frontend.errors import ImportRefusal

Result: TypeAlias = "Tensor | Sequence[Tensor]"
"""Return type of a row: one tensor, or one per result of an operator that has several."""
Row: TypeAlias = "Callable[[OnnxCall], Result]"
"""Computes an ONNX call in PyTorch."""

Known: TypeAlias = "tuple[float, ...]"
"""Elements of a value that is known while the model is read; integers and truth values keep their types."""


@dataclass(frozen=True)
class OnnxCall:
    """A call of an ONNX operator."""

    kind: str
    """Name of the operator."""
    attributes: Mapping[str, Any]
    """Attributes that are stated: numbers, strings, tuples of these, tensors."""
    inputs: Sequence[Tensor | None]
    """The operands; None for those that are omitted."""
    known: Sequence[Known | None]
    """Elements of operands that are small and do not depend on the model's inputs; None for all others."""
    results: int
    """Number of results that are stated."""
    opset: int
    """Version of the operator set."""

    def has(self, index: int) -> bool:
        """Return whether an operand is given."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def tensor(self, index: int = 0) -> Tensor:
        """Return an operand that must be given."""
        found = self.inputs[index] if index < len(self.inputs) else None
        if found is None:
            raise self.refuse(f"without operand {index}")
        return found

    def optional(self, index: int) -> Tensor | None:
        """Return an operand, or None if it is omitted."""
        return self.inputs[index] if self.has(index) else None

    def tensors(self) -> Sequence[Tensor]:
        """Return all operands of a variadic operator."""
        return [self.tensor(index) for index in range(len(self.inputs))]

    def elements(self, index: int) -> Known:
        """Return the elements of an operand that must be known.

        Raises:
            ImportRefusal: it depends on the model's inputs, or is large.
        """
        found = self.known[index] if self.has(index) else None
        if found is None:
            raise self.refuse(f"whose operand {index} is computed from the model's inputs")
        return found

    def integers(self, index: int) -> tuple[int, ...]:
        """Return the elements of an operand of integers that must be known."""
        return tuple(int(element) for element in self.elements(index))

    def number(self, index: int) -> float:
        """Return the only element of an operand that must be known."""
        (element,) = self.elements(index)
        return element

    def scalar(self, index: int) -> Tensor | float:
        """Return an operand as a number if it is known and has rank 0, or one element beside operands of higher rank.

        A number takes the element type of the other operand, which is its own type in ONNX too.
        """
        tensor, known = self.tensor(index), self.known[index]
        others = max((t.ndim for at, t in enumerate(self.inputs) if t is not None and at != index), default=0)
        is_number = known is not None and len(known) == 1 and tensor.ndim <= others and tensor.dtype != torch.bool
        return known[0] if is_number and known is not None and math.isfinite(known[0]) else tensor

    def pair(self) -> tuple[Any, Any]:
        """Return both operands, at most one of them as a number."""
        first, second = self.scalar(0), self.scalar(1)
        return (first, second) if isinstance(first, Tensor) else (first, self.tensor(1))

    def get(self, name: str, default: Any = None) -> Any:
        """Return an attribute."""
        return self.attributes.get(name, default)

    def axis(self, default: int, rank: int | None = None) -> int:
        """Return the attribute ``axis``, counted from the front."""
        rank = self.tensor().ndim if rank is None else rank
        return int(self.get("axis", default)) % max(rank, 1)

    def refuse(self, why: str) -> ImportRefusal:
        """Return the error that says why this call cannot be imported."""
        return ImportRefusal(f"ONNX operator {self.kind} {why} is not supported")
