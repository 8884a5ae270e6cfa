"""Conversions between PyTorch's values and the graph's: element types, tensor types, arguments of opaque operators.

Invariant: ``decode(encode(argument))`` is the argument as PyTorch takes it (tuples come back as lists), and an encoded
argument is plain data that the grammar can write.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from taso_py.ir.errors import TasoError
from taso_py.ir.operator import AttributeValue, Ref
from taso_py.ir.size import Dim, Poly
from taso_py.ir.types import DType, TensorType

TORCH_DTYPES: Mapping[DType, torch.dtype] = {
    DType.F16: torch.float16,
    DType.BF16: torch.bfloat16,
    DType.F32: torch.float32,
    DType.F64: torch.float64,
    DType.BOOL: torch.bool,
    DType.U8: torch.uint8,
    DType.I8: torch.int8,
    DType.I16: torch.int16,
    DType.I32: torch.int32,
    DType.I64: torch.int64,
    DType.U16: torch.uint16,
    DType.U32: torch.uint32,
    DType.U64: torch.uint64,
    DType.C64: torch.complex64,
    DType.C128: torch.complex128,
    DType.F8E4M3: torch.float8_e4m3fn,
    DType.F8E5M2: torch.float8_e5m2,
}
"""PyTorch's element type for each of ours."""

_IR_DTYPES = {dtype: ours for ours, dtype in TORCH_DTYPES.items()}

_QUANTIZED = (torch.quint8, torch.qint8, torch.qint32, torch.quint4x2, torch.quint2x4)

NO_TENSOR = TensorType(DType.BOOL, (0,))
"""Placeholder type of an opaque operator's result that is not a tensor; nothing reads it."""


class TensorError(TasoError):
    """A tensor or argument that a graph cannot represent; the message names it."""


def tensors_in(*trees: Any) -> list[Tensor]:
    """Return the tensors among the leaves of nested arguments or results, in order."""
    return [leaf for leaf in pytree.tree_leaves(trees) if isinstance(leaf, Tensor)]


def ir_dtype(dtype: torch.dtype) -> DType:
    """Return our element type for PyTorch's.

    Raises:
        TensorError: the graph has no such type.
    """
    found = _IR_DTYPES.get(dtype)
    if dtype in _QUANTIZED:
        raise TensorError("quantized tensors are not supported; optimize the model before it is quantized")
    if found is None:
        raise TensorError(f"tensors of type {dtype} are not supported; cast them to a supported type before the model")
    return found


def unsupported(value: Any) -> str | None:
    """Return a description of a tensor that graphs cannot represent, with advice; None for all other values."""
    if not isinstance(value, Tensor):
        return None
    if value.is_nested:
        return "a nested tensor, which is not supported; pad it with torch.nested.to_padded_tensor and pass a mask"
    if value.is_quantized:
        return "a quantized tensor, which is not supported; optimize the model before it is quantized"
    if value.is_mkldnn:
        return "a tensor packed for oneDNN, which is not supported; call .to_dense() on it"
    if value.layout is not torch.strided:
        kind = str(value.layout).removeprefix("torch.")
        return f"a sparse tensor ({kind}), which is not supported; call .to_dense() on it"
    return None


def tensor_type(tensor: Tensor, dims: Callable[[Sequence[Any]], tuple[Dim, ...]] = tuple) -> TensorType:
    """Return element type and shape of a tensor, real or fake.

    Args:
        tensor: the tensor.
        dims: converts its sizes to the graph's, if some are open.

    Raises:
        TensorError: the graph cannot represent it, e.g. because its layout is not strided.
    """
    if (problem := unsupported(tensor)) is not None:
        raise TensorError(f"this is {problem}")
    return TensorType(ir_dtype(tensor.dtype), dims(tensor.shape))


_NAMED: Mapping[str, Callable[[str], Any]] = {
    "device": torch.device,
    "layout": lambda name: getattr(torch, name),
    "memory_format": lambda name: getattr(torch, name),
    "complex": complex,
    "text": str,
    "dict": json.loads,
}


def encode(argument: Any) -> AttributeValue:
    """Return a literal argument of a call as data; a :class:`Ref` is kept.

    Raises:
        TensorError: there is no form for it.
    """
    match argument:
        case None | bool() | int() | float() | Ref() | Poly():
            return argument
        case torch.dtype():
            return ir_dtype(argument)
        case torch.device():
            return f"device:{argument}"
        case torch.layout():
            return f"layout:{str(argument).removeprefix('torch.')}"
        case torch.memory_format():
            return f"memory_format:{str(argument).removeprefix('torch.')}"
        case complex():
            return f"complex:{argument}"
        case str():
            return f"text:{argument}"
        case list() | tuple():
            return tuple(encode(item) for item in argument)
        case _:
            raise TensorError(f"an argument of type {type(argument).__name__} is not supported")


def decode(value: AttributeValue, inputs: Sequence[Any], graph: Callable[[str], Any] = str) -> Any:
    """Return the argument as PyTorch takes it.

    Args:
        value: as :func:`encode` gives it.
        inputs: replace the references.
        graph: converts the text of a graph to a callable; by default it stays text.
    """
    match value:
        case Ref():
            return inputs[value.index]
        case DType():
            return TORCH_DTYPES[value]
        case str():
            kind, _, text = value.partition(":")
            return graph(text) if kind == "graph" else _NAMED[kind](text)
        case ("tuple:", *items):
            return tuple(decode(item, inputs, graph) for item in items)
        case tuple():
            return [decode(item, inputs, graph) for item in value]
        case _:
            return value


def is_power_of_two(value: object) -> bool:
    """Return whether a divisor is a number by which floating-point numbers are divided without rounding."""
    return isinstance(value, int | float) and abs(math.frexp(value)[0]) == 0.5
