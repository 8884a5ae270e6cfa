"""Operators outside the table: kept as calls, never rewritten.

Invariant: an opaque node holds everything needed to call the original operator, as text and numbers; whether it is
pure was decided at import from the operator's schema.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from taso_py.ir.operator import AttributeValue, Operator
from taso_py.ir.types import TensorType
from taso_py.ir.unify import STRICT, Unifier

View: TypeAlias = tuple[int, tuple[int, ...], tuple[int, ...], int]
"""A strided view of an input: index of the input, sizes, strides and offset, counted from its first element."""


@dataclass(frozen=True)
class Opaque(Operator):
    """A call of the PyTorch operator ``target`` (as ``aten.cumsum.default``).

    ``arguments`` holds positional arguments and ``keywords`` (name, value) pairs; :class:`taso_py.ir.operator.Ref`
    stands where an input of the node goes. Non-tensor values that have no literal form in the grammar are written as
    strings with a prefix, e.g. ``"device:cpu"``; the frontend writes them and the backend reads them. So are graphs
    that the operator takes, in the grammar of graphs.

    A call that writes to its arguments writes to copies of the inputs that ``written`` lists. These copies are
    additional results, after those that the call itself returns. References beyond the inputs are to ``views`` of them.
    """

    name = "opaque"
    target: str
    arguments: tuple[AttributeValue, ...]
    types: tuple[TensorType, ...]
    keywords: tuple[tuple[str, AttributeValue], ...] = ()
    is_pure: bool = True
    written: tuple[int, ...] = ()
    views: tuple[View, ...] = ()

    @property
    def pure(self) -> bool:
        return self.is_pure

    def infer(self, inputs: Sequence[TensorType], unifier: Unifier = STRICT) -> tuple[TensorType, ...]:
        return self.types
