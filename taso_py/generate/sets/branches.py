"""The vocabulary ``branches``: parallel branches of one operand whose sum is one layer, and diagonal matrices.

Networks that are trained with several branches beside each other (RepVGG: Ding et al., CVPR 2021; ACNet: Ding et al.,
ICCV 2019; MobileOne: Vasu et al., CVPR 2023), or tuned by layers of low rank beside fixed ones (LoRA: Hu et al., ICLR
2022), compute sums of layers of one operand. A layer is linear in its weights, a smaller kernel is a larger one with
zeros around it, and the operand itself, scaled or normalized in each channel, is a layer whose weights are a diagonal
matrix. A rule merges two branches at once, since a branch alone costs more in the form of the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from taso_py.generate.sets.common import EPSILON, each, family, normalization, number
from taso_py.generate.vocabulary import CONSTANT, DATA, FUSED, WEIGHT, Family, Production
from taso_py.ops.base import TensorOperator
from taso_py.ops.contraction import Conv2d, Linear, Matmul
from taso_py.ops.elementwise import Add, Mul
from taso_py.ops.movement import DiagonalMatrix, Enlarge, Expand, Reshape

_FIRST, _OTHER, _SUM = "hko"
"""Roles of the results of both branches, and of their sum."""
_BIAS, _OTHER_BIAS = "bt"
"""Roles of what both branches add to each channel."""
_OTHER_WEIGHT, _MERGED, _MERGED_BIAS = "uWB"
"""Roles of the second branch's weights in the form of the first's, and of the weights and bias of the merged layer."""
_SCALE = "v"
"""Role of the factors of channels."""
_STATISTICS = _SCALE + "smq"
"""Roles of the factors, shifts, means and variances of a normalized branch."""
_FACTOR = "f"
"""Role of what a branch multiplies each channel by in all."""


def _chain(start: str, ops: Iterable[TensorOperator], end: str, between: Iterator[str]) -> Iterator[Production]:
    """Yield operators that are applied one after the other, with roles for what is between them."""
    *inner, last = ops
    for op in inner:
        role = next(between)
        yield Production(op, start, role)
        start = role
    yield Production(last, start, end)


def _merged(layer: TensorOperator, biases: Iterable[str] = ("", _BIAS)) -> Iterator[Production]:
    """Yield a layer as the first branch, the sum of both branches, and the layer that computes it."""
    yield from (Production(layer, DATA + WEIGHT + bias, _FIRST) for bias in biases)
    yield Production(Add(), _FIRST + _OTHER, _SUM)
    yield Production(Add(), WEIGHT + _OTHER_WEIGHT, _MERGED)
    yield Production(Add(), _BIAS + _OTHER_BIAS, _MERGED_BIAS)
    yield from (Production(layer, DATA + _MERGED + bias, FUSED) for bias in ("", _BIAS, _OTHER_BIAS, _MERGED_BIAS))


_EACH, _OTHER_EACH = ("", _BIAS), ("", _OTHER_BIAS)
_KERNELS = (
    (1, (3, 2), (3, 2), (_BIAS,), ("",)),
    (2, (3, 2), (3, 2), _EACH, _OTHER_EACH),
    *((groups, (5, 4), (3, 2), _EACH, _OTHER_EACH) for groups in (1, 2)),
)
"""Pairs of convolutions: their groups, the sizes of both kernels, and with what biases each is tried; those of equal
dense kernels without biases, or with both, are in ``core``."""


def _two_layers() -> Iterator[Family]:
    """Yield the families of two layers, the second with a kernel that is as large or smaller."""
    yield family(
        "two linear layers",
        each(d=(4, 3), w=(5, 3), u=(5, 3), b=(5,), t=(5,)),
        (
            *_merged(Linear(), (_BIAS,)),
            *(Production(Linear(), DATA + _OTHER_WEIGHT + bias, _OTHER) for bias in ("", _OTHER_BIAS)),
        ),
        4,
    )
    yield family(
        "a linear layer and one of low rank",
        each(d=(4, 3), w=(5, 3), x=(2, 3), y=(5, 2), b=(5,), n=()),
        (
            *_merged(Linear()),
            Production(Linear(), DATA + "x", "1"),
            Production(Linear(), "1y", "2"),
            Production(Add(), _FIRST + "2", _SUM),
            Production(Mul(), "2n", _OTHER),
            Production(Matmul(), "yx", "3"),
            Production(Mul(), "3n", _OTHER_WEIGHT),
            Production(Add(), WEIGHT + "3", _MERGED),
        ),
        5,
    )
    for groups, large, small, biases, other_biases in _KERNELS:
        first, second = (Conv2d((2, 2), (rows // 2, columns // 2), groups=groups) for rows, columns in (large, small))
        weight = _OTHER_WEIGHT if large == small else "x"
        shapes = {"d": (2, 4, 8, 9), WEIGHT: (6, 4 // groups, *large), weight: (6, 4 // groups, *small)}
        yield family(
            f"{'grouped ' if groups > 1 else ''}convolutions of {large} and {small}",
            each(**shapes, b=(6,), t=(6,)),
            (
                *_merged(first, biases),
                *(Production(second, DATA + weight + bias, _OTHER) for bias in other_biases),
                *([] if large == small else [Production(Enlarge(large), weight, _OTHER_WEIGHT)]),
            ),
            5,
            narrow=True,
        )


def _layer_and_operand() -> Iterator[Family]:
    """Yield the families of a layer and its operand: as it is, scaled, or normalized."""
    channels = 3
    for layer, operand, weight, forms in _LAYERS:
        name = f"{layer.text} of {weight}"
        shapes = {"d": operand, WEIGHT: weight, "b": (channels,)}
        is_image = len(operand) == 4
        factors = (channels, 1, 1) if is_image else (channels,)
        yield family(
            f"{name} and its operand",
            [*each(**shapes), number(CONSTANT, 1.0)],
            (
                *_merged(layer),
                Production(Add(), _FIRST + DATA, _SUM),
                *_chain(CONSTANT, (Expand((channels,)), *forms), _OTHER_WEIGHT, iter("45678")),
            ),
            6,
            narrow=True,
        )
        yield family(
            f"{name} and its scaled operand",
            each(**shapes, v=factors),
            (
                *_merged(layer),
                Production(Mul(), DATA + _SCALE, _OTHER),
                *_chain(_SCALE, (*([Reshape((channels,))] if is_image else []), *forms), _OTHER_WEIGHT, iter("45678")),
            ),
            6,
            narrow=True,
        )
        vector = (channels,)
        yield family(
            f"{name} and its normalized operand",
            [*each(**shapes, **dict.fromkeys(_STATISTICS, vector)), EPSILON],
            (
                *_merged(layer),
                *normalization(_STATISTICS, _OTHER, factor=_FACTOR, shift=_OTHER_BIAS),
                *_chain(_FACTOR, forms, _OTHER_WEIGHT, iter("45678")),
            ),
            12,
            narrow=True,
        )


_Layer: TypeAlias = tuple[TensorOperator, tuple[int, ...], tuple[int, ...], tuple[TensorOperator, ...]]
"""A layer, the shapes of its operand and weights, and the operators that make weights of factors of channels."""


def _square(kernel: int, groups: int) -> _Layer:
    """Return a convolution that keeps the sizes of images."""
    inputs = 3 // groups
    dense = (DiagonalMatrix(), Reshape((3, 3, 1, 1))) if groups == 1 else (Reshape((3, 1, 1, 1)),)
    grown = (Enlarge((kernel, kernel)),) if kernel > 1 else ()
    layer = Conv2d(padding=(kernel // 2, kernel // 2), groups=groups)
    return layer, (2, 3, 8, 9), (3, inputs, kernel, kernel), (*dense, *grown)


_LAYERS: Sequence[_Layer] = (
    (Linear(), (4, 3), (3, 3), (DiagonalMatrix(),)),
    *(_square(kernel, groups) for groups in (1, 3) for kernel in (1, 5)),
)
"""Layers with as many features as their operand."""


def _diagonal_matrices() -> Iterator[Family]:
    """Yield the families of products with diagonal matrices."""
    rows, columns = 3, 4
    for side in ("left", "right"):
        shape = (rows, columns) if side == "left" else (columns, rows)
        ordered = "Dd" if side == "left" else "dD"
        factor = [Production(Reshape((rows, 1)), _SCALE, "1")] if side == "left" else []
        yield family(
            f"products with a diagonal matrix on the {side}",
            each(d=shape, v=(rows,)),
            (
                Production(DiagonalMatrix(), _SCALE, "D"),
                Production(Matmul(), ordered, _SUM),
                *factor,
                Production(Mul(), DATA + ("1" if factor else _SCALE), FUSED),
            ),
            2,
        )
        yield family(
            f"products with a matrix and a diagonal one on the {side}",
            [*each(d=shape, w=(rows, rows)), number(CONSTANT, 1.0)],
            (
                *_chain(CONSTANT, (Expand((rows,)), DiagonalMatrix()), "1", iter("2")),
                Production(Add(), WEIGHT + "1", "D"),
                Production(Matmul(), ordered, _SUM),
                Production(Matmul(), ordered.replace("D", WEIGHT), "3"),
                Production(Add(), DATA + "3", FUSED),
            ),
            4,
        )


BRANCHES = (*_two_layers(), *_layer_and_operand(), *_diagonal_matrices())
