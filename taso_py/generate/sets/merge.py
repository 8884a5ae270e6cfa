"""The vocabulary ``merge``: operators that are merged and split, deeper, in small groups."""

from __future__ import annotations

from taso_py.generate.sets.common import (
    IMAGES,
    KERNELS,
    MATRICES,
    POOLS,
    SCALARS,
    SPATIAL,
    UNARY,
    VECTORS,
)
from taso_py.generate.vocabulary import (
    DATA,
    WEIGHT,
    Family,
    Variables,
    apply,
    halves,
)
from taso_py.ops.contraction import Linear, Matmul
from taso_py.ops.elementwise import Add, Mul
from taso_py.ops.movement import Concat, Slice

# Slices of a slice, and slices beside each other.
_WITHIN = ((1, 8), (2, 5), (3, 6), (1, 4), (4, 8))
# Slices of a concat of two axes of size 9: in the first, in the second, across.
_ACROSS = ((1, 4), (10, 13), (4, 12), (4, 9), (0, 3))

MERGE = (
    Family(
        "products",
        (*MATRICES, VECTORS),
        (
            *apply("..", Add()),
            *apply("dw", Matmul(), Linear()),
            *apply("dww", Linear()),
            *apply("..", Concat(-1), Concat(-2)),
        ),
        operators=3,
        split_axes=(-1, -2),
    ),
    Family(
        "convolutions",
        (IMAGES, KERNELS, Variables("v", (2,), WEIGHT)),
        (
            *apply("..", Add()),
            *apply("dw", SPATIAL),
            *apply("dww", SPATIAL),
            *apply("..", Concat(-1), Concat(-3), Concat(-4)),
        ),
        operators=3,
        split_axes=(-3, -4),
    ),
    Family(
        "pools",
        (Variables("x", (3, 2, 4, 5), DATA), SCALARS),
        (*apply("..", Add(), Mul()), *POOLS, *apply("..", Concat(-3), Concat(-4)), *halves(-3)),
        operators=3,
    ),
    Family(
        "functions",
        (Variables("x", (4,), DATA),),
        (*UNARY, *apply("..", Concat(-1)), *halves(-1)),
        operators=3,
        axes=3,
    ),
    Family(
        "arithmetic",
        (Variables("x", (4,), DATA),),
        (*apply("..", Add(), Mul(), Concat(-1)), *halves(-1)),
        operators=3,
        axes=3,
    ),
    Family(
        "slices",
        (Variables("x", (9,), DATA, 2),),
        (
            *apply("..", Concat(-1)),
            *apply(".", *(Slice(-1, a, b) for a, b in _WITHIN)),
        ),
        operators=3,
        axes=3,
    ),
    Family(
        "crossings",
        (Variables("x", (9,), DATA, 2),),
        (
            *apply("..", Concat(-1)),
            *apply(".", *(Slice(-1, a, b) for a, b in _ACROSS)),
        ),
        operators=3,
        axes=3,
    ),
    Family(
        "concats",
        (Variables("x", (2,), DATA),),
        apply("..", Concat(-1)) + apply("...", Concat(-1)),
        operators=2,
        axes=3,
    ),
)
