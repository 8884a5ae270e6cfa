"""The vocabulary ``layers``: affine layers that take in what is before or behind them.

A linear layer or convolution is affine in its operand; so is adding, scaling, another layer, a mean. The composition is
one layer whose weights are computed once, or a layer of fewer elements. Composed weights are computed by operators of
the vocabulary themselves: of two kernels by a convolution of one with the other, of a bias by the layer behind it.
"""

from __future__ import annotations

from collections.abc import Iterable

from taso_py.generate.sets.fold import affine_operators
from taso_py.generate.vocabulary import CONSTANT, FUSED, Family, Folding, Half, Production, Variables
from taso_py.ops.base import TensorOperator
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


def _yields(role: str, operands: Iterable[str], *ops: TensorOperator | Half) -> tuple[Production, ...]:
    """Return the productions that apply operators to operands of some roles and give another."""
    return tuple(Production(op, roles, role) for op in ops for roles in operands)


def _family(name: str, variables: Iterable[Variables], *productions: Production, operators: int) -> Family:
    return Family(name, tuple(variables), productions, operators=operators, every=True, narrow=True)


def _each(**shapes: tuple[int, ...]) -> tuple[Variables, ...]:
    """Return a variable for each role, named after it."""
    return tuple(Variables(role, shape, role, 1) for role, shape in shapes.items())


_LINEAR, _KERNEL, _POINT = Linear(), Conv2d(stride=(2, 2), padding=(1, 1), dilation=(2, 2)), Conv2d()
_UNPADDED = Conv2d(stride=(2, 2), dilation=(2, 2))
_TRANSPOSED = Permute((-3, -4, -2, -1))
"""The kernels with input and output channels exchanged."""
_LAST, _ROW, _CHANNEL, _BATCH = -1, -2, -3, -4
_IMAGE = (2, 3, 6, 5)

_LAYERS_OF_LAYERS = _family(
    "layers of layers",
    _each(d=(4, 3), w=(5, 3), b=(5,), u=(7, 5), c=(7,)),
    *_yields(_UNBIASED, ["dw"], _LINEAR),
    *_yields(_INNER, ["dwb"], _LINEAR),
    *_yields(_OUTER, ["hu", "huc", "kuc"], _LINEAR),
    *_yields(_COMPOSED, ["uw"], Matmul()),
    *_yields(_COMPOSED_BIAS, ["bu", "buc"], _LINEAR),
    *_yields(FUSED, ["dWc", "dWB"], _LINEAR),
    operators=3,
)

_POINTS_OF_KERNELS = _family(
    "pointwise convolutions of convolutions",
    _each(d=_IMAGE, w=(4, 3, 3, 2), b=(4,), u=(5, 4, 1, 1), c=(5,)),
    *_yields(_UNBIASED, ["dw"], _KERNEL),
    *_yields(_INNER, ["dwb"], _KERNEL),
    *_yields(_OUTER, ["hu", "huc", "ku", "kuc"], _POINT),
    *_yields("t", ["w"], _TRANSPOSED),
    *_yields(_PART, ["tu"], _POINT),
    *_yields(_COMPOSED, ["p"], _TRANSPOSED),
    *_yields("m", ["u"], Reshape((5, 4))),
    *_yields(_COMPOSED_BIAS, ["bm", "bmc"], _LINEAR),
    *_yields(FUSED, ["dW", "dWc", "dWB"], _KERNEL),
    operators=6,
)

_KERNELS_OF_POINTS = _family(
    "convolutions of pointwise convolutions",
    _each(d=_IMAGE, w=(4, 3, 1, 1), b=(4,), u=(5, 4, 3, 2), c=(5,)),
    *_yields(_UNBIASED, ["dw"], _POINT),
    *_yields(_INNER, ["dwb"], _POINT),
    *_yields(_OUTER, ["ku", "kuc"], _KERNEL),
    *_yields(_OUTER, ["hu", "huc"], _UNPADDED),
    *_yields("t", ["w"], _TRANSPOSED),
    *_yields(_COMPOSED, ["ut"], _POINT),
    *_yields("m", ["u"], Sum((-2, -1))),
    *_yields(_COMPOSED_BIAS, ["bm", "bmc"], _LINEAR),
    *_yields(FUSED, ["dW", "dWc"], _KERNEL),
    *_yields(FUSED, ["dWB"], _UNPADDED),
    operators=5,
)

_MINUS_ONE = Variables("m", (), CONSTANT, count=1, number=-1.0)

_SHIFTED_ROWS = _family(
    "layers of shifted and scaled rows",
    (*_each(d=(4, 3), w=(5, 3), b=(5,), v=(3,), n=()), _MINUS_ONE),
    *_yields(_INNER, ["dv", "dn"], Add(), Sub(), Mul(), Div()),
    *_yields(_OUTER, ["hw", "hwb"], _LINEAR),
    *_yields(_COMPOSED, ["wv", "wn"], Mul(), Div()),
    *_yields("s", ["vc"], Mul()),
    *_yields("t", ["w"], Sum((_LAST,))),
    *_yields(_PART, ["tn"], Mul()),
    *_yields("q", ["pc"], Mul()),
    *_yields(_COMPOSED_BIAS, ["bp"], Add(), Sub()),
    *_yields(_COMPOSED_BIAS, ["vw", "vwb", "sw", "swb"], _LINEAR),
    *_yields(FUSED, ["dW", "dWb", "dwB", "dwp", "dwq"], _LINEAR),
    operators=4,
)

_NORMALIZED_ROWS = _family(
    "layers of scaled normalizations",
    _each(d=(4, 3), w=(5, 3), b=(5,), v=(3,)),
    *_yields(_INNER, ["dv"], RmsNorm(1, 0.25)),
    *_yields(_OUTER, ["hw", "hwb"], _LINEAR),
    *_yields(_REDUCED, ["d"], RmsNorm(1, 0.25)),
    *_yields(_COMPOSED, ["wv"], Mul()),
    *_yields(FUSED, ["rW", "rWb"], _LINEAR),
    operators=3,
)

_AVERAGED_ROWS = _family(
    "averages of layers",
    _each(d=(2, 4, 3), w=(5, 3), x=(3, 5), b=(5,)),
    *_yields(_UNBIASED, ["dw"], _LINEAR),
    *_yields(_UNBIASED, ["dx"], Matmul()),
    *_yields(_INNER, ["dwb"], _LINEAR),
    *_yields(_OUTER, ["h", "k"], Mean((_ROW,)), Mean((_ROW,), keepdim=True)),
    *_yields(_OUTER, ["k"], Sum((_ROW,)), Sum((_ROW,), keepdim=True)),
    *_yields(_REDUCED, ["d"], *(op((_ROW,), keepdim=kept) for op in (Mean, Sum) for kept in (False, True))),
    *_yields(_PART, ["b"], Expand((4, 5))),
    *_yields(_COMPOSED_BIAS, [_PART], Mean((_ROW,))),
    *_yields(FUSED, ["rw", "rwB"], _LINEAR),
    *_yields(FUSED, ["rx"], Matmul()),
    operators=4,
)

_WINDOW = AvgPool2d((3, 2), (2, 2))

_AVERAGED_IMAGES = _family(
    "averages of pointwise convolutions",
    _each(d=(2, 3, 7, 4), u=(5, 3, 1, 1), b=(5,)),
    *_yields(_UNBIASED, ["du"], _POINT),
    *_yields(_INNER, ["dub"], _POINT),
    *_yields(_OUTER, ["h", "k"], AdaptiveAvgPool2d((1, 1)), Mean((-2, -1)), Mean((-2, -1), keepdim=True)),
    *_yields(_OUTER, ["h"], _WINDOW),
    *_yields(_REDUCED, ["d"], AdaptiveAvgPool2d((1, 1)), _WINDOW),
    *_yields("s", ["d"], Mean((-2, -1))),
    *_yields(_COMPOSED, ["u"], Reshape((5, 3))),
    *_yields(_PART, ["b"], Expand((7, 4, 5)), Expand((3, 2, 5))),
    *_yields(_COMPOSED_BIAS, [_PART], Mean((-3, -2))),
    *_yields(FUSED, ["ru", "ruB"], _POINT),
    *_yields(FUSED, ["sW", "sWB"], _LINEAR),
    operators=5,
)

_SCALED_IMAGES = _family(
    "convolutions of shifted and scaled images",
    (*_each(d=_IMAGE, w=(4, 3, 3, 2), b=(4,), v=(3, 1, 1), n=()), _MINUS_ONE),
    *_yields("i", ["dv", "dn"], Mul()),
    *_yields(_OUTER, ["iw", "iwb"], _KERNEL),
    *_yields(_COMPOSED, ["wv", "wn"], Mul()),
    *_yields(FUSED, ["dW", "dWb"], _KERNEL),
    *_yields(_INNER, ["dv", "dn"], Add(), Sub()),
    *_yields(_INNER, ["dv"], Div()),
    *_yields(_OUTER, ["hw", "hwb"], _UNPADDED),
    *_yields("t", ["w"], Sum((-2, -1))),
    *_yields("x", ["v"], Reshape((3,))),
    *_yields("y", ["xc"], Mul()),
    *_yields(_COMPOSED_BIAS, ["xt", "xtb", "yt", "ytb"], _LINEAR),
    *_yields("z", ["w"], Sum((-3, -2, -1))),
    *_yields(_PART, ["zn"], Mul()),
    *_yields("q", ["pc"], Mul()),
    *_yields(_COMPOSED_BIAS, ["bp"], Add(), Sub()),
    *_yields("V", ["wv"], Div()),
    *_yields(FUSED, ["dwB", "dwp", "dwq", "dV", "dVb"], _UNPADDED),
    operators=5,
)

_COLUMNS = _family(
    "columns of layers",
    _each(d=(3, 7), w=(4, 7), b=(4,)),
    *_yields(_INNER, ["dwb"], _LINEAR),
    *_yields(_OUTER, ["h"], Half(_LAST, 0)),
    *_yields(_COMPOSED, ["w"], Half(_ROW, 0)),
    *_yields(_COMPOSED_BIAS, ["b"], Half(_LAST, 0)),
    *_yields(FUSED, ["dWB"], _LINEAR),
    operators=3,
)

_CHANNELS = _family(
    "channels of convolutions",
    _each(d=(2, 3, 6, 5), w=(4, 3, 3, 2), b=(4,)),
    *_yields(_UNBIASED, ["dw"], _KERNEL),
    *_yields(_INNER, ["dwb"], _KERNEL),
    *_yields(_OUTER, ["h"], Half(_CHANNEL, 0)),
    *_yields(_OUTER, ["h", "k"], Half(_BATCH, 0)),
    *_yields(_COMPOSED, ["w"], Half(_BATCH, 0)),
    *_yields(_COMPOSED_BIAS, ["b"], Half(_LAST, 0)),
    *_yields(_REDUCED, ["d"], Half(_BATCH, 0)),
    *_yields(FUSED, ["dWB", "rw", "rwb"], _KERNEL),
    operators=3,
)

_PADDED = _family(
    "convolutions of padded images",
    _each(d=(2, 3, 3, 4), w=(4, 3, 3, 2), b=(4,)),
    *_yields(_INNER, ["d"], Pad(((3, 3), (2, 2)))),
    *_yields(_OUTER, ["hw", "hwb"], Conv2d(stride=(2, 2), padding=(1, 1))),
    *_yields(FUSED, ["dw", "dwb"], Conv2d(stride=(2, 2), padding=(4, 3))),
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
