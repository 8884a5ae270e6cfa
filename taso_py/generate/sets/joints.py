"""The vocabulary ``joints``: pointwise convolutions of three images or more that are joined, one of them enlarged.

Decoders join the maps of several scales, all enlarged to the largest (Xie et al. 2021, SegFormer, section 3.2). The
part of a convolution that reads an enlarged image is computed before enlarging; ``images`` and ``interpolation`` have
the rules of two images, to which these lead.
"""

from __future__ import annotations

from functools import partial

from taso_py.generate.sets.common import each, family, yields
from taso_py.generate.vocabulary import DATA, FUSED, WEIGHT, Family, Production
from taso_py.ops.base import TensorOperator
from taso_py.ops.contraction import Conv2d
from taso_py.ops.elementwise import Add
from taso_py.ops.movement import Concat, Slice, UpsampleNearest2d
from taso_py.ops.resizing import UpsampleBilinear2d

_OTHERS = "xyz"
"""Roles of the other images."""
_LARGE, _JOINED, _RESULT = "Ljo"
"""Roles of the enlarged image, of all of them joined, and of what is replaced."""
_BIAS, _OWN, _REST = "b12"
"""Roles of a bias, and of the weights of the enlarged image and of the others."""
_SMALL, _AFTER, _JOINED_REST, _SUMMAND = "laks"
"""Roles of the enlarged image's part, before and after enlarging, and of the others, joined and convolved."""

_CHANNELS = (9, 17, 33, 20)
"""Numbers of channels such that no place where one image ends is a sum or difference of other sizes by chance."""
_FEATURES = 5
_EXTENTS, _FACTORS = (3, 2), (4, 2)
"""Sizes of the smaller image, and factors: with powers of two, means of small integers are exact."""
_POINT = Conv2d()
_CHANNEL = -3

_faithful = partial(family, faithful=True, largest=16384)


def _joint(name: str, enlarge: TensorOperator, count: int, place: int) -> Family:
    """Return the family of so many images that are joined, the one at a place enlarged: the first or the last."""
    others = _OTHERS[: count - 1]
    roles = others[:place] + _LARGE + others[place:]
    channels = dict(zip(roles, _CHANNELS, strict=False))
    total = sum(channels.values())
    border = channels[_LARGE] if place == 0 else total - channels[_LARGE]
    own, rest = ((0, border), (border, total)) if place == 0 else ((border, total), (0, border))
    large = tuple(extent * factor for extent, factor in zip(_EXTENTS, _FACTORS, strict=True))
    shapes = {DATA: (2, channels[_LARGE], *_EXTENTS), WEIGHT: (_FEATURES, total, 1, 1), _BIAS: (_FEATURES,)}
    return _faithful(
        f"{count} {name} joined, the one at {place}",
        each(**shapes, **{role: (2, channels[role], *large) for role in others}),
        (
            Production(enlarge, DATA, _LARGE),
            Production(Concat(_CHANNEL), roles, _JOINED),
            *yields(_RESULT, [_JOINED + WEIGHT, _JOINED + WEIGHT + _BIAS], _POINT),
            Production(Slice(_CHANNEL, *own), WEIGHT, _OWN),
            Production(Slice(_CHANNEL, *rest), WEIGHT, _REST),
            Production(_POINT, DATA + _OWN, _SMALL),
            Production(enlarge, _SMALL, _AFTER),
            Production(Concat(_CHANNEL), others, _JOINED_REST),
            *yields(_SUMMAND, [_JOINED_REST + _REST, _JOINED_REST + _REST + _BIAS], _POINT),
            Production(Add(), _AFTER + _SUMMAND, FUSED),
        ),
        7,
    )


_KINDS = (
    ("enlarged images", UpsampleNearest2d(_FACTORS)),
    ("interpolated images", UpsampleBilinear2d(_FACTORS)),
)
_PLACES = ((3, 0), (3, 2), (4, 0), (4, 3))
"""How many images are joined, and the place of the enlarged one, which is the first or the last."""

JOINTS = tuple(_joint(name, enlarge, count, place) for name, enlarge in _KINDS for count, place in _PLACES)
