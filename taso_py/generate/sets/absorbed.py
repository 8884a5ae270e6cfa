"""The vocabulary ``absorbed``: what stands before or behind a layer and is absorbed into its weights.

``layers`` has scales, shifts and other layers; here are the weights of layer normalization, normalization by fixed
statistics before a layer, padding of unequal widths, channels in another order, padding that is cut off again, the
flattening of global averages, and shifts that a softmax does not see.
"""

from __future__ import annotations

from taso_py.generate.sets.common import EPSILON, each, family, normalization, number, yields
from taso_py.generate.vocabulary import CONSTANT, DATA, FUSED, WEIGHT, Family, Production, Variables
from taso_py.ir.types import DType
from taso_py.ops.contraction import Conv2d, Linear, Matmul
from taso_py.ops.elementwise import Add, Div, Mul, Sub
from taso_py.ops.evaluate import Domain
from taso_py.ops.movement import DiagonalMatrix, Expand, Pad, Permute, Reshape, Slice
from taso_py.ops.normalization import LayerNorm, Softmax
from taso_py.ops.pooling import AdaptiveAvgPool2d
from taso_py.ops.reduction import Max, Mean, Sum
from taso_py.ops.selection import Take

_INNER, _OUTER, _REDUCED = "hor"
"""Roles of results: of the first operator, of the second, of the first without what is absorbed."""
_COMPOSED, _COMPOSED_BIAS = "WB"
"""Roles of composed weights and biases."""
_LINEAR = Linear()
_KERNEL = Conv2d(stride=(2, 2), padding=(1, 1))
_UNPADDED = Conv2d(stride=(2, 2), dilation=(2, 2))

_NORMALIZED = family(
    "layers of affine normalizations",
    each(d=(4, 3), g=(3,), s=(3,), w=(5, 3), b=(5,)),
    (
        *yields(_INNER, ["dg", "dgs"], LayerNorm(1, 0.25)),
        *yields(_OUTER, ["hw", "hwb"], _LINEAR),
        *yields(_REDUCED, [DATA], LayerNorm(1, 0.25)),
        *yields(_COMPOSED, ["wg"], Mul()),
        *yields(_COMPOSED_BIAS, ["sw", "swb"], _LINEAR),
        *yields(FUSED, ["rW", "rWb", "rWB"], _LINEAR),
    ),
    4,
)

_STATISTICS = "gsmq"
"""Roles of the factors, shifts, means and variances of channels."""
_FACTOR, _SHIFT = "fy"
"""Roles of what a normalization by them multiplies each channel by, and adds to it, in all."""
_BY_STATISTICS = normalization(_STATISTICS, _INNER, factor=_FACTOR, shift=_SHIFT)

_NORMALIZED_BY_STATISTICS = (
    family(
        "layers of normalized features",
        (*each(d=(4, 3), w=(5, 3), b=(5,), **dict.fromkeys(_STATISTICS, (3,))), EPSILON),
        (
            *_BY_STATISTICS,
            *yields(_OUTER, ["hw", "hwb"], _LINEAR),
            *yields(_COMPOSED, [WEIGHT + _FACTOR], Mul()),
            *yields(_COMPOSED_BIAS, [_SHIFT + "w", _SHIFT + "wb"], _LINEAR),
            *yields(FUSED, ["dWB"], _LINEAR),
        ),
        8,
    ),
    family(
        "convolutions of normalized images",
        (*each(d=(2, 3, 6, 5), w=(4, 3, 3, 2), b=(4,), **dict.fromkeys(_STATISTICS, (3,))), EPSILON),
        (
            *_BY_STATISTICS,
            *yields(_OUTER, ["hw", "hwb"], _UNPADDED),
            *yields("4", [_FACTOR], Reshape((3, 1, 1))),
            *yields(_COMPOSED, [WEIGHT + "4"], Mul()),
            *yields("5", [WEIGHT], Sum((-2, -1))),
            *yields(_COMPOSED_BIAS, [_SHIFT + "5", _SHIFT + "5b"], _LINEAR),
            *yields(FUSED, ["dWB"], _UNPADDED),
        ),
        10,
        narrow=True,
    ),
)

_UNEQUAL = tuple(
    family(
        f"convolutions of images padded more {where}",
        each(d=(2, 4, 6, 5), w=(4, 2, 3, 2), b=(4,)),
        (
            *yields(_INNER, [DATA], Pad(image)),
            *yields(_OUTER, ["hw", "hwb"], Conv2d(stride=(2, 2), groups=2)),
            *yields(_COMPOSED, [WEIGHT], Pad(kernel)),
            *yields(FUSED, ["dW", "dWb"], Conv2d(stride=(2, 2), padding=(1, 2), groups=2)),
        ),
        3,
        narrow=True,
    )
    for where, image, kernel in (
        ("behind", ((0, 1), (0, 2)), ((1, 0), (2, 0))),
        ("before", ((1, 0), (2, 0)), ((0, 1), (0, 2))),
    )
)

_INDEX = Variables("i", (4,), "i", 1, dtype=DType.INT)
_ONE = Variables("u", (), CONSTANT, count=1, number=1.0)
_CHOICE = "P"
"""Role of the matrix that chooses: a row for each integer, with a one where it says."""
_CHOOSING = (
    Production(Expand((5,)), CONSTANT, "x"),
    Production(DiagonalMatrix(), "x", "y"),
    Production(Take(-2), "y" + "i", _CHOICE),
)

_CHOSEN = (
    family(
        "layers of chosen features",
        (*each(d=(3, 5), w=(6, 4), b=(6,)), _INDEX, _ONE),
        (
            *_CHOOSING,
            Production(Take(-1), DATA + "i", _INNER),
            *yields(_OUTER, ["hw", "hwb"], _LINEAR),
            *yields(_COMPOSED, [WEIGHT + _CHOICE], Matmul()),
            *yields(FUSED, ["dW", "dWb"], _LINEAR),
        ),
        5,
    ),
    family(
        "convolutions of chosen channels",
        (*each(d=(2, 5, 6, 7), w=(6, 4, 3, 2), b=(6,)), _INDEX, _ONE),
        (
            *_CHOOSING,
            Production(Take(-3), DATA + "i", _INNER),
            *yields(_OUTER, ["hw", "hwb"], _KERNEL),
            *yields("p", [_CHOICE], Permute((-1, -2))),
            *yields("q", ["p"], Reshape((5, 4, 1, 1))),
            *yields(_COMPOSED, [WEIGHT + "q"], Conv2d()),
            *yields(FUSED, ["dW", "dWb"], _KERNEL),
        ),
        7,
    ),
)

_UNSEEN = family(
    "softmax of shifted rows",
    each(d=(4, 3), r=(4, 1), n=()),
    (
        *yields(_INNER, ["dr", "dn"], Add(), Sub()),
        *yields("x", [DATA], Max((-1,), keepdim=True)),
        *yields(_INNER, ["dx"], Sub()),
        *yields(_OUTER, [_INNER], Softmax()),
        *yields(FUSED, [DATA], Softmax()),
    ),
    3,
    domain=Domain.REAL,
)

_CUT = (
    family(
        "padding that is cut off",
        each(d=(2, 11)),
        (
            *yields(_INNER, [DATA], Pad(((3, 4),))),
            *yields(_OUTER, [_INNER], Slice(-1, 3, 14)),
        ),
        2,
    ),
    *(
        family(
            f"padding of images that is cut off, {cut.axis}",
            each(d=(2, 5, 4)),
            (
                *yields(_INNER, [DATA], Pad(widths)),
                *yields(_OUTER, [_INNER], cut),
                *yields(FUSED, [DATA], Pad(rest)),
            ),
            2,
        )
        for widths, cut, rest in (
            (((2, 3), (7, 6)), Slice(-1, 7, 11), ((2, 3), (0, 0))),
            (((7, 6), (1, 3)), Slice(-2, 7, 12), ((0, 0), (1, 3))),
        )
    ),
    family(
        "padding by nothing",
        each(d=(2, 5, 4)),
        yields(_OUTER, [DATA], Pad(((0, 0), (0, 0)))),
        1,
        narrow=True,
    ),
    family(
        "global averages that are flattened",
        each(d=(2, 3, 5, 4)),
        (
            *yields(_INNER, [DATA], AdaptiveAvgPool2d((1, 1)), Mean((-2, -1), keepdim=True)),
            *yields(_OUTER, [_INNER], Reshape((2, 3))),
            *yields(FUSED, [DATA], Mean((-2, -1))),
        ),
        2,
        domain=Domain.REAL,
    ),
    family(
        "quotients by one",
        (*each(d=(4, 3)), number("u", 1.0)),
        yields(_OUTER, ["du"], Div()),
        1,
        domain=Domain.REAL,
        narrow=True,
    ),
)

ABSORBED: tuple[Family, ...] = (
    _NORMALIZED,
    *_NORMALIZED_BY_STATISTICS,
    *_UNEQUAL,
    *_CHOSEN,
    *_CUT,
    _UNSEEN,
)
