"""The witness: tries a rule at random sizes and values with PyTorch's own operators in double precision.

It uses neither the definitions of the operators nor the prover: the meaning of an operator is what ``torch`` computes.
Beside the audit of numerics classes this is the only module of the package that imports torch.

Invariant: a counterexample was computed by PyTorch: at its sizes and values the two sides differ.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from random import Random
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.nn.functional as functional
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, Value
from taso_py.ir.operator import Constant, Input, Operator
from taso_py.ir.sign import with_sign
from taso_py.ir.size import Poly, evaluate
from taso_py.ir.traits import Rounding
from taso_py.ir.types import DType, Group
from taso_py.ops.signs import sign_of
from taso_py.rules.substitution import Substitution, key
from taso_py.rules.verdict import Counterexample
from verify.hypotheses import without_equalities
from verify.limits import Refused
from verify.sampling import Sample, Sampler

ATTEMPTS = 2000
"""Draws of sizes for one trial before giving up on finding sizes that satisfy the rule."""
TRIALS = 8

_At: TypeAlias = Callable[[Any], Any]
"""Returns an attribute's value at the sample."""
_Kernel: TypeAlias = Callable[[Any, Sequence[Tensor], _At], Tensor]
_DTYPES = {
    DType.FLOAT: torch.float64,
    DType.INT: torch.int64,
    DType.F64: torch.float64,
    DType.F32: torch.float32,
    DType.F16: torch.float16,
    DType.BF16: torch.bfloat16,
    DType.BOOL: torch.bool,
    DType.U8: torch.uint8,
    DType.I8: torch.int8,
    DType.I16: torch.int16,
    DType.I32: torch.int32,
    DType.I64: torch.int64,
}
_TOLERANCES = {torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}


@contextmanager
def one_thread() -> Generator[None, None, None]:
    """Run on one thread: tensors this small gain nothing by several, which wait for each other on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def witness(rule: Substitution, seed: int = 0, trials: int = TRIALS, least: int = 1) -> Counterexample | None:
    """Return sizes and values at which the two sides differ, or None; see :func:`find_counterexample`."""
    found, _ = find_counterexample(rule, seed, trials, least)
    return found


@one_thread()
def find_counterexample(
    rule: Substitution, seed: int = 0, trials: int = TRIALS, least: int = 1
) -> tuple[Counterexample | None, int]:
    """Search for sizes and values at which the two sides differ.

    Args:
        rule: the rule to try.
        seed: determines sizes and values.
        trials: the number of samples.
        least: the least size of a dimension; rules are stated for 1, with 0 there are empty sums and empty batches.

    Returns:
        A counterexample or None, and the number of trials: fewer where fitting sizes are hard to find.

    Raises:
        Refused: no sizes could be found that satisfy the rule, or PyTorch has no operator to compare with.
        TargetRefused: PyTorch refuses the target, but not the source.
    """
    rule = without_equalities(rule)
    sampler, random = Sampler(rule, least), Random(seed)
    done = 0
    for attempt in range(4 * trials):
        if done == trials:
            break
        sample = sampler.draw(random, ATTEMPTS)
        if sample is None:
            break
        kind = _KINDS[attempt % len(_KINDS)]
        values = _values(rule, sample, seed * 1000 + attempt, kind)
        sides = _both(rule, values, sample)
        if sides is None:
            continue
        done += 1
        found = _difference(*sides, _tolerance(rule, kind))
        if found is not None:
            arrays = {name: _array(tensor) for name, tensor in values.items()}
            return Counterexample(_sizes(sample), arrays, *found), done
    if done == 0:
        raise Refused("no sizes were found at which both sides can be computed")
    return None, done


def _both(
    rule: Substitution, values: Mapping[str, Tensor], sample: Sample
) -> tuple[Sequence[Tensor], Sequence[Tensor]] | None:
    """Return both sides' outputs; None if PyTorch refuses the source."""
    try:
        source = run_side(rule.source, values, sample)
    except Rejected:
        return None
    try:
        return source, run_side(rule.target, values, sample)
    except Rejected as error:
        raise TargetRefused(f"PyTorch refuses the target at {_sizes(sample)}: {error}") from error


class TargetRefused(Refused):
    """At some sizes PyTorch computes the source, but not the target."""


class Rejected(Exception):
    """PyTorch refuses an operator at some sizes, as the rule's preconditions should."""


def confirm(rule: Substitution, found: Counterexample) -> bool:
    """Return whether PyTorch computes both results of a counterexample again from its sizes and values."""
    rule = without_equalities(rule)
    variables = [(variable.types[0], found.values[key(variable)]) for variable in rule.variables]
    groups = {
        type_.shape[0].name: array.shape[: array.ndim - type_.rank + 1]
        for type_, array in variables
        if type_.shape and isinstance(type_.shape[0], Group)
    }
    sizes = {name: size for name, size in found.sizes.items() if isinstance(size, int)}
    sample = Sample(sizes, groups, {name: size for name, size in found.sizes.items() if isinstance(size, float)})
    values = {
        key(variable): torch.from_numpy(found.values[key(variable)]).to(_DTYPES[variable.types[0].dtype])
        for variable in rule.variables
    }
    sides = [map(_array, run_side(side, values, sample)) for side in (rule.source, rule.target)]
    pairs = zip(*sides, strict=True)
    return any(
        np.array_equal(left, found.source, equal_nan=True) and np.array_equal(right, found.target, equal_nan=True)
        for left, right in pairs
    )


def _sizes(sample: Sample) -> dict[str, int | float]:
    groups = {f"..{name}": int(np.prod(axes)) for name, axes in sample.groups.items()}
    return {**sample.sizes, **groups, **sample.numbers}


class _Kind(enum.Enum):
    """Distribution of the elements."""

    SIGNED = enum.auto()
    POSITIVE = enum.auto()
    NEGATIVE = enum.auto()
    """Mostly negative."""
    APART = enum.auto()
    """Away from zero, of mixed magnitudes."""
    WHOLE = enum.auto()
    """Small integers, zeros among them: sums and products of them are computed without rounding."""


_KINDS = tuple(_Kind)


def _values(rule: Substitution, sample: Sample, seed: int, kind: _Kind) -> dict[str, Tensor]:
    """Return random tensors of a kind, by the names of variables."""
    generator = torch.Generator().manual_seed(seed)
    values: dict[str, Tensor] = {}
    for variable in rule.variables:
        type_ = variable.types[0]
        if key(variable) in sample.ranges:
            values[key(variable)] = drawn_index(sample.shape(type_), sample.ranges[key(variable)], generator)
            continue
        dtype = _DTYPES.get(type_.dtype)
        if dtype is None:
            raise Refused(f"the witness does not support elements of type {type_.dtype}")
        numbers = torch.randn(sample.shape(type_), generator=generator, dtype=torch.float64)
        drawn = with_sign(_transform(numbers, kind), sign_of(variable.value))
        if not type_.dtype.is_floating and dtype is not torch.bool:
            drawn = (drawn * 4).abs().round()  # negative numbers have no unsigned form
        values[key(variable)] = drawn > 0 if dtype is torch.bool else drawn.to(dtype)
    return values


def drawn_index(shape: tuple[int, ...], within: range, generator: torch.Generator) -> Tensor:
    """Return random integers of a range."""
    return torch.randint(within.start, max(within.stop, within.start + 1), shape, generator=generator)


def _transform(drawn: Tensor, kind: _Kind) -> Tensor:
    match kind:
        case _Kind.SIGNED:
            return drawn
        case _Kind.POSITIVE:
            return drawn.abs() + 0.1
        case _Kind.NEGATIVE:
            return drawn - 1.5
        case _Kind.APART:
            return drawn * 3 + drawn.sign()
        case _Kind.WHOLE:
            return (drawn * 1.2).round()


def run_side(
    graph: Graph, values: Mapping[str, Tensor], sample: Sample, floating: torch.dtype = torch.float64
) -> list[Tensor]:
    """Return what PyTorch computes for the outputs of one side of a rule.

    Args:
        graph: the side.
        values: tensors for the variables, by name.
        sample: what symbols stand for.
        floating: what ``FLOAT`` stands for, also in tensors that are made of numbers.

    Raises:
        Rejected: PyTorch refuses an operator at these sizes.
        Refused: there is no row for one.
    """
    computed: dict[Value, Tensor] = {}
    for node in graph.nodes:
        result = run_node(node, values, [computed[value] for value in node.inputs], sample)
        is_tensor = node.types[0].dtype is DType.FLOAT and not isinstance(node.op, Constant)
        computed[node.value] = result.to(floating) if is_tensor else result
    return [computed[value] for value in graph.outputs]


def run_node(node: Node, values: Mapping[str, Tensor], operands: Sequence[Tensor], sample: Sample) -> Tensor:
    """Return what PyTorch computes for one node of a side; raises what :func:`run_side` does."""
    if isinstance(node.op, Input):
        return values[node.op.key]
    if isinstance(node.op, Constant):
        number = attribute_at(node.op.value, sample)
        return torch.tensor(number, dtype=_DTYPES.get(node.op.dtype, torch.float64))
    kernel = _KERNELS.get(node.op.name)
    if kernel is None:
        raise Refused(f"the witness has no implementation of {node.op.name}")
    if node.op.commutative and isinstance(node.inputs[0].node.op, Constant):
        operands = operands[::-1]  # PyTorch rounds numbers to the element type unless they come last
    try:
        return kernel(node.op, operands, lambda value: attribute_at(value, sample))
    except (RuntimeError, ValueError, IndexError) as error:
        raise Rejected(str(error)) from error


def attribute_at(value: Any, sample: Sample) -> Any:
    """Return the value of an attribute at the sizes and numbers of a sample.

    Raises:
        Refused: it has none.
    """
    if isinstance(value, tuple):
        return tuple(attribute_at(item, sample) for item in value)
    if isinstance(value, Poly):
        number = sample.numbers.get(str(value))
        try:
            return evaluate(value, sample.sizes) if number is None else number
        except KeyError as error:
            raise Refused(f"{value} is not computed from integers") from error
    return value


def _tolerance(rule: Substitution, kind: _Kind) -> float:
    """Return the greatest difference allowed, relative to the greatest element; zero where nothing is rounded."""
    nodes = [*rule.source.nodes, *rule.target.nodes]
    dtypes = {_DTYPES.get(type_.dtype) for node in nodes for type_ in node.types}
    if kind is _Kind.WHOLE and dtypes <= {torch.float64, torch.bool, torch.int64} and all(map(_is_exact, nodes)):
        return 0.0
    return max(_TOLERANCES.get(dtype, 1e-9) for dtype in dtypes if dtype is not None)


def _is_exact(node: Node) -> bool:
    """Return whether a node maps integers to integers, exactly in double precision."""
    is_whole = not any(isinstance(value, float) and value % 1 for _, value in node.op.attributes)
    return isinstance(node.op, Input) or (node.op.rounding is not Rounding.ANY and is_whole)


def _difference(
    source: Sequence[Tensor], target: Sequence[Tensor], tolerance: float
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]] | None:
    """Return the first outputs that differ; elements at which the source is not finite are not compared."""
    for left, right in zip(map(_array, source), map(_array, target), strict=True):
        if left.shape != right.shape:
            return left, right
        asked = np.isfinite(left)
        scale = 1 + float(np.abs(left[asked]).max(initial=0))
        with np.errstate(invalid="ignore"):
            agree = np.abs(left - right) <= tolerance * scale
        if not agree[asked].all():
            return left, right
    return None


def _array(tensor: Tensor) -> np.ndarray[Any, Any]:
    return tensor.detach().to(torch.float64).numpy()


# -- one row an operator


def _slice(op: Any, x: Sequence[Tensor], at: _At) -> Tensor:
    start, stop, extent = at(op.start), at(op.stop), x[0].shape[op.axis]
    if not 0 <= start <= stop <= extent:
        raise ValueError(f"slice {start}:{stop} of {extent}")
    return torch.ops.aten.slice.Tensor(x[0], op.axis, start, stop, op.step)


def _permute(op: Any, x: Sequence[Tensor], _at: _At) -> Tensor:
    rank, count = x[0].dim(), len(op.order)
    return x[0].permute([*range(rank - count), *(rank + axis for axis in op.order)])


def _pad(op: Any, x: Sequence[Tensor], at: _At) -> Tensor:
    return functional.pad(x[0], [width for pair in reversed(at(op.widths)) for width in pair], value=op.value)


def _upsample_bilinear2d(op: Any, x: Sequence[Tensor], at: _At) -> Tensor:
    factors = [*map(float, at(op.factors))]
    return functional.interpolate(x[0], scale_factor=factors, mode="bilinear", align_corners=op.align_corners)


def _enlarge(op: Any, x: Sequence[Tensor], at: _At) -> Tensor:
    rows, columns = (k - s for k, s in zip(at(op.kernel), x[0].shape[-2:], strict=True))
    if rows < 0 or columns < 0 or rows % 2 or columns % 2:
        raise ValueError("enlarge")
    return functional.pad(x[0], [columns // 2, columns // 2, rows // 2, rows // 2])


def _convolution(op: Any, x: Sequence[Tensor], at: _At) -> Tensor:
    convolved = functional.conv3d if x[0].dim() == 5 else functional.conv2d
    bias = x[2] if len(x) == 3 else None
    return convolved(
        x[0], x[1], bias, stride=at(op.stride), padding=at(op.padding), dilation=at(op.dilation), groups=at(op.groups)
    )


def _conv_transpose2d(op: Any, x: Sequence[Tensor], at: _At) -> Tensor:
    bias = x[2] if len(x) == 3 else None
    windows = (at(op.stride), at(op.padding), op.output_padding)
    return functional.conv_transpose2d(x[0], x[1], bias, *windows, at(op.groups), at(op.dilation))


def _avg_pool2d(op: Any, x: Sequence[Tensor], at: _At) -> Tensor:
    return functional.avg_pool2d(x[0], at(op.kernel), at(op.stride), at(op.padding), op.ceil, op.count_include_pad)


def _max_pool2d(op: Any, x: Sequence[Tensor], at: _At) -> Tensor:
    return functional.max_pool2d(
        x[0], at(op.kernel), stride=at(op.stride), padding=at(op.padding), dilation=at(op.dilation), ceil_mode=op.ceil
    )


def _batch_norm(op: Any, x: Sequence[Tensor], at: _At) -> Tensor:
    return functional.batch_norm(x[0], x[3], x[4], x[1], x[2], training=False, eps=at(op.eps))


def _group_norm(op: Any, x: Sequence[Tensor], at: _At) -> Tensor:
    return torch.group_norm(x[0], at(op.groups), *x[1:], eps=at(op.eps))


def _instance_norm(op: Any, x: Sequence[Tensor], at: _At) -> Tensor:
    weight, bias = [*x[1:], None, None][:2]
    return torch.instance_norm(x[0], weight, bias, None, None, True, 0.0, at(op.eps), False)


def _rms_norm(op: Any, x: Sequence[Tensor], at: _At) -> Tensor:
    return functional.rms_norm(x[0], list(x[0].shape[-op.axes :]), *x[1:], eps=at(op.eps))


def _attention(op: Any, x: Sequence[Tensor], at: _At) -> Tensor:
    mask = x[3] if len(x) == 4 else None
    # The fused kernel of PyTorch 2.11 ends the process where there are no heads.
    with sdpa_kernel(SDPBackend.MATH) if x[0].numel() == 0 else nullcontext():
        return functional.scaled_dot_product_attention(
            x[0], x[1], x[2], attn_mask=mask, is_causal=op.causal, scale=at(op.scale)
        )


def _baddbmm(op: Any, x: Sequence[Tensor], at: _At) -> Tensor:
    call = torch.addmm if x[1].dim() == 2 else torch.baddbmm
    return call(x[0], x[1], x[2], beta=at(op.beta), alpha=at(op.alpha))


def _take(op: Any, x: Sequence[Tensor], at: _At) -> Tensor:
    table, index = x
    places = index if at(op.wraps) else torch.where(index < 0, table.shape[op.axis], index)
    return table[(slice(None),) * (table.dim() + op.axis) + (places,)]


def _named(name: str) -> _Kernel:
    """Return the kernel of an operator that PyTorch has under its name, with the same operands."""
    call = getattr(torch, name)
    return lambda _op, x, _at: call(*x)


_NAMED = (
    *("add", "mul", "sub", "div", "addcmul", "maximum", "minimum", "abs", "where", "gt", "ge", "eq", "ne"),
    *("logical_and", "logical_or", "logical_not", "log", "log1p", "relu", "sigmoid", "tanh", "exp", "erf", "sin"),
    *("cos", "sqrt", "rsqrt", "matmul"),
)
_KERNELS: Mapping[str, _Kernel] = {
    **{name: _named(name) for name in _NAMED},
    "pow": lambda op, x, _at: torch.pow(x[0], op.exponent),
    "silu": lambda _op, x, _at: functional.silu(x[0]),
    "gelu": lambda op, x, _at: functional.gelu(x[0], approximate=op.approximate),
    "hardtanh": lambda op, x, _at: functional.hardtanh(x[0], op.min_val, op.max_val),
    "hardsigmoid": lambda _op, x, _at: functional.hardsigmoid(x[0]),
    "hardswish": lambda _op, x, _at: functional.hardswish(x[0]),
    "leaky_relu": lambda op, x, at: functional.leaky_relu(x[0], at(op.negative_slope)),
    "elu": lambda op, x, _at: torch.ops.aten.elu.default(x[0], op.alpha, op.scale),
    "celu": lambda op, x, _at: functional.celu(x[0], op.alpha),
    "softplus": lambda op, x, _at: functional.softplus(x[0], op.beta),
    "mish": lambda _op, x, _at: functional.mish(x[0]),
    "cast": lambda op, x, _at: x[0].to(_DTYPES[op.dtype]),
    "baddbmm": _baddbmm,
    "linear": lambda _op, x, _at: functional.linear(*x),
    "conv2d": _convolution,
    "conv3d": _convolution,
    "conv_transpose2d": _conv_transpose2d,
    "avg_pool2d": _avg_pool2d,
    "max_pool2d": _max_pool2d,
    "adaptive_avg_pool2d": lambda op, x, at: functional.adaptive_avg_pool2d(x[0], at(op.size)),
    "batch_norm": _batch_norm,
    "group_norm": _group_norm,
    "instance_norm": _instance_norm,
    "layer_norm": lambda op, x, at: functional.layer_norm(x[0], x[0].shape[-op.axes :], *x[1:], eps=at(op.eps)),
    "rms_norm": _rms_norm,
    "softmax": lambda op, x, _at: torch.softmax(x[0], op.axis),
    "attention": _attention,
    "concat": lambda op, x, _at: torch.cat(list(x), op.axis),
    "slice": _slice,
    "flip": lambda op, x, _at: torch.flip(x[0], op.axes),
    "permute": _permute,
    "reshape": lambda op, x, at: torch.reshape(x[0], at(op.shape)),
    "diagonal": lambda _op, x, _at: torch.diagonal(x[0], dim1=-2, dim2=-1),
    "diagonal_matrix": lambda _op, x, _at: torch.diag_embed(x[0]),
    "expand": lambda op, x, at: x[0].expand(at(op.shape)),
    "upsample_nearest2d": lambda op, x, at: functional.interpolate(x[0], scale_factor=[*map(float, at(op.factors))]),
    "upsample_bilinear2d": _upsample_bilinear2d,
    "pad": _pad,
    "enlarge": _enlarge,
    "contiguous": lambda _op, x, _at: x[0].contiguous(),
    "take": _take,
    "gather": lambda op, x, _at: torch.gather(x[0], op.axis, x[1]),
    "sum": lambda op, x, _at: torch.sum(x[0], op.axes, op.keepdim),
    "mean": lambda op, x, _at: torch.mean(x[0], op.axes, op.keepdim),
    "cumsum": lambda op, x, _at: torch.cumsum(x[0], op.axis),
    "max": lambda op, x, _at: torch.amax(x[0], op.axes, op.keepdim),
    "vector_norm": lambda op, x, _at: torch.linalg.vector_norm(x[0], op.order, op.axes, op.keepdim),
}


def compute(op: Operator, operands: Sequence[Tensor]) -> Tensor:
    """Return PyTorch's result for an operator without symbols.

    Raises:
        Refused: the witness has no implementation of it.
    """
    kernel = _KERNELS.get(op.name)
    if kernel is None:
        raise Refused(f"the witness has no implementation of {op.name}")
    return kernel(op, operands, lambda value: value)
