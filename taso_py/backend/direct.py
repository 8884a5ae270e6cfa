"""Direct calls of PyTorch's Python functions in place of overload objects, which are slower to call.

``torch.relu(x)`` and ``torch.ops.aten.relu.default(x)`` run the same kernel, but the arguments of the former are parsed
by code generated for that function, which takes half the time; in small models that saves a tenth of the whole. Slices
that tile a value are replaced by one split. Only modules that run as written are changed: compilers trace overloads.

Invariant: the kernels that run, their operands and their order stay; views of one value may be made earlier.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor, fx
from torch.nn import functional

from taso_py.backend.overwrite import TYPE
from taso_py.backend.schema import OVERLOAD
from taso_py.ir.types import TensorType

aten = torch.ops.aten
nn: Any = torch._C._nn  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
"""The namespace of the functions of :mod:`torch.nn.functional`; it wraps some of them in further argument handling."""

_ELEMENTWISE = (
    *("neg", "reciprocal", "relu", "sigmoid", "tanh", "exp", "erf", "sqrt", "rsqrt", "abs", "log", "log1p"),
    *("clamp_min", "clamp_max", "sin", "cos"),
)
_SAME_NAME = (
    *(*_ELEMENTWISE, "mm", "bmm", "matmul", "conv2d", "batch_norm", "layer_norm", "rms_norm", "max_pool2d", "amax"),
    *("cat", "permute", "reshape", "constant_pad_nd", "as_strided", "conv1d", "embedding", "index_select", "roll"),
    *("celu", "maximum", "minimum", "diagonal", "diag_embed", "logical_and", "logical_or", "logical_not"),
    *("group_norm", "instance_norm", "addcmul", "addmm", "baddbmm", "conv3d", "flip", "cumsum", "gather"),
)
_NEURAL = (
    *("adaptive_avg_pool2d", "avg_pool2d", "gelu", "gelu_", "linear", "pad", "silu", "silu_"),
    *("hardsigmoid", "hardsigmoid_", "hardswish", "hardswish_", "hardtanh", "hardtanh_"),
    *("leaky_relu", "leaky_relu_", "elu", "elu_", "softplus", "mish", "mish_"),
)
_BINARY = ("add", "sub", "mul", "div")
_COMPARISONS = ("gt", "ge", "lt", "le", "eq", "ne")

FUNCTIONS: Mapping[Any, Callable[..., Any]] = {
    **{getattr(aten, name).default: getattr(torch, name) for name in _SAME_NAME},
    **{getattr(aten, name).Tensor: getattr(torch, name) for name in _BINARY},
    **{
        getattr(getattr(aten, name), kind): getattr(torch, name)
        for name in _COMPARISONS
        for kind in ("Tensor", "Scalar")
    },
    **{getattr(aten.where, kind): torch.where for kind in ("self", "ScalarSelf", "ScalarOther")},
    **{getattr(aten, f"{name}_").default: getattr(Tensor, f"{name}_") for name in _ELEMENTWISE},
    **{getattr(aten, f"{name}_").Tensor: getattr(Tensor, f"{name}_") for name in _BINARY},
    **{getattr(aten, name).default: getattr(nn, name) for name in _NEURAL},
    aten.scaled_dot_product_attention.default: functional.scaled_dot_product_attention,
    aten.conv_transpose2d.input: torch.conv_transpose2d,
    aten.upsample_nearest2d.default: nn.upsample_nearest2d,
    aten.upsample_bilinear2d.vec: nn.upsample_bilinear2d,
    aten.softmax.int: torch.softmax,
    aten.addcmul_.default: Tensor.addcmul_,
    aten.linalg_vector_norm.default: torch.linalg.vector_norm,
    aten.pow.Tensor_Scalar: torch.pow,
    aten.sum.dim_IntList: torch.sum,
    aten.mean.dim: torch.mean,
    aten.squeeze.dims: torch.squeeze,
    aten.clone.default: torch.clone,
    aten.copy_.default: Tensor.copy_,
    aten.empty_strided.default: torch.empty_strided,
    aten.expand.default: Tensor.expand,
    aten.contiguous.default: Tensor.contiguous,
    aten.to.dtype: Tensor.to,
}
"""For an overload, the Python function that takes the same arguments and calls it."""


@dataclass(frozen=True)
class _Part:
    """A slice with step 1 whose bounds are known and within the axis."""

    node: fx.Node
    value: fx.Node
    axis: int
    """Counted from the front, from 0."""
    start: int
    stop: int

    @property
    def length(self) -> int:
        return self.stop - self.start


def call_directly(graph: fx.Graph) -> None:
    """Replace calls of a graph by calls of Python functions where there is one, and join slices that tile a value."""
    for parts in _tilings(graph):
        _join(graph, parts)
    for node in graph.nodes:
        function, part = FUNCTIONS.get(node.target), _part(node)
        if part is not None:
            _redirect(node, torch.narrow)
            node.args = (part.value, part.axis, part.start, part.length)
        elif function is not None:
            _redirect(node, function)


def _redirect(node: fx.Node, function: Callable[..., Any]) -> None:
    node.meta[OVERLOAD], node.target = node.target, function


def _part(node: fx.Node) -> _Part | None:
    if node.target is not aten.slice.Tensor or len(node.args) != 5 or TYPE not in node.meta:
        return None
    value, axis, start, stop, step = cast(tuple[fx.Node, Any, Any, Any, Any], node.args)
    if not all(isinstance(number, int) for number in (axis, start, stop)) or step != 1:
        return None
    type_: TensorType = node.meta[TYPE]
    fits = 0 <= start <= stop and type_.shape[axis] == stop - start
    return _Part(node, value, axis % type_.rank, start=start, stop=stop) if fits else None


def _tilings(graph: fx.Graph) -> list[Sequence[_Part]]:
    """Return the groups of slices that tile a value, each element once, ordered by start."""
    found: dict[tuple[fx.Node, int], list[_Part]] = {}
    for node in graph.nodes:
        part = _part(node)
        if part is not None:
            found.setdefault((part.value, part.axis), []).append(part)
    ordered = [sorted(parts, key=lambda part: (part.start, part.stop)) for parts in found.values()]
    return [parts for parts in ordered if len(parts) > 1 and _is_tiling(parts)]


def _is_tiling(parts: Sequence[_Part]) -> bool:
    first, last = parts[0], parts[-1]
    whole: TensorType | None = first.value.meta.get(TYPE)
    meets = all(one.stop == other.start for one, other in pairwise(parts))
    return meets and first.start == 0 and whole is not None and whole.shape[first.axis] == last.stop


def _join(graph: fx.Graph, parts: Sequence[_Part]) -> None:
    """Replace the slices of a group by one split, placed at the first of them."""
    members = {part.node for part in parts}
    first = next(node for node in graph.nodes if node in members)
    # The operand may be a part itself, which was joined with others before.
    value, lengths = first.args[0], [part.length for part in parts]
    with graph.inserting_before(first):
        whole = graph.call_function(torch.split_with_sizes, (value, lengths, parts[0].axis))
        whole.meta.update(first.meta)
        whole.meta.pop(TYPE)
        whole.meta[OVERLOAD] = aten.split_with_sizes.default
        for index, part in enumerate(parts):
            taken = graph.call_function(operator.getitem, (whole, index))
            taken.meta.update(part.node.meta)
            part.node.replace_all_uses_with(taken)
    for node in members:
        graph.erase_node(node)
