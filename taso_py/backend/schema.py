"""Typed access to the schemas and tags of PyTorch's operators; the one place that uses torch's protected names.

Invariant: nothing here calls an operator.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias, TypeGuard

import torch
from torch import Tensor, fx
from torch._ops import HigherOrderOperator, OpOverload

from taso_py.backend import onnx_call  # declares an operator

_TRUSTED_NAMESPACES = ("aten", "prims", onnx_call.NAMESPACE)

OVERLOAD = "overload"
"""The fx ``meta`` key of the overload that a called Python function stands for."""


COMPARISONS = frozenset(
    ("eq", "ne", "lt", "le", "gt", "ge", "not_equal", "less", "less_equal", "greater", "greater_equal")
)
"""Names of ATen operators that compare numbers."""


def target_of(node: fx.Node) -> Any:
    """Return the overload that an fx node calls, even if it calls it through a Python function."""
    return node.meta.get(OVERLOAD, node.target)


Operation: TypeAlias = OpOverload | HigherOrderOperator
"""The target of an opaque node; a higher-order operator has no schema, so nothing is known of it."""


def overload_named(name: str) -> Operation:
    """Return the overload of a name like ``aten.add.Tensor``, or the operator of one like ``higher_order.cond``."""
    namespace, operator, *overload = name.split(".")
    found = getattr(getattr(torch.ops, namespace), operator)
    return getattr(found, overload[0]) if overload else found


def defaults(overload: Operation) -> dict[str, Any]:
    """Return the argument names, in order, with their default values; None where there is none."""
    if not isinstance(overload, OpOverload):
        return {}
    return {argument.name: argument.default_value for argument in _schema(overload).arguments}


def bind(overload: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by name, defaults included."""
    known = defaults(overload)
    return {**known, **dict(zip(known, args, strict=False)), **kwargs}


def is_mutable(overload: OpOverload) -> bool:
    """Return whether a call writes to its arguments."""
    return bool(_schema(overload).is_mutable)


def written_arguments(overload: OpOverload) -> list[str]:
    """Return the names of the arguments that a call writes to."""
    arguments = _schema(overload).arguments
    return [argument.name for argument in arguments if argument.alias_info is not None and argument.alias_info.is_write]


def is_trusted(overload: Operation) -> TypeGuard[OpOverload]:
    """Return whether the operator is one of PyTorch's own, or ours, whose schema and tags are reliable."""
    return isinstance(overload, OpOverload) and overload.namespace in _TRUSTED_NAMESPACES


def may_draw(overload: Operation) -> bool:
    """Return whether a call may draw random numbers; unknown operators may."""
    return not is_trusted(overload) or torch.Tag.nondeterministic_seeded in overload.tags


def result_count(overload: OpOverload) -> int:
    """Return the number of results in the schema; a list counts as one."""
    return len(_schema(overload).returns)


def returns_one_tensor(overload: Operation) -> bool:
    """Return whether a call returns a tensor, not a tuple or list of them."""
    if not isinstance(overload, OpOverload):
        return False
    returns = _schema(overload).returns
    return len(returns) == 1 and isinstance(returns[0].type, torch.TensorType)


def returns_nothing(overload: Operation) -> bool:
    """Return whether a call returns None."""
    return isinstance(overload, OpOverload) and not result_count(overload)


def may_alias(overload: Operation) -> bool:
    """Return whether a result may share storage with an argument; unknown operators may."""
    return not is_trusted(overload) or any(result.alias_info is not None for result in _schema(overload).returns)


def in_place_form(overload: OpOverload) -> OpOverload | None:
    """Return the overload that writes the result of another one to its first argument, or None."""
    packet = getattr(torch.ops.aten, f"{overload.overloadpacket.__name__}_", None)
    form = getattr(packet, overload._overloadname, None)  # pyright: ignore[reportPrivateUsage]
    return form if isinstance(form, OpOverload) and list(defaults(form)) == list(defaults(overload)) else None


def out_of_place_form(overload: OpOverload) -> OpOverload | None:
    """Return the overload that returns what this one writes to its first argument, or None."""
    name = overload.overloadpacket.__name__
    packet = getattr(torch.ops.aten, name.removesuffix("_"), None) if name.endswith("_") else None
    form = getattr(packet, overload._overloadname, None)  # pyright: ignore[reportPrivateUsage]
    return form if isinstance(form, OpOverload) and in_place_form(form) is overload else None


def storage_of(tensor: Tensor) -> int:
    """Return an identifier of a tensor's storage, unique while it is alive; works on fake and meta tensors too."""
    return tensor.untyped_storage()._cdata  # pyright: ignore[reportPrivateUsage]


def place_of(tensor: Tensor) -> object:
    """Return the memory of a tensor and how it is read: equal for tensors that are one and the same."""
    lies = (storage_of(tensor), tensor.storage_offset(), tensor.shape, tensor.stride())
    return *lies, tensor.dtype, tensor.is_conj(), tensor.is_neg()


def copy_once(target: Tensor, source: Tensor) -> Tensor:
    """Copy a tensor to one that may show an element several times, as an expanded one does, and return that."""
    once = tuple([slice(1) if step == 0 else slice(None) for step in target.stride()])
    target[once].copy_(source[once])
    return target


def overlap(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors may have elements in the same memory: their extents in one storage meet."""
    if storage_of(one) != storage_of(other) or not one.numel() or not other.numel():
        return False
    (first, last), (begin, end) = map(_extent, (one, other))
    return first <= end and begin <= last


def overlaps_itself(tensor: Tensor) -> bool:
    """Return whether elements of a tensor share memory because an axis is expanded, if only to an open size."""
    axes: Iterable[tuple[Any, Any]] = zip(tensor.shape, tensor.stride(), strict=True)
    # An open size is compared by its type alone: asking for its value would bind it, or raise where there is none.
    return any(type(stride) is int and stride == 0 and (type(size) is not int or size > 1) for size, stride in axes)


def _extent(tensor: Tensor) -> tuple[int, int]:
    """Return the first and last byte of a tensor in its storage."""
    reach = sum((int(size) - 1) * int(step) for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    first = int(tensor.storage_offset())
    return first * tensor.element_size(), (first + reach + 1) * tensor.element_size() - 1


def _schema(overload: OpOverload) -> Any:
    return overload._schema  # pyright: ignore[reportPrivateUsage]


def stored_bytes(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of all storages behind some tensors, each counted once."""
    return sum({storage_of(tensor): tensor.untyped_storage().nbytes() for tensor in tensors}.values())
