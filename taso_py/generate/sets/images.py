"""The vocabulary ``images``: what is computed of enlarged images and of averages, computed of fewer elements instead.

Enlarging an image copies its elements, so that what is done to each pixel alone can be done before; of a convolution
over joined channels, the part that reads the enlarged ones. An average over windows is affine in the image, as are
scales and shifts of its channels. Rules lead in one direction, towards less work.
"""

from __future__ import annotations

from functools import partial

from taso_py.generate.sets.common import each, exchanged, family, yields
from taso_py.generate.vocabulary import DATA, FUSED, WEIGHT, Family, Half, Production
from taso_py.ops.base import TensorOperator
from taso_py.ops.contraction import Conv2d
from taso_py.ops.elementwise import (
    Add,
    Div,
    Gelu,
    Hardswish,
    LeakyRelu,
    Maximum,
    Mish,
    Mul,
    Relu,
    Sigmoid,
    Silu,
    Sub,
    Tanh,
)
from taso_py.ops.evaluate import Domain
from taso_py.ops.movement import Concat, Contiguous, Expand, Reshape, UpsampleNearest2d
from taso_py.ops.normalization import BatchNorm, GroupNorm, InstanceNorm
from taso_py.ops.pooling import AdaptiveAvgPool2d, AvgPool2d
from taso_py.ops.reduction import Max, Mean

_OTHER = "y"
"""Role of the second of two images."""
_LARGE, _OTHER_LARGE, _JOINED = "UYj"
"""Roles of enlarged images, and of images joined along their channels."""
_SMALL = "l"
"""Role of what is computed before enlarging, or of averages."""
_BIAS, _FIRST, _SECOND = "b12"
"""Roles of a bias, and of the halves of a weight."""
_VECTOR, _NUMBER, _ROW = "vnr"
"""Roles of one number for each channel, of one number, and of the former, or of an image, under another shape."""
_BEFORE, _RESULT = "ao"
"""Roles of what is averaged, and of what is replaced."""

_ROWS, _COLUMNS, _CHANNELS = 3, 2, 3
_FACTORS = (3, 2)
_SHAPE = (2, _CHANNELS, _ROWS, _COLUMNS)
_ENLARGED = (2, _CHANNELS, _FACTORS[0] * _ROWS, _FACTORS[1] * _COLUMNS)
_ENLARGE = UpsampleNearest2d(_FACTORS)
_POINT = Conv2d()
_CHANNEL = -3
_FUNCTIONS = (Relu(), LeakyRelu(), Sigmoid(), Tanh(), Silu(), Gelu(), Hardswish(), Mish())
_ARITHMETIC = (Add(), Sub(), Mul(), Div())
_STATISTICS = "hkqt"
"""Roles of the vectors of a normalization."""
_NORM = BatchNorm(8.0)
"""With an epsilon that makes the samples of a variance, which may be negative, positive."""
_GROUPED = 4
"""A number of channels that are divided into groups."""
_NORMS = (GroupNorm(2, 0.25), InstanceNorm(0.25))


_family = partial(family, faithful=True)
_enlarged = partial(exchanged, _ENLARGE, faithful=True)


def joined(
    name: str,
    small: tuple[int, ...],
    large: tuple[int, ...],
    *enlarge: TensorOperator,
    domain: Domain = Domain.EXACT,
    is_bias_beside: bool = False,
) -> Family:
    """Return the family of pointwise convolutions of an enlarged image joined with another.

    A bias is added to the part of the enlarged image, or to the other part, beside it.
    """
    small_bias, bias_beside = ([""], ["", _BIAS]) if is_bias_beside else (["", _BIAS], [""])
    is_broadcast = small[-2:] == (1, 1)
    return _family(
        name,
        each(d=small, y=large, w=(5, 2 * small[-3], 1, 1), b=(5,)),
        (
            *yields(_LARGE, [DATA], *enlarge),
            *yields(_JOINED, [_LARGE + _OTHER, _OTHER + _LARGE], Concat(_CHANNEL)),
            *yields(_RESULT, [_JOINED + WEIGHT, _JOINED + WEIGHT + _BIAS], _POINT),
            Production(Half(_CHANNEL, 0), WEIGHT, _FIRST),
            Production(Half(_CHANNEL, 1), WEIGHT, _SECOND),
            *yields(_SMALL, [DATA + half + bias for half in (_FIRST, _SECOND) for bias in small_bias], _POINT),
            *(() if is_broadcast else yields(_OTHER_LARGE, [_SMALL], *enlarge)),
            *yields(_BEFORE, [_OTHER + half + bias for half in (_FIRST, _SECOND) for bias in bias_beside], _POINT),
            Production(Add(), (_SMALL if is_broadcast else _OTHER_LARGE) + _BEFORE, FUSED),
        ),
        6,
        domain=domain,
    )


_WHOLE = AdaptiveAvgPool2d((1, 1))
_AVERAGES = (AvgPool2d((3, 2), (2, 2)), AdaptiveAvgPool2d((2, 3)), _WHOLE, Mean((-2, -1), keepdim=True))
_MEAN = Mean((-2, -1))


def _averages() -> Family:
    """Return the family of averages of images with their channels scaled, shifted and normalized."""
    flat = "p"
    return _family(
        "averages of scaled images",
        each(d=(2, 3, 7, 4), v=(3, 1, 1), **dict.fromkeys(_STATISTICS, (3,))),
        (
            *yields(_BEFORE, [DATA + _VECTOR], *_ARITHMETIC),
            *yields(_BEFORE, [DATA + _STATISTICS], _NORM),
            *yields(_RESULT, [_BEFORE], *_AVERAGES, _MEAN),
            *yields(_SMALL, [DATA], *_AVERAGES),
            *yields(flat, [DATA], _MEAN),
            *yields(_ROW, [_VECTOR], Reshape((3,))),
            *yields(FUSED, [_SMALL + _VECTOR, flat + _ROW], *_ARITHMETIC),
            *yields(FUSED, [_SMALL + _STATISTICS, flat + _STATISTICS], _NORM),
        ),
        3,
        domain=Domain.REAL,
        narrow=True,
    )


def _scaled_norms() -> Family:
    """Return the family of normalizations of channels with a scale or a shift behind them, or a shift before."""
    plain, weighted, biased, shifted = "pqts"
    weight, scaled_bias, sum_of_biases = "WBS"
    return _family(
        "scaled normalizations of channels",
        each(d=(2, _GROUPED, 3, 2), h=(_GROUPED,), k=(_GROUPED,), v=(_GROUPED, 1, 1)),
        (
            *yields(plain, [DATA], *_NORMS),
            *yields(weighted, [DATA + "h"], *_NORMS),
            *yields(biased, [DATA + "hk"], *_NORMS),
            *yields(_RESULT, [part + _VECTOR for part in (plain, weighted, biased)], Mul()),
            *yields(_RESULT, [part + _VECTOR for part in (weighted, biased)], Add()),
            *yields(_ROW, [_VECTOR], Reshape((_GROUPED,))),
            *yields(weight, ["h" + _ROW], Mul()),
            *yields(scaled_bias, ["k" + _ROW], Mul()),
            *yields(sum_of_biases, ["k" + _ROW], Add()),
            *yields(shifted, [DATA + _VECTOR], Add(), Sub()),
            *yields(_RESULT, [shifted, shifted + "h", shifted + "hk"], _NORMS[1]),
            *yields(
                FUSED,
                [DATA + part for part in ("", "h", "hk", _ROW, "h" + _ROW, weight, weight + scaled_bias)],
                *_NORMS,
            ),
            *yields(FUSED, [DATA + "h" + sum_of_biases], *_NORMS),
        ),
        4,
        domain=Domain.REAL,
    )


IMAGES = (
    _enlarged("functions of enlarged images", each(d=_SHAPE), (DATA, _FUNCTIONS)),
    _enlarged(
        "arithmetic of enlarged images",
        each(d=_SHAPE, y=_SHAPE, v=(_CHANNELS, 1, 1), n=()),
        *((DATA + other, _ARITHMETIC) for other in (_VECTOR, _NUMBER)),
        (DATA + _OTHER, (*_ARITHMETIC, Maximum())),
    ),
    _enlarged(
        "normalized enlarged images",
        each(d=_SHAPE, **dict.fromkeys(_STATISTICS, (_CHANNELS,))),
        (DATA + _STATISTICS, (_NORM,)),
    ),
    _enlarged(
        "enlarged images normalized in groups",
        each(d=(2, _GROUPED, 2, 2), h=(_GROUPED,), k=(_GROUPED,)),
        *((DATA + "hk"[:count], _NORMS) for count in range(3)),
        domain=Domain.REAL,
    ),
    _enlarged(
        "pointwise convolutions of enlarged images",
        each(d=_SHAPE, w=(5, _CHANNELS, 1, 1), b=(5,)),
        (DATA + WEIGHT, (_POINT,)),
        (DATA + WEIGHT + _BIAS, (_POINT,)),
    ),
    _enlarged(
        "enlarged images joined",
        each(d=_SHAPE, y=(2, 2, _ROWS, _COLUMNS)),
        (DATA + _OTHER, (Concat(_CHANNEL),)),
    ),
    joined("pointwise convolutions of joined images", _SHAPE, _ENLARGED, _ENLARGE),
    joined(
        "pointwise convolutions of joined pixels",
        (2, _CHANNELS, 1, 1),
        _SHAPE,
        Expand(_SHAPE),
        UpsampleNearest2d((_ROWS, _COLUMNS)),
    ),
    *(
        _family(
            f"enlarged copies of {'x'.join(map(str, shape)) or 'a number'}",
            each(d=shape),
            (
                Production(Expand(_SHAPE), DATA, _SMALL),
                Production(_ENLARGE, _SMALL, _RESULT),
                Production(Expand(_ENLARGED), DATA, FUSED),
            ),
            2,
        )
        for shape in ((), (_CHANNELS, 1, 1), (2, _CHANNELS, 1, 1))
    ),
    _family(
        "enlarged pixels",
        each(d=(2, _CHANNELS, 1, 1), w=(5, _CHANNELS, 1, 1), b=(5,)),
        (
            *yields(_LARGE, [DATA], Expand(_SHAPE)),
            *yields(_RESULT, [DATA], UpsampleNearest2d((_ROWS, _COLUMNS))),
            *yields(FUSED, [DATA], Expand(_SHAPE)),
            *yields(_RESULT, [_LARGE + WEIGHT, _LARGE + WEIGHT + _BIAS], _POINT),
            *yields(_SMALL, [DATA + WEIGHT, DATA + WEIGHT + _BIAS], _POINT),
            *yields(FUSED, [_SMALL], Expand((2, 5, _ROWS, _COLUMNS))),
        ),
        2,
    ),
    _family(
        "enlarged twice",
        each(d=(1, 2, 2, 3)),
        (
            Production(_ENLARGE, DATA, _LARGE),
            Production(UpsampleNearest2d((2, 3)), _LARGE, _RESULT),
            Production(UpsampleNearest2d((6, 6)), DATA, FUSED),
        ),
        2,
    ),
    _family(
        "elements copied into rectangles",
        each(d=_SHAPE),
        (
            *yields(_ROW, [DATA], Reshape((2, _CHANNELS, _ROWS, 1, _COLUMNS)), Reshape((*_SHAPE, 1))),
            *yields(_SMALL, [DATA, _ROW], Reshape((2, _CHANNELS, _ROWS, 1, _COLUMNS, 1))),
            Production(Expand((2, _CHANNELS, _ROWS, _FACTORS[0], _COLUMNS, _FACTORS[1])), _SMALL, _LARGE),
            Production(Contiguous(), _LARGE, _BEFORE),
            *yields(_RESULT, [_LARGE, _BEFORE], Reshape(_ENLARGED)),
            Production(_ENLARGE, DATA, FUSED),
        ),
        5,
    ),
    _family(
        "reductions of enlarged images",
        each(d=_SHAPE),
        (
            Production(_ENLARGE, DATA, _LARGE),
            *yields(_RESULT, [_LARGE], _WHOLE, *(op((-2, -1), kept) for op in (Mean, Max) for kept in (False, True))),
            *yields(FUSED, [DATA], _WHOLE, *(op((-2, -1), kept) for op in (Mean, Max) for kept in (False, True))),
        ),
        2,
        domain=Domain.REAL,
    ),
    _averages(),
    _scaled_norms(),
)
