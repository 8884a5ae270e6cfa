"""Lowering of every operator of the table to plain ATen calls.

One row per operator. A lowering makes its calls through a :data:`Caller`, so that the same table writes fx nodes,
computes tensors (folding) and propagates fake tensors (import).

Invariant: the calls of a lowering are pure, and those of an operator that the frontend imported from a single ATen call
compute the same bits as that call.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, cast

import torch
from torch import fx, nn
from torch.fx.node import map_aggregate

from taso_py.backend.elementwise import ELEMENTWISE, Caller, Lowering
from taso_py.backend.schema import overload_named, returns_nothing, returns_one_tensor
from taso_py.backend.sizes import SizeWriter, resolving
from taso_py.backend.storage import Storages
from taso_py.backend.tensors import TORCH_DTYPES, decode
from taso_py.ir.errors import InvariantError
from taso_py.ir.node import Node, Value
from taso_py.ir.operator import Constant, Input, Operator
from taso_py.ir.size import Dim
from taso_py.ir.types import TensorType
from taso_py.ops import choice
from taso_py.ops.contraction import Baddbmm, Conv2d, Conv3d, ConvTranspose2d, Linear, Matmul
from taso_py.ops.elementwise import Add, Addcmul, Div, Maximum, Minimum, Mul, Sub
from taso_py.ops.movement import (
    Concat,
    Contiguous,
    Diagonal,
    DiagonalMatrix,
    Enlarge,
    Expand,
    Flip,
    Pad,
    Permute,
    Reshape,
    Slice,
    UpsampleNearest2d,
)
from taso_py.ops.nested import CONTROL_FLOW, Nested
from taso_py.ops.normalization import Attention, BatchNorm, GroupNorm, InstanceNorm, LayerNorm, RmsNorm, Softmax
from taso_py.ops.opaque import Opaque
from taso_py.ops.pooling import AdaptiveAvgPool2d, AvgPool2d, MaxPool2d
from taso_py.ops.reduction import Cumsum, Max, Mean, Sum, VectorNorm
from taso_py.ops.resizing import UpsampleBilinear2d
from taso_py.ops.selection import Gather, Take

aten = torch.ops.aten


def lower(call: Caller, node: Node, operands: Sequence[Any], device: torch.device, variant: int = 0) -> tuple[Any, ...]:
    """Make the calls that compute a node which is not a leaf; return its outputs.

    Args:
        call: makes the calls.
        node: the node.
        operands: its inputs, as nodes or tensors; ignored for constants, which are looked up.
        device: the device on which constants are made.
        variant: one of the :func:`variants`; they compute the same elements, but the result's layout may differ.

    Raises:
        InvariantError: the operator has no lowering.
    """
    given = _with_constants(call, node, operands, device)
    if isinstance(node.op, Opaque):
        return _opaque(call, node.op, given, device=device)
    row = _TABLE.get(type(node.op))
    if row is None:
        raise InvariantError(f"operator {node.op.name} has no lowering; add a row to taso_py/backend/lowering.py")
    if isinstance(node.op, Reshape):
        result = _reshape(call, node.op, node, operands=given, variant=variant)
    else:
        result = row(call, node.op, node, given[::-1] if variant else given)
    return (result,)


def variants(node: Node) -> range:
    """Return the indices of the lowerings that a node has."""
    if isinstance(node.op, Reshape):
        return range(len(_ways_to_drop(node)) + 1 + len(_places_of_one_more(node)))
    # If operands differ in layout, the first determines that of the result.
    return range(2 if node.op.commutative else 1)


def materialize(call: Caller, constant: Constant, device: torch.device) -> Any:
    """Return a constant as a tensor of rank 0."""
    return call(aten.scalar_tensor.default, constant.value, dtype=TORCH_DTYPES[constant.dtype], device=device)


def _with_constants(call: Caller, node: Node, operands: Sequence[Any], device: torch.device) -> list[Any]:
    """Return the operands, with constants as Python numbers where the calls take them, else as tensors of rank 0."""
    ops = [value.node.op for value in node.inputs]
    # The first of three operands is a condition, which is no number, or added to a product of the others.
    takes_number = isinstance(node.op, _SCALAR_OPERANDS) and not all(isinstance(op, Constant) for op in ops[-2:])
    return [
        operand if not isinstance(op, Constant) else op.value if takes_number else materialize(call, op, device)
        for op, operand in zip(ops, operands, strict=True)
    ]


_SCALAR_OPERANDS = (Add, Mul, Sub, Div, Addcmul, Maximum, Minimum, choice.Where, choice.ComparisonOperator)


def sizes(type_: TensorType) -> list[Any]:
    """Return the shape as a list, as fx needs it."""
    return list(type_.shape)


def _matmul(call: Caller, op: Matmul, node: Node, operands: Sequence[Any]) -> Any:
    a, b = (value.type for value in node.inputs)
    if a.rank == b.rank == 2:
        return call(aten.mm.default, *operands)
    if a.rank == b.rank == 3 and a.shape[0] == b.shape[0]:
        return call(aten.bmm.default, *operands)
    return call(aten.matmul.default, *operands)


def _baddbmm(call: Caller, op: Baddbmm, node: Node, operands: Sequence[Any]) -> Any:
    overload = aten.addmm.default if node.types[0].rank == 2 else aten.baddbmm.default
    return call(overload, *operands, beta=op.beta, alpha=op.alpha)


def _linear(call: Caller, op: Linear, node: Node, operands: Sequence[Any]) -> Any:
    return call(aten.linear.default, *operands)


def _convolution(overload: Any) -> Lowering:
    def row(call: Caller, op: Conv2d | Conv3d, node: Node, operands: Sequence[Any]) -> Any:
        bias = operands[2] if len(operands) == 3 else None
        windows = (list(op.stride), list(op.padding), list(op.dilation))
        return call(overload, operands[0], operands[1], bias, *windows, op.groups)

    return row


def _conv_transpose2d(call: Caller, op: ConvTranspose2d, node: Node, operands: Sequence[Any]) -> Any:
    bias = operands[2] if len(operands) == 3 else None
    windows = (list(op.stride), list(op.padding), list(op.output_padding))
    return call(aten.conv_transpose2d.input, operands[0], operands[1], bias, *windows, op.groups, list(op.dilation))


def _avg_pool2d(call: Caller, op: AvgPool2d, node: Node, operands: Sequence[Any]) -> Any:
    windows = (list(op.kernel), list(op.stride), list(op.padding))
    return call(aten.avg_pool2d.default, operands[0], *windows, op.ceil, op.count_include_pad)


def _max_pool2d(call: Caller, op: MaxPool2d, node: Node, operands: Sequence[Any]) -> Any:
    windows = (list(op.kernel), list(op.stride), list(op.padding), list(op.dilation))
    return call(aten.max_pool2d.default, operands[0], *windows, op.ceil)


def _adaptive_avg_pool2d(call: Caller, op: AdaptiveAvgPool2d, node: Node, operands: Sequence[Any]) -> Any:
    return call(aten.adaptive_avg_pool2d.default, operands[0], list(op.size))


def _batch_norm(call: Caller, op: BatchNorm, node: Node, operands: Sequence[Any]) -> Any:
    return call(aten.batch_norm.default, *operands, False, 0.0, op.eps, True)


def _group_norm(call: Caller, op: GroupNorm, node: Node, operands: Sequence[Any]) -> Any:
    weight, bias = [*operands[1:], None, None][:2]
    return call(aten.group_norm.default, operands[0], op.groups, weight, bias, op.eps)


def _instance_norm(call: Caller, op: InstanceNorm, node: Node, operands: Sequence[Any]) -> Any:
    weight, bias = [*operands[1:], None, None][:2]
    return call(aten.instance_norm.default, operands[0], weight, bias, None, None, True, 0.0, op.eps, True)


def _layer_norm(call: Caller, op: LayerNorm, node: Node, operands: Sequence[Any]) -> Any:
    weight, bias = [*operands[1:], None, None][:2]
    return call(aten.layer_norm.default, operands[0], sizes(node.types[0])[-op.axes :], weight, bias, op.eps)


def _rms_norm(call: Caller, op: RmsNorm, node: Node, operands: Sequence[Any]) -> Any:
    weight = operands[1] if len(operands) == 2 else None
    return call(aten.rms_norm.default, operands[0], sizes(node.types[0])[-op.axes :], weight, op.eps)


def _softmax(call: Caller, op: Softmax, node: Node, operands: Sequence[Any]) -> Any:
    return call(aten.softmax.int, operands[0], op.axis)


def _attention(call: Caller, op: Attention, node: Node, operands: Sequence[Any]) -> Any:
    mask = operands[3] if len(operands) == 4 else None
    keywords = {} if op.scale is None else {"scale": op.scale}
    return call(aten.scaled_dot_product_attention.default, *operands[:3], mask, 0.0, op.causal, **keywords)


def _reduction(overload: Any) -> Lowering:
    return lambda call, op, _node, operands: call(overload, operands[0], list(op.axes), op.keepdim)


def _vector_norm(call: Caller, op: VectorNorm, node: Node, operands: Sequence[Any]) -> Any:
    return call(aten.linalg_vector_norm.default, operands[0], op.order, list(op.axes), op.keepdim)


def _cumsum(call: Caller, op: Cumsum, node: Node, operands: Sequence[Any]) -> Any:
    return call(aten.cumsum.default, operands[0], op.axis)


def _concat(call: Caller, op: Concat, node: Node, operands: Sequence[Any]) -> Any:
    return call(aten.cat.default, list(operands), op.axis)


def _slice(call: Caller, op: Slice, node: Node, operands: Sequence[Any]) -> Any:
    return call(aten.slice.Tensor, operands[0], op.axis, op.start, op.stop, op.step)


def _flip(call: Caller, op: Flip, node: Node, operands: Sequence[Any]) -> Any:
    return call(aten.flip.default, operands[0], list(op.axes))


def _diagonal(call: Caller, op: Diagonal, node: Node, operands: Sequence[Any]) -> Any:
    return call(aten.diagonal.default, operands[0], 0, -2, -1)


def _diagonal_matrix(call: Caller, op: DiagonalMatrix, node: Node, operands: Sequence[Any]) -> Any:
    return call(aten.diag_embed.default, operands[0])


def _permute(call: Caller, op: Permute, node: Node, operands: Sequence[Any]) -> Any:
    rank = node.types[0].rank
    lead = range(rank - len(op.order))
    return call(aten.permute.default, operands[0], [*lead, *(axis + rank for axis in op.order)])


def _reshape(call: Caller, op: Reshape, node: Node, operands: Sequence[Any], variant: int = 0) -> Any:
    # Unlike a view, a squeeze leaves the strides of the remaining axes of size 1 as they are, and the new axis at the
    # end of what an unsqueeze returns has a stride of 1.
    dropped = _ways_to_drop(node)
    if variant < len(dropped):
        return call(aten.squeeze.dims, operands[0], list(dropped[variant]))
    if variant > len(dropped):
        return call(aten.unsqueeze.default, operands[0], _places_of_one_more(node)[variant - len(dropped) - 1])
    return call(aten.reshape.default, operands[0], list(op.shape))


def _ways_to_drop(node: Node) -> list[tuple[int, ...]]:
    """Return the sets of axes of size 1 that a reshape may drop, if it does nothing else; the likeliest first."""
    before, after = node.inputs[0].type.shape, node.types[0].shape
    count = len(before) - len(after)
    ones = [axis for axis, size in enumerate(before) if size == 1]
    if count <= 0 or count > 2 or [size for size in before if size != 1] != [size for size in after if size != 1]:
        return []
    ways = [
        axes
        for axes in itertools.combinations(ones, count)
        if tuple(size for axis, size in enumerate(before) if axis not in axes) == after
    ]
    source = node.inputs[0].node.op
    cut = len(before) + source.axis if isinstance(source, Slice) else -1
    return sorted(ways, key=lambda axes: axes != (cut,))


def _places_of_one_more(node: Node) -> list[int]:
    """Return the places at which a reshape may insert an axis of size 1, if it does nothing else."""
    before, after = node.inputs[0].type.shape, node.types[0].shape
    places = range(len(after) if len(after) == len(before) + 1 else 0)
    return [place for place in places if after[place] == 1 and (*after[:place], *after[place + 1 :]) == before]


def _expand(call: Caller, op: Expand, node: Node, operands: Sequence[Any]) -> Any:
    return call(aten.expand.default, operands[0], list(op.shape))


def _upsample_nearest2d(call: Caller, op: UpsampleNearest2d, node: Node, operands: Sequence[Any]) -> Any:
    *lead, rows, columns = sizes(node.inputs[0].type)
    if is_upsampled_exactly((rows, columns), op.factors):
        return call(aten.upsample_nearest2d.default, operands[0], sizes(node.types[0])[-2:])
    apart = call(aten.reshape.default, operands[0], [*lead, rows, 1, columns, 1])
    copied = call(aten.expand.default, apart, [*lead, rows, op.factors[0], columns, op.factors[1]])
    return call(aten.reshape.default, copied, sizes(node.types[0]))


def _upsample_bilinear2d(call: Caller, op: UpsampleBilinear2d, node: Node, operands: Sequence[Any]) -> Any:
    # torch.export takes the other overload apart, and what it makes of it rounds differently (PyTorch 2.13).
    return call(aten.upsample_bilinear2d.vec, operands[0], sizes(node.types[0])[-2:], op.align_corners, None)


def is_upsampled_exactly(extents: Sequence[Dim], factors: Sequence[Dim]) -> bool:
    """Return whether PyTorch's kernel reads element ``i // factor`` for every ``i``, as the operator is defined.

    It multiplies ``i`` by the reciprocal of the factor in single precision. Up to a factor of 16 the reciprocal is not
    rounded down, and the product is less than a factor's share of one too large as long as ``i // factor < 2**19``.
    """
    return all(
        extent == 1 or (isinstance(factor, int) and factor <= 16 and not (isinstance(extent, int) and extent > 2**19))
        for extent, factor in zip(extents, factors, strict=True)
    )


def _pad(call: Caller, op: Pad, node: Node, operands: Sequence[Any]) -> Any:
    widths = [width for pair in reversed(op.widths) for width in pair]
    return call(aten.constant_pad_nd.default, operands[0], widths, op.value)


def _enlarge(call: Caller, op: Enlarge, node: Node, operands: Sequence[Any]) -> Any:
    height, width = (a - b for a, b in zip(op.kernel, node.inputs[0].type.sizes[-2:], strict=True))
    margins = [cast(int, width) // 2] * 2 + [cast(int, height) // 2] * 2
    return call(aten.constant_pad_nd.default, operands[0], margins)


def _contiguous(call: Caller, op: Contiguous, node: Node, operands: Sequence[Any]) -> Any:
    return call(aten.contiguous.default, operands[0])


def _take(call: Caller, op: Take, node: Node, operands: Sequence[Any]) -> Any:
    table, index = node.inputs
    axis = table.type.rank + op.axis
    if op.wraps:
        return call(aten.index.Tensor, operands[0], [*[None] * axis, operands[1]])
    if (axis, table.type.rank) == (0, 2):
        return call(aten.embedding.default, *operands)
    if index.type.rank == 1:
        return call(aten.index_select.default, operands[0], axis, operands[1])
    rows = call(aten.index_select.default, operands[0], axis, call(aten.reshape.default, operands[1], [-1]))
    return call(aten.reshape.default, rows, sizes(node.types[0]))


def _gather(call: Caller, op: Gather, node: Node, operands: Sequence[Any]) -> Any:
    return call(aten.gather.default, operands[0], op.axis, operands[1])


def _opaque(call: Caller, op: Opaque, operands: Sequence[Any], device: torch.device) -> tuple[Any, ...]:
    overload, given = overload_named(op.target), list(operands)
    for place in op.written:
        given[place] = call(aten.clone.default, given[place])
    for base, shape, strides, offset in op.views:
        given.append(call(aten.as_strided.default, given[base], list(shape), list(strides), offset))
    if op.target in CONTROL_FLOW:
        # PyTorch exports none whose operands share memory.
        given = [call(aten.clone.default, x) if any(x is y for y in given[:i]) else x for i, x in enumerate(given)]
    graph = partial(nested_module, device=device, is_apart=op.target in CONTROL_FLOW)
    arguments = [decode(argument, given, graph) for argument in op.arguments]
    named = cast(Sequence[tuple[str, Any]], op.keywords)
    keywords = {str(name): decode(value, given, graph) for name, value in named}
    result = call(overload, *arguments, **keywords)
    became = tuple(given[place] for place in op.written)
    count = len(op.types) - len(became)
    if returns_one_tensor(overload) or returns_nothing(overload):
        return (*([result] * count), *became)
    return (*(call(operator.getitem, result, index) for index in range(count)), *became)


@lru_cache(maxsize=256)
def nested_module(text: str, device: torch.device, *, is_apart: bool) -> fx.GraphModule:
    """Return the module of a graph that an operator takes.

    Args:
        text: the graph, as :class:`taso_py.ops.nested.Nested` writes it.
        device: where it creates tensors.
        is_apart: whether results are copied that would share memory with an argument or with an earlier result.
    """
    nested, module = Nested.parse(text), fx.Graph()
    root, size = fx.GraphModule({}, module), SizeWriter(module)

    def written(target: Any, *arguments: Any, **keywords: Any) -> fx.Node:
        return module.call_function(target, *register_modules(root, (arguments, keywords), module))

    call = resolving(written, size)
    given = {node: module.placeholder(node.op.key) for node in nested.graph.inputs if isinstance(node.op, Input)}
    values: dict[Value, Any] = {node.value: placeholder for node, placeholder in given.items()}
    size.show(nested.graph, given)
    for node in nested.graph.nodes:
        if not isinstance(node.op, Input | Constant):
            results = lower(call, node, [values.get(value) for value in node.inputs], device)
            values.update(zip(node.outputs, results, strict=True))
    for value in nested.graph.outputs:
        if isinstance(value.node.op, Constant):
            values[value] = materialize(call, value.node.op, device)
    found = [values[value] for value in nested.graph.outputs]
    returned = _apart(call, module, found) if is_apart else found
    module.output(returned[0] if nested.kind == "one" else returned if nested.kind == "list" else tuple(returned))
    return fx.GraphModule(root, module)


def _apart(call: Caller, graph: fx.Graph, results: Sequence[fx.Node]) -> list[fx.Node]:
    """Return results with copies in place of those that may share memory with an argument, or an earlier result."""
    storages = Storages(graph)
    taken = [storages.of(node) for node in graph.nodes if node.op == "placeholder"]
    found: list[fx.Node] = []
    for result in results:
        storage = storages.of(result)
        if storage not in taken:
            taken.append(storage)
        elif result.target is aten.contiguous.default:
            result = call(aten.clone.default, result.args[0], memory_format=torch.contiguous_format)
        else:
            result = call(aten.clone.default, result)
        found.append(result)
    return found


def register_modules(root: nn.Module, arguments: Any, graph: fx.Graph) -> Any:
    """Return the arguments of a call in a graph, with modules among them registered as attributes of the root."""

    def attach(argument: Any) -> Any:
        if not isinstance(argument, nn.Module):
            return argument
        known = {id(module): name for name, module in root.named_children()}
        name = known.get(id(argument)) or next(n for i in range(1 << 30) if not hasattr(root, n := f"graph_{i}"))
        root.add_module(name, argument)
        return graph.get_attr(name)

    return map_aggregate(arguments, attach)


_TABLE: Mapping[type[Operator], Lowering] = {
    **ELEMENTWISE,
    Matmul: _matmul,
    Baddbmm: _baddbmm,
    Linear: _linear,
    Conv2d: _convolution(aten.conv2d.default),
    Conv3d: _convolution(aten.conv3d.default),
    ConvTranspose2d: _conv_transpose2d,
    AvgPool2d: _avg_pool2d,
    MaxPool2d: _max_pool2d,
    AdaptiveAvgPool2d: _adaptive_avg_pool2d,
    BatchNorm: _batch_norm,
    GroupNorm: _group_norm,
    InstanceNorm: _instance_norm,
    LayerNorm: _layer_norm,
    RmsNorm: _rms_norm,
    Softmax: _softmax,
    Attention: _attention,
    Sum: _reduction(aten.sum.dim_IntList),
    Mean: _reduction(aten.mean.dim),
    Max: _reduction(aten.amax.default),
    VectorNorm: _vector_norm,
    Cumsum: _cumsum,
    Concat: _concat,
    Slice: _slice,
    Flip: _flip,
    Permute: _permute,
    Reshape: _reshape,
    Diagonal: _diagonal,
    DiagonalMatrix: _diagonal_matrix,
    Expand: _expand,
    UpsampleNearest2d: _upsample_nearest2d,
    UpsampleBilinear2d: _upsample_bilinear2d,
    Pad: _pad,
    Enlarge: _enlarge,
    Contiguous: _contiguous,
    Take: _take,
    Gather: _gather,
}
LOWERED = frozenset(_TABLE) | {Opaque}
"""The operators that have a lowering."""
