"""Import of assertions, and of the numbers read from tensors that only assertions use.

An export states what it assumes as assertions on tensor metadata and on numbers (``item``, comparisons between them).

Invariant: an assertion disappears only where it holds for every input of the imported types; any other is an effect. A
number read from a tensor becomes a tensor of rank 0, in Python's precision, so that comparisons come out the same.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import SymBool, SymInt, Tensor, fx
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from taso_py.frontend.call import apply
from taso_py.frontend.source import refuse
from taso_py.ir.node import Node, Value
from taso_py.ir.operator import Constant, Operator, Ref
from taso_py.ir.types import DType, TensorType
from taso_py.ops.elementwise import Add, Cast, Mul, Sub
from taso_py.ops.movement import Reshape
from taso_py.ops.opaque import Opaque

aten = torch.ops.aten

Effect: TypeAlias = Callable[[Opaque, Sequence[Value]], Node]
"""Appends an effect to the graph."""

_RANGES = (aten.sym_constrain_range.default, aten.sym_constrain_range_for_size.default)
_ADVICE = "keep the computation in tensors"


@dataclass(frozen=True)
class TensorNumber:
    """A number that the program read from a tensor, as a tensor of rank 0 and type f64, i64 or bool."""

    value: Value


def is_redundant_assertion(node: fx.Node) -> bool:
    """Return whether a node asserts only what the types imply, open sizes and their ranges included."""
    if node.target in (aten._assert_scalar.default, *_RANGES):
        condition = node.args[0]
        # The importer refuses conditions on open sizes that are not true of all.
        val = condition.meta["val"] if isinstance(condition, fx.Node) else None
        return condition is True or (isinstance(val, SymBool | SymInt) and not free_unbacked_symbols(val))
    if node.target is not aten._assert_tensor_metadata.default:
        return False
    names = ("a", "size", "stride", "dtype")
    given: dict[str, Any] = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    tensor: Tensor = given["a"].meta["val"]
    size, device = given.get("size"), given.get("device")
    return (
        given.get("stride") is None
        and (size is None or list(tensor.shape) == list(size))
        and given.get("dtype") in (None, tensor.dtype)
        and given.get("layout") in (None, tensor.layout)
        and (device is None or torch.device(device).type == tensor.device.type)
    )


def import_number(node: fx.Node, env: MutableMapping[fx.Node, Any], effect: Effect) -> bool:
    """Import a node that computes with numbers read from tensors; return False for any other node.

    Raises:
        ImportRefusal: a number goes into something other than comparisons and assertions.
    """
    if node.target in (aten.item.default, aten._local_scalar_dense.default):
        (source,) = node.args
        assert isinstance(source, fx.Node)
        env[node] = TensorNumber(_exact(env[source]))
        return True
    arguments: Sequence[Any] = node.args
    operands = [env.get(argument) if isinstance(argument, fx.Node) else argument for argument in arguments]
    if not any(isinstance(operand, TensorNumber) for operand in operands):
        return False
    if node.target is aten._assert_scalar.default:
        condition, message = operands
        assert isinstance(condition, TensorNumber)
        _assert(condition.value, str(message), effect)
    elif node.target in _RANGES:
        for bound, comparison in (("min", operator.ge), ("max", operator.le)):
            if (limit := node.kwargs.get(bound)) is not None:
                condition = _apply(node, comparison, [operands[0], limit])
                _assert(condition, f"{bound}imum {limit} of a number read from a tensor", effect)
    else:
        env[node] = TensorNumber(_apply(node, node.target, operands))
    return True


def _exact(value: Value) -> Value:
    """Return a one-element tensor as rank 0, widened to Python's precision (f64, i64 or bool)."""
    value = apply(Reshape(()), value) if value.type.rank else value
    dtype = value.type.dtype
    wide = DType.F64 if dtype.is_floating else dtype if dtype is DType.BOOL else DType.I64
    return value if dtype is wide else apply(Cast(wide), value)


_ARITHMETIC: Mapping[Any, Operator] = {operator.add: Add(), operator.sub: Sub(), operator.mul: Mul()}
_COMPARISONS: Mapping[Any, str] = {
    getattr(operator, name): f"aten.{name}.Tensor" for name in ("lt", "le", "gt", "ge", "eq", "ne")
}


def _apply(node: fx.Node, function: Any, operands: Sequence[Any]) -> Value:
    """Apply a function of two numbers to tensors of rank 0."""
    known = function in _ARITHMETIC or function in _COMPARISONS
    if not known or not all(isinstance(operand, TensorNumber | int | float) for operand in operands):
        refuse(node, "depends on a number read from a tensor", _ADVICE)
    dtypes = {operand.value.type.dtype for operand in operands if isinstance(operand, TensorNumber)}
    is_float = DType.F64 in dtypes or any(isinstance(operand, float) for operand in operands)
    dtype = DType.F64 if is_float else DType.I64
    left, right = (_as_value(operand, dtype) for operand in operands)
    if function in _ARITHMETIC:
        return apply(_ARITHMETIC[function], left, right)
    return apply(Opaque(_COMPARISONS[function], (Ref(0), Ref(1)), (TensorType(DType.BOOL, ()),)), left, right)


def _as_value(operand: TensorNumber | float, dtype: DType) -> Value:
    if not isinstance(operand, TensorNumber):
        return apply(Constant(float(operand) if dtype is DType.F64 else operand, dtype))
    return operand.value if operand.value.type.dtype is dtype else apply(Cast(dtype), operand.value)


def _assert(condition: Value, message: str, effect: Effect) -> None:
    effect(Opaque("aten._assert_async.msg", (Ref(0), f"text:{message}"), (), is_pure=False), [condition])
