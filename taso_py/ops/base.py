"""Base class of the operators of the table: shape inference and the index-level definition.

Adding an operator is one subclass in one file of this package (see CONTRIBUTING.md).

Invariant: axes in attributes are negative, counted from the end, so that leading axis groups do not move them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from taso_py.ir.errors import ShapeError
from taso_py.ir.operator import Operator
from taso_py.ir.size import Dim
from taso_py.ir.types import Axis, DType, Group, Shape, TensorType
from taso_py.ir.unify import Unifier
from taso_py.ops.scalar import Index, Operand, Scalar


class TensorOperator(Operator):
    """An operator of the table: pure, one output, with a definition."""

    arity: ClassVar[tuple[int, int]] = (1, 1)
    """The least and greatest number of inputs; ``VARIADIC`` for no upper bound."""

    def define(self, operands: Sequence[Operand], out: Index) -> Scalar:
        """Return the output element at index ``out`` (one index per output axis), over the real numbers.

        The operands' types have been accepted by ``infer``.
        """
        raise NotImplementedError

    def legal(self) -> Iterator[Dim]:
        """Yield integers, computed from the attributes alone, that must not be negative."""
        return iter(())

    def fits(self, inputs: Sequence[TensorType]) -> Iterator[Dim]:
        """Yield integers, computed from attributes and sizes, that must not be negative: e.g. a slice is in range.

        Inference checks them where it can; where a size is a symbol it has to take them for granted.
        """
        return iter(())


VARIADIC = 1 << 30


def require(condition: bool, message: str) -> None:
    """Raise ``ShapeError(message)`` unless the condition holds."""
    if not condition:
        raise ShapeError(message)


def check_operands(op: TensorOperator, inputs: Sequence[TensorType]) -> DType:
    """Check number and common element type of the operands; return that type."""
    least, most = op.arity
    require(least <= len(inputs) <= most, f"{op.name} takes {least} to {most} operands, not {len(inputs)}")
    require(len({type_.dtype for type_ in inputs}) == 1, f"{op.name} mixes element types")
    return inputs[0].dtype


def plain_axis(type_: TensorType, axis: int) -> Dim:
    """Return the size of an axis that must exist and must not be a group; ``axis`` is negative."""
    require(-len(type_.shape) <= axis < 0, f"no axis {axis} in {type_}")
    found = type_.shape[axis]
    if isinstance(found, Group):
        raise ShapeError(f"axis {axis} of {type_} is a group")
    return found


def broadcast(left: Shape, right: Shape, unifier: Unifier, why: str) -> Shape:
    """Return the common shape of two operands by the rules of broadcasting; only a literal 1 stretches."""
    if len(left) < len(right):
        left, right = right, left
    missing = len(left) - len(right)
    return left[:missing] + tuple(
        _broadcast_axis(a, b, unifier, why) for a, b in zip(left[missing:], right, strict=True)
    )


def common_shape(shapes: Sequence[Shape], unifier: Unifier, why: str) -> Shape:
    """Return the common shape of several operands by the rules of broadcasting."""
    found = shapes[0]
    for shape in shapes[1:]:
        found = broadcast(found, shape, unifier, why)
    return found


def _broadcast_axis(a: Axis, b: Axis, unifier: Unifier, why: str) -> Axis:
    if a == 1 and not isinstance(b, Group):
        return b
    if b == 1 and not isinstance(a, Group):
        return a
    unifier.equal(a, b, why)
    return a


def broadcast_read(operand: Operand, shape: Shape, out: Sequence[Dim]) -> Scalar:
    """Read an operand at the index ``out`` of the broadcast shape it was stretched to."""
    index = out[len(out) - len(operand.shape) :]
    full = shape[len(shape) - len(operand.shape) :]
    return operand(*(0 if a == 1 and f != 1 else i for a, f, i in zip(operand.shape, full, index, strict=True)))
