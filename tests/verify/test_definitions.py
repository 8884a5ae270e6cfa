"""Each operator's definition, computed with numpy, is what PyTorch computes; and inference gives PyTorch's shape."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import TypeAlias

import numpy as np
import pytest
import torch

from taso_py.ir.types import DType, TensorType
from taso_py.ops.base import TensorOperator
from taso_py.ops.choice import Where
from taso_py.ops.contraction import Baddbmm, Conv2d, Conv3d, ConvTranspose2d, Linear, Matmul
from taso_py.ops.elementwise import Addcmul, Cast, Celu, Elu, Gelu, Hardtanh, LeakyRelu, Pow, Softplus
from taso_py.ops.evaluate import Domain, evaluate
from taso_py.ops.movement import (
    Concat,
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
from taso_py.ops.normalization import Attention, BatchNorm, GroupNorm, InstanceNorm, LayerNorm, RmsNorm, Softmax
from taso_py.ops.pooling import AdaptiveAvgPool2d, AvgPool2d, MaxPool2d
from taso_py.ops.reduction import Cumsum, Max, Mean, Sum, VectorNorm
from taso_py.ops.resizing import UpsampleBilinear2d
from taso_py.ops.selection import Gather, Take
from taso_py.ops.table import DEFINED
from verify.witness import compute

Shapes: TypeAlias = list[tuple[int, ...]]
Case: TypeAlias = tuple[TensorOperator, Shapes]
Make: TypeAlias = Callable[[Random], Case]
TRIALS = 12


def few(random: Random) -> int:
    return random.choice((1, 2, 3, 5))


def shape(random: Random, least: int = 0) -> tuple[int, ...]:
    return tuple(few(random) for _ in range(random.randint(least, 4)))


def pair(random: Random, low: int, high: int) -> tuple[int, int]:
    return random.randint(low, high), random.randint(low, high)


def image(random: Random) -> tuple[int, ...]:
    return few(random), few(random), *pair(random, 5, 9)


def unary(op: TensorOperator) -> Make:
    return lambda random: (op, [shape(random)])


def binary(op: TensorOperator) -> Make:
    def case(random: Random) -> Case:
        full = shape(random)
        other = tuple(size if random.random() < 0.7 else 1 for size in full[random.randint(0, len(full)) :])
        shapes = [full, other]
        random.shuffle(shapes)
        return op, shapes

    return case


def three(op: TensorOperator, random: Random) -> Case:
    full = shape(random)
    shapes = [tuple(n if random.random() < 0.7 else 1 for n in full[random.randint(0, len(full)) :]) for _ in range(2)]
    shapes.append(full)
    random.shuffle(shapes)
    return op, shapes


def matmul(random: Random) -> Case:
    lead, (m, k, n) = shape(random)[:2], [few(random) for _ in range(3)]
    left, right = (tuple(size if random.random() < 0.7 else 1 for size in lead) for _ in range(2))
    return Matmul(), [(*left, m, k), (*right, k, n)] if random.random() < 0.7 else [(*lead, m, k), (k, n)]


def baddbmm(random: Random) -> Case:
    lead, (m, k, n) = shape(random)[:1], [few(random) for _ in range(3)]
    full = tuple(size if random.random() < 0.7 else 1 for size in (*lead, m, n))
    op = Baddbmm(random.choice((1.0, -0.5)), random.choice((1.0, 0.25)))
    return op, [full[random.randint(0, len(full)) :], (*lead, m, k), (*lead, k, n)]


def vector_norm(random: Random) -> Case:
    op, shapes = reduction(Sum)(random)
    assert isinstance(op, Sum)
    return VectorNorm(op.axes, op.keepdim, random.choice((1, 2))), shapes


def linear(random: Random) -> Case:
    features, length = few(random), few(random)
    shapes: Shapes = [(*shape(random), length), (features, length)]
    return Linear(), shapes + [(features,)] * random.randint(0, 1)


def conv2d(random: Random) -> Case:
    groups, channels, features = random.choice((1, 1, 2, 3)), few(random), few(random)
    op = Conv2d(pair(random, 1, 3), pair(random, 0, 2), pair(random, 1, 2), groups)
    x = (few(random), groups * channels, *pair(random, 5, 9))
    shapes: Shapes = [x, (groups * features, channels, *pair(random, 1, 3))]
    return op, shapes + [(groups * features,)] * random.randint(0, 1)


def conv3d(random: Random) -> Case:
    groups, channels, features = random.choice((1, 2)), random.randint(1, 2), random.randint(1, 2)
    strides, padding, dilation = (tuple(random.randint(*ends) for _ in range(3)) for ends in ((1, 3), (0, 2), (1, 2)))
    op = Conv3d(strides, padding, dilation, groups)  # pyright: ignore[reportArgumentType]
    x = (random.randint(1, 2), groups * channels, *(random.randint(3, 5) for _ in range(3)))
    shapes: Shapes = [x, (groups * features, channels, *(random.randint(1, 2) for _ in range(3)))]
    return op, shapes + [(groups * features,)] * random.randint(0, 1)


def conv_transpose2d(random: Random) -> Case:
    groups, channels, features = random.choice((1, 1, 2, 3)), few(random), few(random)
    stride, dilation = pair(random, 1, 3), pair(random, 1, 2)
    rows, columns = (random.randint(0, max(sizes) - 1) for sizes in zip(stride, dilation, strict=True))
    op = ConvTranspose2d(stride, pair(random, 0, 1), (rows, columns), dilation, groups)
    x = (few(random), groups * channels, *pair(random, 3, 5))
    shapes: Shapes = [x, (groups * channels, features, *pair(random, 1, 3))]
    return op, shapes + [(groups * features,)] * random.randint(0, 1)


def pool(kind: type[AvgPool2d] | type[MaxPool2d]) -> Make:
    def case(random: Random) -> Case:
        kernel = pair(random, 1, 4)
        padding = (random.randint(0, kernel[0] // 2), random.randint(0, kernel[1] // 2))
        strides = pair(random, 1, 3)
        if kind is AvgPool2d:
            ceil = all(k >= s + p for k, s, p in zip(kernel, strides, padding, strict=True))
            return AvgPool2d(kernel, strides, padding, random.random() < 0.5, ceil=ceil), [image(random)]
        dilation = pair(random, 1, 2)
        # Images may be so small that windows lie in the padding altogether.
        least = [max(1, d * (k - 1) + 1 - 2 * p) for d, k, p in zip(dilation, kernel, padding, strict=True)]
        rows, columns = (random.randint(size, size + random.choice((0, 5))) for size in least)
        reach = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
        ceil = all(k >= s + p for k, s, p in zip(reach, strides, padding, strict=True))
        return MaxPool2d(kernel, strides, padding, dilation, ceil=ceil), [(few(random), few(random), rows, columns)]

    return case


def adaptive(random: Random) -> Case:
    return AdaptiveAvgPool2d(random.choice(((1, 1), pair(random, 1, 6)))), [image(random)]


def batch_norm(random: Random) -> Case:
    x = shape(random, 2)
    return BatchNorm(random.choice((1e-5, 0.5))), [x, *[x[1:2]] * 4]


def norm(kind: type[LayerNorm] | type[RmsNorm], most: int) -> Make:
    def case(random: Random) -> Case:
        x = shape(random, 2)
        axes = random.randint(1, 2)
        return kind(axes, random.choice((1e-5, 0.5))), [x, *[x[-axes:]] * random.randint(0, most)]

    return case


def group_norm(random: Random) -> Case:
    groups, together = few(random), few(random)
    x = (few(random), groups * together, *shape(random)[:2], 2)
    return GroupNorm(groups, random.choice((1e-5, 0.5))), [x, *[x[1:2]] * random.randint(0, 2)]


def instance_norm(random: Random) -> Case:
    x = (few(random), few(random), *shape(random)[:2], 2)
    return InstanceNorm(random.choice((1e-5, 0.5))), [x, *[x[1:2]] * random.randint(0, 2)]


def attention(random: Random) -> Case:
    lead = (few(random), few(random))
    causal = random.random() < 0.3
    rows, keys, head, width = (few(random) for _ in range(4))
    shapes: Shapes = [(*lead, rows, head), (*lead, keys, head), (*lead, keys, width)]
    if not causal and random.random() < 0.5:
        mask = (*lead, rows, keys)[random.randint(0, 2) :]
        shapes.append(tuple(size if random.random() < 0.7 else 1 for size in mask))
    return Attention(random.choice((None, 0.5)), causal), shapes


def axis_of(random: Random, rank: int) -> int:
    return random.randrange(-rank, 0)


def concat(random: Random) -> Case:
    first = shape(random, 1)
    axis = axis_of(random, len(first))
    at = len(first) + axis
    return Concat(axis), [(*first[:at], few(random), *first[at + 1 :]) for _ in range(random.randint(1, 4))]


def slice_(random: Random) -> Case:
    x = shape(random, 1)
    axis = axis_of(random, len(x))
    start = random.randint(0, x[axis] - 1)
    return Slice(axis, start, random.randint(start + 1, x[axis]), random.randint(1, 3)), [x]


def permute(random: Random) -> Case:
    x = shape(random)
    order = list(range(-random.randint(0, len(x)), 0))
    random.shuffle(order)
    return Permute(tuple(order)), [x]


def reshape(random: Random) -> Case:
    a, b, c = (few(random) for _ in range(3))
    shapes = [(a, b, c), (a * b, c), (a, b * c), (a * b * c,), (a, 1, b, c), (c, b, a), (b, a, c), (a * c, b)]
    before, after = random.sample(shapes, 2)
    return Reshape(after), [before]


def diagonal(random: Random) -> Case:
    size = few(random)
    return Diagonal(), [(*shape(random), size, size)]


def diagonal_matrix(random: Random) -> Case:
    return DiagonalMatrix(), [shape(random, 1)]


def expand(random: Random) -> Case:
    full = shape(random)
    given = full[random.randint(0, len(full)) :]
    return Expand(full), [tuple(size if random.random() < 0.5 else 1 for size in given)]


def upsample(random: Random) -> Case:
    return UpsampleNearest2d(pair(random, 1, 16)), [image(random)]


def bilinear(random: Random) -> Case:
    return UpsampleBilinear2d(pair(random, 1, 4), random.random() < 0.5), [(few(random), 2, *pair(random, 2, 5))]


def pad(random: Random) -> Case:
    x = shape(random, 1)
    axes = random.randint(1, len(x))
    widths = tuple((random.randint(0, 2), random.randint(0, 2)) for _ in range(axes))
    return Pad(widths, random.choice((0.0, 1.5))), [x]


def enlarge(random: Random) -> Case:
    x = (few(random), few(random), *pair(random, 1, 3))
    return Enlarge((x[2] + 2 * random.randint(0, 2), x[3] + 2 * random.randint(0, 2))), [x]


def axes_of(random: Random, rank: int) -> tuple[int, ...]:
    return tuple(sorted(random.sample(range(-rank, 0), random.randint(1, rank))))


def flip(random: Random) -> Case:
    x = shape(random, 1)
    return Flip(axes_of(random, len(x))), [x]


def reduction(kind: type[Sum] | type[Mean] | type[Max]) -> Make:
    def case(random: Random) -> Case:
        x = shape(random, 1)
        return kind(axes_of(random, len(x)), random.random() < 0.5), [x]

    return case


def take(random: Random) -> Case:
    x = shape(random, 1)
    return Take(axis_of(random, len(x)), random.randint(0, 1)), [x, shape(random)[:2]]


def gather(random: Random) -> Case:
    x = shape(random, 1)
    axis = axis_of(random, len(x))
    at = len(x) + axis
    return Gather(axis), [x, (*x[:at], few(random), *x[at + 1 :])]


def cumsum(random: Random) -> Case:
    x = shape(random, 1)
    return Cumsum(axis_of(random, len(x))), [x]


def softmax(random: Random) -> Case:
    x = shape(random, 1)
    return Softmax(axis_of(random, len(x))), [x]


_FUNCTIONS = [op for op in DEFINED.values() if op.is_elementwise and op not in (Cast, Expand)]
CASES: dict[str, Make] = {
    **{op.name: binary(op()) for op in _FUNCTIONS if op.arity == (2, 2)},
    **{op.name: unary(op()) for op in _FUNCTIONS if op.arity == (1, 1)},
    "where": lambda random: three(Where(), random),
    "addcmul": lambda random: three(Addcmul(), random),
    "cast": unary(Cast(DType.F32)),
    "gelu": lambda random: (Gelu(random.choice(("none", "tanh"))), [shape(random)]),
    "hardtanh": lambda random: (Hardtanh(random.uniform(-2, 0), random.uniform(0, 2)), [shape(random)]),
    "leaky_relu": lambda random: (LeakyRelu(random.uniform(-1, 2)), [shape(random)]),
    "celu": lambda random: (Celu(random.uniform(0.2, 2)), [shape(random)]),
    "elu": lambda random: (Elu(random.uniform(-1, 2), random.uniform(-1, 2)), [shape(random)]),
    "softplus": lambda random: (Softplus(random.uniform(0.1, 4)), [shape(random)]),
    "pow": lambda random: (Pow(random.randint(2, 8)), [shape(random)]),
    "matmul": matmul,
    "baddbmm": baddbmm,
    "linear": linear,
    "conv2d": conv2d,
    "conv3d": conv3d,
    "conv_transpose2d": conv_transpose2d,
    "avg_pool2d": pool(AvgPool2d),
    "max_pool2d": pool(MaxPool2d),
    "adaptive_avg_pool2d": adaptive,
    "batch_norm": batch_norm,
    "group_norm": group_norm,
    "instance_norm": instance_norm,
    "layer_norm": norm(LayerNorm, 2),
    "rms_norm": norm(RmsNorm, 1),
    "softmax": softmax,
    "attention": attention,
    "concat": concat,
    "slice": slice_,
    "permute": permute,
    "reshape": reshape,
    "expand": expand,
    "upsample_nearest2d": upsample,
    "upsample_bilinear2d": bilinear,
    "flip": flip,
    "diagonal": diagonal,
    "diagonal_matrix": diagonal_matrix,
    "pad": pad,
    "enlarge": enlarge,
    "take": take,
    "gather": gather,
    **{kind.name: reduction(kind) for kind in (Sum, Mean, Max)},
    "vector_norm": vector_norm,
    "cumsum": cumsum,
}


def examples(name: str) -> Iterator[Case]:
    random = Random(name)
    for _ in range(TRIALS):
        yield CASES[name](random)


@pytest.mark.parametrize("name", sorted(DEFINED))
def test_the_definition_is_what_torch_computes(name: str) -> None:
    generator = torch.Generator().manual_seed(len(name))
    positive = name in ("sqrt", "rsqrt", "log", "log1p", "batch_norm")
    for op, shapes in examples(name):
        drawn = [torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes]
        tensors = [tensor.abs() + 0.1 for tensor in drawn] if positive else drawn
        if name in ("gt", "ge", "eq", "ne"):
            tensors = [tensor.round() for tensor in tensors]
        truths = (1 if name == "where" else len(shapes)) if op.reads_truth else 0
        tensors = [tensor > 0 if place < truths else tensor for place, tensor in enumerate(tensors)]
        types = [TensorType(DType.BOOL if place < truths else DType.F64, s) for place, s in enumerate(shapes)]
        if isinstance(op, Take | Gather):
            rows = shapes[0][op.axis]
            least = -rows if isinstance(op, Take) and op.wraps else 0
            tensors[1] = torch.randint(least, rows, shapes[1], generator=generator)
            types[1] = TensorType(DType.I64, shapes[1])
        expected = compute(op, tensors)
        assert op.infer(types)[0].sizes == tuple(expected.shape), (op, shapes)
        found = evaluate(op, [tensor.numpy() for tensor in tensors], types, Domain.REAL)
        np.testing.assert_allclose(found, expected.double().numpy(), rtol=1e-6, atol=1e-9, err_msg=f"{op} {shapes}")


def test_a_boolean_mask_removes_keys() -> None:
    mask = torch.tensor([[True, False, True], [True, True, False]])
    tensors = [torch.randn(s, dtype=torch.float64) for s in ((2, 4), (3, 4), (3, 5))]
    types = [TensorType(DType.F64, tuple(t.shape)) for t in tensors]
    found = evaluate(
        Attention(),
        [*(t.numpy() for t in tensors), mask.double().numpy()],
        [*types, TensorType(DType.BOOL, (2, 3))],
        Domain.REAL,
    )
    np.testing.assert_allclose(found, compute(Attention(), [*tensors, mask]).numpy(), rtol=1e-9)
