"""The vocabulary ``core``: everything together, few operators deep."""

from __future__ import annotations

from taso_py.generate.sets.common import (
    ARITHMETIC,
    IMAGES,
    KERNELS,
    MATRICES,
    POINTS,
    POINTWISE,
    POOLS,
    SCALARS,
    SPATIAL,
    STRIDED_POOLS,
    UNARY,
)
from taso_py.generate.vocabulary import (
    CONSTANT,
    DATA,
    EITHER,
    WEIGHT,
    Family,
    Half,
    Production,
    Variables,
    apply,
    halves,
)
from taso_py.ops.contraction import Conv2d, Linear, Matmul
from taso_py.ops.elementwise import Add, Div, Mul, Relu
from taso_py.ops.movement import Concat, Enlarge, Expand, Permute

CORE = (
    Family(
        "matrices",
        MATRICES,
        (
            *apply("..", Add(), Mul()),
            *apply("d", Relu()),
            *apply("dw", Matmul(), Linear()),
            *apply("ww", Matmul()),
            *apply("..", Concat(-1), Concat(-2)),
            *apply(EITHER, Permute((-1, -2))),
            *halves(-1, -2),
        ),
        operators=2,
    ),
    Family(
        "scales",
        (*MATRICES, Variables("v", (2,), WEIGHT, 2), SCALARS),
        (*apply("..", Mul()), *apply("dw", Matmul(), Linear()), *apply("d", Relu())),
        operators=2,
    ),
    Family(
        "transposes",
        (Variables("x", (3, 2), DATA, 2), Variables("w", (2, 5), WEIGHT, 2)),
        (
            *apply("..", Add(), Mul(), Matmul(), Concat(-1), Concat(-2)),
            *UNARY,
            *apply(EITHER, Permute((-1, -2))),
        ),
        operators=3,
    ),
    Family("differences", (Variables("x", (4,), DATA),), (*ARITHMETIC, *apply("d", Relu())), operators=2),
    Family(
        "images",
        (IMAGES, KERNELS, POINTS),
        (
            *apply("dd", Add()),
            *apply("d", Relu()),
            *apply("dw", POINTWISE, SPATIAL, Conv2d(stride=(2, 2)), Conv2d(stride=(2, 2), padding=(1, 1))),
            *(*POOLS, *STRIDED_POOLS),
            *apply("dd", Concat(-3)),
            *apply("ww", Concat(-3), Concat(-4)),
            *apply("w", Enlarge((3, 3)), Half(-4, 0), Half(-4, 1), Half(-3, 0)),
            *apply("d", Half(-3, 0), Half(-3, 1)),
        ),
        operators=2,
    ),
    Family(
        "averages",
        (
            Variables("x", (3, 2, 4, 5), DATA, 1),
            Variables("u", (), CONSTANT, count=1, number=1.0),
            Variables("n", (), CONSTANT, count=1, number=9.0),
        ),
        (
            Production(Expand((2, 1, 3, 3)), "c", WEIGHT),
            *apply("wc", Div()),
            *apply("dw", Conv2d(padding=(1, 1), groups=2)),
            *POOLS,
        ),
        operators=3,
    ),
    Family(
        "kernels",
        (POINTS, SCALARS),
        (*apply("..", Add(), Mul()), *apply("w", Enlarge((3, 3))), *apply("ww", Concat(-3), Concat(-4))),
        operators=3,
    ),
)
