"""Argument checks of built modules; calls of these functions are in their graphs.

Invariant: a graph is built for its sizes, and with other sizes broadcasting might compute something else without an
error; these checks prevent that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling
from torch.utils import _pytree as pytree
from torch.utils._pytree import TreeSpec

from taso_py.backend.bits import resolved
from taso_py.backend.program import Literal
from taso_py.backend.schema import overlap, overlaps_itself, storage_of
from taso_py.ir.errors import TasoError


class ArgumentError(TasoError):
    """An argument does not match the one the module was built for."""


def check_tensor(
    value: object, name: str, shape: tuple[int | None, ...], dtype: torch.dtype, is_constant: bool = False
) -> Tensor:
    """Return the argument, resolved; raise unless it is a tensor of that shape and type.

    Args:
        value: the argument.
        name: its name in messages.
        shape: its required sizes; None for an open one.
        dtype: its required element type.
        is_constant: true if an exported program gives it no gradients. An exported program cannot raise the error of a
            backward pass, and kernels would silently give no gradients.
    """
    # Most calls end here, a microsecond earlier than by the general checks below. Exporters pass other tensor classes.
    if type(value) is Tensor and value.dtype is dtype and value.shape == shape and not is_dynamo_compiling():
        return resolved(value)
    if not isinstance(value, Tensor):
        raise ArgumentError(f"this module was built for a tensor as {name}, not {type(value).__name__}")
    fits = value.dim() == len(shape) and all(w is None or w == s for w, s in zip(shape, value.shape, strict=True))
    if not fits or value.dtype != dtype:
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise ArgumentError(
            f"this module was built for {name} of type {dtype} and shape [{wanted}], not {value.dtype} "
            f"{list(value.shape)}; build it again with example inputs like these"
        )
    if not torch.compiler.is_compiling():
        return resolved(value)
    # A compiler resolves views itself, and some cannot trace the question.
    return value.detach() if is_constant and torch.compiler.is_exporting() else value


def check_writable(written: Mapping[str, Tensor], others: Sequence[Tensor], state: Mapping[str, Tensor]) -> None:
    """Raise unless all that the module writes to is memory of its own, which no other argument shows.

    Args:
        written: the arguments that it writes to, by name.
        others: the other tensors among the arguments.
        state: the buffers that it writes to, by name.
    """
    if torch.compiler.is_compiling():
        return
    reason = why_not_writable(written, others)
    given = [*written.values(), *others]
    if reason is None and _share_storage(given, state.values()):
        shown = (name for name, buffer in state.items() if any(overlap(buffer, value) for value in given))
        reason = next((f"its {name}, whose memory an argument shares; pass a copy of it" for name in shown), None)
    if reason is not None:
        raise ArgumentError(f"this module writes to {reason}")


def _share_storage(tensors: Iterable[Tensor], others: Iterable[Tensor]) -> bool:
    try:
        return not set(map(storage_of, tensors)).isdisjoint(map(storage_of, others))
    except NotImplementedError:  # tensors within transforms of torch.func do not show theirs
        return False


def why_not_writable(written: Mapping[str, Tensor], others: Sequence[Tensor]) -> str | None:
    """Return which argument may not be written to, and why; None if all may.

    Args:
        written: arguments that are written to, by name.
        others: the other tensors among the arguments.
    """
    for name, value in written.items():
        if value.is_conj() or value.is_neg():
            return f"{name}, which is a conjugate or negative view; pass a plain tensor"
        if overlaps_itself(value):
            return f"{name}, which is expanded; pass a tensor with memory for each element"
    tensors = [*written.values(), *others]
    if not written or len(set(map(storage_of, tensors))) == len(tensors):
        return None
    for place, (name, value) in enumerate(written.items()):
        if any(overlap(value, other) for other in (*tensors[:place], *tensors[place + 1 :])):
            return f"{name}, whose memory another argument shares; pass tensors of their own"
    return None


def check_layout(value: Tensor, name: str, strides: tuple[int, ...] | None) -> None:
    """Raise unless an argument, on whose layout it depends what the module reads by strides, lies as the example did.

    Args:
        value: the argument.
        name: its name in messages.
        strides: the example's strides; None for row-major order.
    """
    if torch.compiler.is_compiling():
        return
    axes = zip(value.shape, value.stride(), strides or value.stride(), strict=True)
    if not (value.is_contiguous() if strides is None else all(s == w for size, s, w in axes if size > 1)):
        wanted = "in row-major order" if strides is None else f"with strides {list(strides)}"
        raise ArgumentError(
            f"this module reads memory by strides, and was built for {name} {wanted}; pass it so, or build it again "
            "with example inputs like these"
        )


def check_tree(tree: object, spec: TreeSpec) -> None:
    """Raise unless arguments have the structure that the module was built for; flattening would drop the excess."""
    if spec.is_leaf():
        return
    if spec.type is dict:
        keys = list(tree) if isinstance(tree, dict) else []
        if set(keys) != set(spec.context):
            raise ArgumentError(f"this module was built for a dict with {_listed(spec.context)}, not {_listed(keys)}")
        children = [cast("dict[Any, object]", tree)[key] for key in spec.context]
    elif spec.type in (list, tuple):
        children = list(tree) if isinstance(tree, list | tuple) else []
        if len(children) != spec.num_children:
            raise ArgumentError(f"this module takes a sequence of {spec.num_children} values here, not {len(children)}")
    elif pytree.tree_structure(tree) != spec:
        raise ArgumentError(f"this module was built for {type(tree).__name__} arguments of another structure")
    else:
        return
    for child, wanted in zip(children, spec.children(), strict=True):
        check_tree(child, wanted)


def _listed(keys: Iterable[object]) -> str:
    return ", ".join(map(repr, keys)) or "nothing"


def check_range(size: int, name: str, least: int, most: int | None) -> None:
    """Raise unless an open size is in the range that the module was exported for."""
    if size < least or (most is not None and size > most):
        limit = f"{least} or more" if most is None else f"{least} to {most}"
        raise ArgumentError(f"dimension {name} may be {limit} in this module, not {size}")


def check_equal(size: int, wanted: int, name: str, formula: str) -> None:
    """Raise unless a dimension equals the size that other dimensions imply."""
    if size != wanted:
        raise ArgumentError(f"dimension {name} must be {wanted} ({formula}) beside the other arguments, not {size}")


def check_fixed(value: object, expected: Literal) -> None:
    """Raise unless the argument is the value that the module was built for."""
    is_same = type(value) is type(expected) and (value == expected or (value != value and expected != expected))
    # Minus zero equals zero, and one over it is minus infinity.
    if is_same and isinstance(value, float) and isinstance(expected, float):
        is_same = value != value or math.copysign(1.0, value) == math.copysign(1.0, expected)
    if not is_same:
        raise ArgumentError(
            f"this module was built for the argument {expected!r}, not {value!r}; build it again with that"
        )


CHECKS = (check_tensor, check_writable, check_layout, check_fixed)
"""Functions that check leaves of the arguments."""
