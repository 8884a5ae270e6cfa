"""The vocabulary ``convolutions``: transposed convolutions, and convolutions of volumes, that take in what follows.

Decoders and generators enlarge images by transposed convolutions, normalized afterwards (Radford et al. 2016, DCGAN,
section 3); networks for videos convolve volumes (Tran et al. 2018, R(2+1)D). The result is affine in the weights, of
which the axis of the features is the second of a transposed convolution, and else the first.
"""

from __future__ import annotations

from taso_py.generate.sets.common import EPSILON, channel_factors, each, family, number, yields
from taso_py.generate.vocabulary import CONSTANT, DATA, FUSED, WEIGHT, Family
from taso_py.ops.base import TensorOperator
from taso_py.ops.contraction import Conv3d, ConvTranspose2d
from taso_py.ops.elementwise import Add, Mul, Sub
from taso_py.ops.movement import Reshape
from taso_py.ops.normalization import BatchNorm

_BIAS, _PLAIN, _BIASED, _RESULT = "bkho"
"""Roles of a bias, of the layer's results without and with it, and of what is replaced."""
_VECTOR, _NUMBER, _ROW = "vnx"
"""Roles of one number for each feature, of one number, and of the former as a row."""
_FACTOR, _COMPOSED, _COMPOSED_BIAS = "fWB"
"""Roles of what each feature is multiplied by in all, and of composed weights and biases."""
_FEATURES = 5
_LARGEST = 4096
"""Most elements of a term: volumes have many."""


def _families(
    name: str, layer: TensorOperator, data: tuple[int, ...], weight: tuple[int, ...]
) -> tuple[Family, Family]:
    """Return the families of normalized, and of scaled and shifted results of a layer."""
    ones = (1,) * (len(data) - 2)
    vector = (_FEATURES, *ones)
    is_first = weight[0] == _FEATURES
    shapes = {DATA: data, WEIGHT: weight, _BIAS: (_FEATURES,)}
    results = (*yields(_PLAIN, [DATA + WEIGHT], layer), *yields(_BIASED, [DATA + WEIGHT + _BIAS], layer))
    spread = Reshape((_FEATURES, 1, *ones)) if is_first else Reshape(vector)
    return (
        family(
            f"normalized {name}",
            (*each(**shapes, **dict.fromkeys("gsmq", (_FEATURES,))), EPSILON),
            (
                *results,
                *yields(_RESULT, [_PLAIN + "gsmq", _BIASED + "gsmq"], BatchNorm(0.25)),
                *channel_factors("g", "q", _FACTOR),
                *yields("3", [_FACTOR], spread),
                *yields(_COMPOSED, [WEIGHT + "3"], Mul()),
                *yields("4", [_FACTOR + "m"], Mul()),
                *yields(_COMPOSED_BIAS, ["s4"], Sub()),
                *yields("5", [_BIAS + "m"], Sub()),
                *yields("6", [_FACTOR + "5"], Mul()),
                *yields(_COMPOSED_BIAS, ["s6"], Add()),
                *yields(FUSED, [DATA + _COMPOSED + _COMPOSED_BIAS], layer),
            ),
            9,
            largest=_LARGEST,
        ),
        family(
            f"scaled and shifted {name}",
            (*each(**shapes, v=vector, n=()), number(CONSTANT, -1.0)),
            (
                *results,
                *yields(_RESULT, [part + other for part in (_PLAIN, _BIASED) for other in "vn"], Mul()),
                *yields(_RESULT, [_PLAIN + _VECTOR, _BIASED + _VECTOR], Add(), Sub()),
                *yields(_ROW, [_VECTOR], Reshape((_FEATURES,))),
                *yields("3", [_VECTOR], spread),
                *yields(_COMPOSED, [WEIGHT + ("3" if is_first else _VECTOR), WEIGHT + _NUMBER], Mul()),
                *yields(_COMPOSED_BIAS, [_BIAS + _ROW, _BIAS + _NUMBER], Mul()),
                *yields(_COMPOSED_BIAS, [_BIAS + _ROW], Add(), Sub()),
                *yields("1", [_ROW + CONSTANT], Mul()),
                *yields(FUSED, [DATA + _COMPOSED, DATA + _COMPOSED + _COMPOSED_BIAS], layer),
                *yields(FUSED, [DATA + WEIGHT + bias for bias in (_COMPOSED_BIAS, _ROW, "1")], layer),
            ),
            5,
            largest=_LARGEST,
        ),
    )


CONVOLUTIONS = (
    *(
        found
        for padding in ((0, 0), (1, 1))
        for found in _families(
            f"transposed convolutions with output padded by {padding}",
            ConvTranspose2d((2, 2), (1, 1), padding, (2, 2)),
            data=(2, 3, 4, 3),
            weight=(3, _FEATURES, 3, 2),
        )
    ),
    *_families(
        "convolutions of volumes",
        Conv3d((2, 2, 2), (1, 1, 1), (2, 2, 2)),
        data=(2, 3, 4, 6, 7),
        weight=(_FEATURES, 3, 2, 3, 2),
    ),
)
