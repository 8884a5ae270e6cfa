"""The vocabulary ``layers``: affine layers that take in what is before or behind them.

A linear layer or convolution is affine in its operand; so is adding, scaling, another layer, a mean. The composition is
one layer whose weights are computed once, or a layer of fewer elements. Composed weights are computed by operators of
the vocabulary themselves: of two kernels by a convolution of one with the other, of a bias by the layer behind it.
"""

from __future__ import annotations

from collections.abc import Iterable

from taso_py.generate.sets.common import each, family, yields
from taso_py.generate.sets.fold import affine_operators
from taso_py.generate.vocabulary import CONSTANT, FUSED, Family, Folding, Half, Production, Variables
from taso_py.ops.contraction import Conv2d, Linear, Matmul
from taso_py.ops.elementwise import Add, Div, Mul, Sub
from taso_py.ops.movement import Expand, Pad, Permute, Reshape
from taso_py.ops.normalization import RmsNorm
from taso_py.ops.pooling import AdaptiveAvgPool2d, AvgPool2d
from taso_py.ops.reduction import Mean, Sum

_INNER, _UNBIASED, _OUTER = "hko"
"""Roles of results: of the first operator, of a first layer without bias, of the second operator."""
_WEIGHT, _SECOND, _BIAS, _SECOND_BIAS = "wubc"
"""Roles of the weights and biases of a first and of a second layer."""
_VECTOR, _NUMBER = "vn"
"""Roles of one number for each channel, and of one number."""
_PART, _COMPOSED, _COMPOSED_BIAS = "pWB"
"""Roles of what composed weights are computed from, and of composed weights and biases."""
_REDUCED = "r"
"""Role of the operand with fewer elements."""


def _family(name: str, variables: Iterable[Variables], *productions: Production, operators: int) -> Family:
    return family(name, variables, productions, operators, narrow=True)


_LINEAR, _KERNEL, _POINT = Linear(), Conv2d(stride=(2, 2), padding=(1, 1), dilation=(2, 2)), Conv2d()
_UNPADDED = Conv2d(stride=(2, 2), dilation=(2, 2))
_TRANSPOSED = Permute((-3, -4, -2, -1))
"""The kernels with input and output channels exchanged."""
_LAST, _ROW, _CHANNEL, _BATCH = -1, -2, -3, -4
_IMAGE = (2, 3, 6, 5)

_LAYERS_OF_LAYERS = _family(
    "layers of layers",
    each(d=(4, 3), w=(5, 3), b=(5,), u=(7, 5), c=(7,)),
    *yields(_UNBIASED, ["dw"], _LINEAR),
    *yields(_INNER, ["dwb"], _LINEAR),
    *yields(_OUTER, ["hu", "huc", "kuc"], _LINEAR),
    *yields(_COMPOSED, ["uw"], Matmul()),
    *yields(_COMPOSED_BIAS, ["bu", "buc"], _LINEAR),
    *yields(FUSED, ["dWc", "dWB"], _LINEAR),
    operators=3,
)

_POINTS_OF_KERNELS = _family(
    "pointwise convolutions of convolutions",
    each(d=_IMAGE, w=(4, 3, 3, 2), b=(4,), u=(5, 4, 1, 1), c=(5,)),
    *yields(_UNBIASED, ["dw"], _KERNEL),
    *yields(_INNER, ["dwb"], _KERNEL),
    *yields(_OUTER, ["hu", "huc", "ku", "kuc"], _POINT),
    *yields("t", ["w"], _TRANSPOSED),
    *yields(_PART, ["tu"], _POINT),
    *yields(_COMPOSED, ["p"], _TRANSPOSED),
    *yields("m", ["u"], Reshape((5, 4))),
    *yields(_COMPOSED_BIAS, ["bm", "bmc"], _LINEAR),
    *yields(FUSED, ["dW", "dWc", "dWB"], _KERNEL),
    operators=6,
)

_KERNELS_OF_POINTS = _family(
    "convolutions of pointwise convolutions",
    each(d=_IMAGE, w=(4, 3, 1, 1), b=(4,), u=(5, 4, 3, 2), c=(5,)),
    *yields(_UNBIASED, ["dw"], _POINT),
    *yields(_INNER, ["dwb"], _POINT),
    *yields(_OUTER, ["ku", "kuc"], _KERNEL),
    *yields(_OUTER, ["hu", "huc"], _UNPADDED),
    *yields("t", ["w"], _TRANSPOSED),
    *yields(_COMPOSED, ["ut"], _POINT),
    *yields("m", ["u"], Sum((-2, -1))),
    *yields(_COMPOSED_BIAS, ["bm", "bmc"], _LINEAR),
    *yields(FUSED, ["dW", "dWc"], _KERNEL),
    *yields(FUSED, ["dWB"], _UNPADDED),
    operators=5,
)

_MINUS_ONE = Variables("m", (), CONSTANT, count=1, number=-1.0)

_SHIFTED_ROWS = _family(
    "layers of shifted and scaled rows",
    (*each(d=(4, 3), w=(5, 3), b=(5,), v=(3,), n=()), _MINUS_ONE),
    *yields(_INNER, ["dv", "dn"], Add(), Sub(), Mul(), Div()),
    *yields(_OUTER, ["hw", "hwb"], _LINEAR),
    *yields(_COMPOSED, ["wv", "wn"], Mul(), Div()),
    *yields("s", ["vc"], Mul()),
    *yields("t", ["w"], Sum((_LAST,))),
    *yields(_PART, ["tn"], Mul()),
    *yields("q", ["pc"], Mul()),
    *yields(_COMPOSED_BIAS, ["bp"], Add(), Sub()),
    *yields(_COMPOSED_BIAS, ["vw", "vwb", "sw", "swb"], _LINEAR),
    *yields(FUSED, ["dW", "dWb", "dwB", "dwp", "dwq"], _LINEAR),
    operators=4,
)

_NORMALIZED_ROWS = _family(
    "layers of scaled normalizations",
    each(d=(4, 3), w=(5, 3), b=(5,), v=(3,)),
    *yields(_INNER, ["dv"], RmsNorm(1, 0.25)),
    *yields(_OUTER, ["hw", "hwb"], _LINEAR),
    *yields(_REDUCED, ["d"], RmsNorm(1, 0.25)),
    *yields(_COMPOSED, ["wv"], Mul()),
    *yields(FUSED, ["rW", "rWb"], _LINEAR),
    operators=3,
)

_AVERAGED_ROWS = _family(
    "averages of layers",
    each(d=(2, 4, 3), w=(5, 3), x=(3, 5), b=(5,)),
    *yields(_UNBIASED, ["dw"], _LINEAR),
    *yields(_UNBIASED, ["dx"], Matmul()),
    *yields(_INNER, ["dwb"], _LINEAR),
    *yields(_OUTER, ["h", "k"], Mean((_ROW,)), Mean((_ROW,), keepdim=True)),
    *yields(_OUTER, ["k"], Sum((_ROW,)), Sum((_ROW,), keepdim=True)),
    *yields(_REDUCED, ["d"], *(op((_ROW,), keepdim=kept) for op in (Mean, Sum) for kept in (False, True))),
    *yields(_PART, ["b"], Expand((4, 5))),
    *yields(_COMPOSED_BIAS, [_PART], Mean((_ROW,))),
    *yields(FUSED, ["rw", "rwB"], _LINEAR),
    *yields(FUSED, ["rx"], Matmul()),
    operators=4,
)

_WINDOW = AvgPool2d((3, 2), (2, 2))

_AVERAGED_IMAGES = _family(
    "averages of pointwise convolutions",
    each(d=(2, 3, 7, 4), u=(5, 3, 1, 1), b=(5,)),
    *yields(_UNBIASED, ["du"], _POINT),
    *yields(_INNER, ["dub"], _POINT),
    *yields(_OUTER, ["h", "k"], AdaptiveAvgPool2d((1, 1)), Mean((-2, -1)), Mean((-2, -1), keepdim=True)),
    *yields(_OUTER, ["h"], _WINDOW),
    *yields(_REDUCED, ["d"], AdaptiveAvgPool2d((1, 1)), _WINDOW),
    *yields("s", ["d"], Mean((-2, -1))),
    *yields(_COMPOSED, ["u"], Reshape((5, 3))),
    *yields(_PART, ["b"], Expand((7, 4, 5)), Expand((3, 2, 5))),
    *yields(_COMPOSED_BIAS, [_PART], Mean((-3, -2))),
    *yields(FUSED, ["ru", "ruB"], _POINT),
    *yields(FUSED, ["sW", "sWB"], _LINEAR),
    operators=5,
)

_SCALED_IMAGES = _family(
    "convolutions of shifted and scaled images",
    (*each(d=_IMAGE, w=(4, 3, 3, 2), b=(4,), v=(3, 1, 1), n=()), _MINUS_ONE),
    *yields("i", ["dv", "dn"], Mul()),
    *yields(_OUTER, ["iw", "iwb"], _KERNEL),
    *yields(_COMPOSED, ["wv", "wn"], Mul()),
    *yields(FUSED, ["dW", "dWb"], _KERNEL),
    *yields(_INNER, ["dv", "dn"], Add(), Sub()),
    *yields(_INNER, ["dv"], Div()),
    *yields(_OUTER, ["hw", "hwb"], _UNPADDED),
    *yields("t", ["w"], Sum((-2, -1))),
    *yields("x", ["v"], Reshape((3,))),
    *yields("y", ["xc"], Mul()),
    *yields(_COMPOSED_BIAS, ["xt", "xtb", "yt", "ytb"], _LINEAR),
    *yields("z", ["w"], Sum((-3, -2, -1))),
    *yields(_PART, ["zn"], Mul()),
    *yields("q", ["pc"], Mul()),
    *yields(_COMPOSED_BIAS, ["bp"], Add(), Sub()),
    *yields("V", ["wv"], Div()),
    *yields(FUSED, ["dwB", "dwp", "dwq", "dV", "dVb"], _UNPADDED),
    operators=5,
)

_COLUMNS = _family(
    "columns of layers",
    each(d=(3, 7), w=(4, 7), b=(4,)),
    *yields(_INNER, ["dwb"], _LINEAR),
    *yields(_OUTER, ["h"], Half(_LAST, 0)),
    *yields(_COMPOSED, ["w"], Half(_ROW, 0)),
    *yields(_COMPOSED_BIAS, ["b"], Half(_LAST, 0)),
    *yields(FUSED, ["dWB"], _LINEAR),
    operators=3,
)

_CHANNELS = _family(
    "channels of convolutions",
    each(d=(2, 3, 6, 5), w=(4, 3, 3, 2), b=(4,)),
    *yields(_UNBIASED, ["dw"], _KERNEL),
    *yields(_INNER, ["dwb"], _KERNEL),
    *yields(_OUTER, ["h"], Half(_CHANNEL, 0)),
    *yields(_OUTER, ["h", "k"], Half(_BATCH, 0)),
    *yields(_COMPOSED, ["w"], Half(_BATCH, 0)),
    *yields(_COMPOSED_BIAS, ["b"], Half(_LAST, 0)),
    *yields(_REDUCED, ["d"], Half(_BATCH, 0)),
    *yields(FUSED, ["dWB", "rw", "rwb"], _KERNEL),
    operators=3,
)

_PADDED = _family(
    "convolutions of padded images",
    each(d=(2, 3, 3, 4), w=(4, 3, 3, 2), b=(4,)),
    *yields(_INNER, ["d"], Pad(((3, 3), (2, 2)))),
    *yields(_OUTER, ["hw", "hwb"], Conv2d(stride=(2, 2), padding=(1, 1))),
    *yields(FUSED, ["dw", "dwb"], Conv2d(stride=(2, 2), padding=(4, 3))),
    operators=2,
)

LAYERS = (
    _LAYERS_OF_LAYERS,
    _POINTS_OF_KERNELS,
    _KERNELS_OF_POINTS,
    _SHIFTED_ROWS,
    _NORMALIZED_ROWS,
    _AVERAGED_ROWS,
    _AVERAGED_IMAGES,
    _SCALED_IMAGES,
    _COLUMNS,
    _CHANNELS,
    _PADDED,
    Folding(
        "grouped conv2d",
        Conv2d(stride=(2, 2), padding=(1, 1), groups=2),
        data=(5, 6, 2, 3),
        weight=(4, 3, 2, 2),
        after=affine_operators(4, images=True),
    ),
)
