"""A call of an ONNX operator, as the rows that compute it in PyTorch see it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from taso_py.frontend.errors import ImportRefusal

Result: TypeAlias = "Tensor | Sequence[Tensor]"
"""One value, or one per result of an operator that has several."""
Row: TypeAlias = "Callable[[OnnxCall], Result]"
"""From a call to what it gives."""

Known: TypeAlias = "tuple[float, ...]"
"""The elements of a value that is known while the model is read; integers and truth values stay what they are."""


@dataclass(frozen=True)
class OnnxCall:
    """A call of an ONNX operator."""

    kind: str
    """Its name."""
    attributes: Mapping[str, Any]
    """Those that are stated: numbers, strings, tuples of them, tensors."""
    inputs: Sequence[Tensor | None]
    """The operands; None for those that are left out."""
    known: Sequence[Known | None]
    """The elements of operands that are small and do not depend on the model's inputs."""
    results: int
    """How many results are stated."""
    opset: int
    """The version of the operators."""

    def has(self, index: int) -> bool:
        """Whether an operand is given."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def tensor(self, index: int = 0) -> Tensor:
        """An operand."""
        found = self.inputs[index] if index < len(self.inputs) else None
        if found is None:
            raise self.refuse(f"without operand {index}")
        return found

    def optional(self, index: int) -> Tensor | None:
        """An operand that may be left out."""
        return self.inputs[index] if self.has(index) else None

    def tensors(self) -> Sequence[Tensor]:
        """All operands of an operator that takes any number."""
        return [self.tensor(index) for index in range(len(self.inputs))]

    def elements(self, index: int) -> Known:
        """The elements of an operand that has to be known.

        Raises:
            ImportRefusal: it depends on the model's inputs, or is large.
        """
        found = self.known[index] if self.has(index) else None
        if found is None:
            raise self.refuse(f"whose operand {index} is computed from the model's inputs")
        return found

    def integers(self, index: int) -> tuple[int, ...]:
        """The elements of an operand of integers that has to be known."""
        return tuple(int(element) for element in self.elements(index))

    def number(self, index: int) -> float:
        """The only element of an operand that has to be known."""
        (element,) = self.elements(index)
        return element

    def scalar(self, index: int) -> Tensor | float:
        """An operand of rank 0, or of one element beside operands of higher rank, as a number if it is known.

        A number takes the element type of what it meets, which is that of the operand in ONNX too.
        """
        tensor, known = self.tensor(index), self.known[index]
        others = max((t.ndim for at, t in enumerate(self.inputs) if t is not None and at != index), default=0)
        is_number = known is not None and len(known) == 1 and tensor.ndim <= others and tensor.dtype != torch.bool
        return known[0] if is_number and known is not None and math.isfinite(known[0]) else tensor

    def pair(self) -> tuple[Any, Any]:
        """Both operands, one of them as a number if it is one and the other is not."""
        first, second = self.scalar(0), self.scalar(1)
        return (first, second) if isinstance(first, Tensor) else (first, self.tensor(1))

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute."""
        return self.attributes.get(name, default)

    def axis(self, default: int, rank: int | None = None) -> int:
        """The attribute ``axis``, counted from the front."""
        rank = self.tensor().ndim if rank is None else rank
        return int(self.get("axis", default)) % max(rank, 1)

    def refuse(self, why: str) -> ImportRefusal:
        """The error that says why there is no form for this call."""
        return ImportRefusal(f"ONNX operator {self.kind} {why} is not among those that can be read")
