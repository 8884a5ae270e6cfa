"""The vocabulary ``groups``: convolutions of different images side by side, as one of as many groups, and batch norms.

Applied again and again, the rules make the convolutions of an ensemble's members one, of their images joined along the
channels (:mod:`taso_py.rules.groups`), and so their batch norms.
"""

from __future__ import annotations

from taso_py.generate.sets.common import applicable, each, family, yields
from taso_py.generate.vocabulary import FUSED, Family
from taso_py.ops.contraction import Conv2d
from taso_py.ops.movement import Concat
from taso_py.ops.normalization import BatchNorm

_FIRST, _SECOND = 2, 3
"""The numbers of groups."""
_CHANNELS, _FEATURES = 3, 5
"""Channels and features of a group."""
_EXTENTS, _KERNEL = (6, 5), (3, 2)
_FEATURE, _CHANNEL = -4, -3
"""Axes of kernels' features and of images' channels."""


def _side_by_side(*, bias: bool) -> Family:
    """Return the family of convolutions of two images, with or without biases."""

    def convolution(groups: int) -> Conv2d:
        return Conv2d(stride=(2, 2), padding=(1, 1), dilation=(2, 2), groups=groups)

    shapes = {
        "d": (1, _FIRST * _CHANNELS, *_EXTENTS),
        "e": (1, _SECOND * _CHANNELS, *_EXTENTS),
        "w": (_FIRST * _FEATURES, _CHANNELS, *_KERNEL),
        "v": (_SECOND * _FEATURES, _CHANNELS, *_KERNEL),
    }
    biases = {"b": (_FIRST * _FEATURES,), "c": (_SECOND * _FEATURES,)} if bias else {}
    first, second, joined = ("dwb", "evc", "DWB") if bias else ("dw", "ev", "DW")
    productions = (
        *yields("p", [first], convolution(_FIRST)),
        *yields("q", [second], convolution(_SECOND)),
        *yields("o", ["pq"], Concat(_CHANNEL)),
        *yields("D", ["de"], Concat(_CHANNEL)),
        *yields("W", ["wv"], Concat(_FEATURE)),
        *yields("B", ["bc"], Concat(-1)),
        *yields(FUSED, [joined], convolution(_FIRST + _SECOND)),
    )
    name, variables = "side by side, biases" if bias else "side by side", each(**shapes, **biases)
    return family(name, variables, applicable(variables, productions), 4, faithful=True, largest=1024)


def _normalized() -> Family:
    """Return the family of batch norms of two images."""
    norm, vectors = BatchNorm(0.25), ("ag", "bh", "mn", "st")
    variables = each(
        d=(1, _CHANNELS, *_EXTENTS),
        e=(1, _FEATURES, *_EXTENTS),
        **{first: (_CHANNELS,) for first, _ in vectors},
        **{second: (_FEATURES,) for _, second in vectors},
    )
    productions = (
        *yields("p", ["dabms"], norm),
        *yields("q", ["eghnt"], norm),
        *yields("o", ["pq"], Concat(_CHANNEL)),
        *yields("D", ["de"], Concat(_CHANNEL)),
        *(made for pair in vectors for made in yields(pair[0].upper(), [pair], Concat(-1))),
        *yields(FUSED, ["DABMS"], norm),
    )
    return family("normalized side by side", variables, productions, 6, faithful=True, largest=1024)


GROUPS = (*(_side_by_side(bias=bias) for bias in (False, True)), _normalized())
