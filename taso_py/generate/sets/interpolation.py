"""The vocabulary ``interpolation``: what is affine in each pixel is computed before an image is enlarged linearly.

The weights of an interpolation are the same for all channels, and together they are one: layers of each pixel, scales
and shifts can be computed before it, of fewer elements. Rules lead in one direction, towards less work.
"""

from __future__ import annotations

from collections.abc import Iterator

from taso_py.generate.sets.common import each, exchanged
from taso_py.generate.sets.images import joined
from taso_py.generate.vocabulary import DATA, WEIGHT, Family
from taso_py.ops.contraction import Conv2d
from taso_py.ops.elementwise import Add, Div, Mul, Sub
from taso_py.ops.evaluate import Domain
from taso_py.ops.movement import Concat
from taso_py.ops.normalization import BatchNorm
from taso_py.ops.resizing import UpsampleBilinear2d

_OTHER, _BIAS = "yb"
"""Roles of the second of two images, and of a bias."""
_CHANNELS, _FACTORS = 3, (4, 2)
"""With powers of two as factors, means of small integers are exact."""
_SHAPE = (2, _CHANNELS, 3, 2)
_JOINED, _JOINED_ENLARGED = (2, 3, 2, 2), (2, 3, 2 * _FACTORS[0], 2 * _FACTORS[1])
"""Shapes of images that are joined: no other size is the number of their channels."""
_STATISTICS = "hkqt"
"""Roles of the vectors of a normalization."""


def _families(kind: str, enlarge: UpsampleBilinear2d) -> Iterator[Family]:
    """Yield the families of one way to interpolate."""
    domain = Domain.REAL if enlarge.align_corners else Domain.EXACT
    yield exchanged(
        enlarge,
        f"arithmetic of {kind}",
        each(d=_SHAPE, y=_SHAPE, v=(_CHANNELS, 1, 1), n=()),
        (DATA + "v", (Add(), Sub(), Mul(), Div())),
        (DATA + "n", (Add(), Sub(), Mul(), Div())),
        (DATA + _OTHER, (Add(), Sub(), Concat(-3))),
        domain=Domain.REAL,
        faithful=True,
    )
    yield exchanged(
        enlarge,
        f"normalized {kind}",
        each(d=_SHAPE, **dict.fromkeys(_STATISTICS, (_CHANNELS,))),
        # With an epsilon that makes the samples of a variance, which may be negative, positive.
        (DATA + _STATISTICS, (BatchNorm(8.0),)),
        domain=Domain.REAL,
        faithful=True,
    )
    yield exchanged(
        enlarge,
        f"pointwise convolutions of {kind}",
        each(d=_SHAPE, w=(5, _CHANNELS, 1, 1), b=(5,)),
        (DATA + WEIGHT, (Conv2d(),)),
        (DATA + WEIGHT + _BIAS, (Conv2d(),)),
        domain=Domain.REAL,
        faithful=True,
    )
    yield joined(
        f"pointwise convolutions of joined {kind}",
        _JOINED,
        _JOINED_ENLARGED,
        enlarge,
        domain=domain,
        is_bias_beside=True,
    )


INTERPOLATION = (
    *_families("interpolated images", UpsampleBilinear2d(_FACTORS)),
    *_families("images interpolated between corners", UpsampleBilinear2d(_FACTORS, align_corners=True)),
)
