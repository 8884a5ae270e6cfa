"""The vocabulary ``conv``: grouped and depthwise convolutions, batch normalization, pools and enlarged kernels."""

from __future__ import annotations

from taso_py.generate.sets.common import POOLS, SPATIAL
from taso_py.generate.vocabulary import DATA, WEIGHT, Family, Production, Variables, apply, halves
from taso_py.ops.contraction import Conv2d
from taso_py.ops.elementwise import Add, Relu
from taso_py.ops.movement import Concat, Enlarge
from taso_py.ops.normalization import BatchNorm

_IMAGES = Variables("x", (3, 4, 2, 5), DATA, 2)
# Each operand of a normalization has a role of its own: with any of four vectors in each place there would be 256 ways
# to normalize, which add nothing to the rules.
_STATISTICS = tuple(Variables(letter, (4,), letter, 1) for letter in "uvsb")

CONV = (
    Family(
        "grouped convolutions",
        (_IMAGES, Variables("k", (4, 2, 3, 3), WEIGHT, 2), Variables("p", (4, 2, 1, 1), WEIGHT, 2)),
        (
            *apply("dd", Add(), Concat(-3)),
            *apply("d", Relu()),
            *apply("dw", Conv2d(groups=2), Conv2d(padding=(1, 1), groups=2), Conv2d(padding=(1, 1), groups=4)),
            *apply("w", Enlarge((3, 3))),
            *apply("ww", Add(), Concat(-3), Concat(-4)),
            *POOLS,
            *halves(-3),
        ),
        operators=3,
        split_axes=(-3,),
        equal=2,
    ),
    Family(
        "depthwise convolutions",
        (_IMAGES, Variables("k", (4, 1, 3, 3), WEIGHT, 2), Variables("p", (4, 1, 1, 1), WEIGHT, 2)),
        (
            *apply("dd", Add(), Concat(-3)),
            *apply("d", Relu()),
            *apply("dw", Conv2d(groups=4), Conv2d(padding=(1, 1), groups=4), Conv2d(padding=(1, 1), groups=8)),
            *apply("w", Enlarge((3, 3))),
            *apply("ww", Add(), Concat(-4)),
            *POOLS,
            *halves(-3),
        ),
        operators=3,
        split_axes=(-3,),
        equal=2,
    ),
    Family(
        "normalised images",
        (_IMAGES, *_STATISTICS, Variables("k", (4, 4, 3, 3), WEIGHT, 1)),
        (
            *apply("dd", Add(), Concat(-3), Concat(-4)),
            *apply("d", Relu()),
            *apply("dw", SPATIAL),
            Production(BatchNorm(0.25), "duvsb"),
            *POOLS,
            *halves(-3, -2),
        ),
        operators=3,
        equal=2,
    ),
)
